"""AlpacaEval 2's figures from rollouts to the table: a win rate and a length-controlled one, worked by hand."""

import json

import pytest

from tasks.config.loading import SpecError, parse
from tasks.evaluation.comparison import compare
from tasks.evaluation.win_rates import check_difficulties, read_length_control
from tasks.failures import MistakeError
from tasks.inputs.benchmarks import BenchmarkFile
from tasks.inputs.evaluations import add_digests
from tasks.inputs.files import EvaluationFile
from tasks.tables.parquet import build_table
from tasks.tables.schemas import EVALUATION_ROLLOUTS, PROMPTS

ASKED = 40
REFERENCE = "x" * 1000


def file(difficulty=0.0, preference=0.5, delta=0.0):
    """A file of the authors' columns that says nothing of the judge's taste for length."""
    rows = [f"{row},{preference},{delta},{difficulty},False,m" for row in range(ASKED)]
    return "\n".join(["index,preference,std_delta_len,instruction_difficulty,not_gamed_baseline,model", *rows])


def prompts():
    rows = [
        {
            "prompt_id": f"q{row:02}",
            "domain": "chat",
            "source": "alpaca",
            "row": row,
            "messages": [{"role": "user", "content": f"{row}?"}],
            "verifier": "chat_reference",
            "ground_truth": json.dumps({"reference": REFERENCE, "mode": "pairwise"}),
            "metadata": "{}",
            "cluster": None,
        }
        for row in range(ASKED)
    ]
    return build_table(rows, PROMPTS, "prompts")


def rollouts(policy, answers):
    rows = [
        {
            "benchmark": "alpaca",
            "prompt_id": f"q{row:02}",
            "sample": 0,
            "response": "",
            "num_tokens": 9,
            "finish_reason": "stop",
            "score": preference,
            "passed": preference > 1 / 2,
            "rewards": [
                {"name": "preference", "value": preference},
                {"name": "characters", "value": float(characters)},
            ],
            "error": None,
            "policy": policy,
            "answer": None,
            "answer_class": None,
        }
        for row, (preference, characters) in enumerate(answers)
    ]
    return build_table(rows, EVALUATION_ROLLOUTS, policy)


def figures(controls):
    """Every second answer is 300 characters longer than the reference and wins at 0.8; the others are as much shorter
    and are tied. The baseline's answers are as long as the reference and tied."""
    tables = {
        "before": rollouts("before", [(0.5, 1000)] * ASKED),
        "after": rollouts("after", [(0.8, 1300), (0.5, 700)] * (ASKED // 2)),
    }
    table = compare(tables, {"alpaca": prompts()}, "before", controls=controls).table
    return {(row["metric"], row["policy"], row["baseline"]): row for row in table.to_pylist()}


@pytest.mark.long
def test_rates_worked_by_hand():
    # The logits are theta + t = log 4 and theta - t = 0, so that theta = log 2, and the rate at equal lengths is 2 / 3.
    found = figures({"alpaca": read_length_control(file(), "df_gamed.csv")})
    assert found["win_rate", "after", None]["value"] == pytest.approx((0.8 + 0.5) / 2)
    assert found["win_rate", "after", "before"]["value"] == pytest.approx(0.15)
    controlled = found["length_controlled_win_rate", "after", None]
    assert controlled["value"] == pytest.approx(2 / 3, abs=2e-3)
    assert controlled["low"] < controlled["value"] < controlled["high"]
    assert controlled["n"] == ASKED
    assert found["length_controlled_win_rate", "before", None]["value"] == pytest.approx(1 / 2, abs=1e-6)
    assert found["length_controlled_win_rate", "after", "before"]["value"] == pytest.approx(1 / 6, abs=2e-3)
    assert found["rewards/characters", "after", None]["value"] == 1000
    assert found["pass_rate", "after", None]["value"] == 1 / 2


def test_without_the_authors_file_there_is_a_win_rate_alone():
    found = figures({})
    assert ("win_rate", "after", None) in found
    assert not any(metric == "length_controlled_win_rate" for metric, _, _ in found)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "it has no rows with the column 'index'"),
        ("index,preference\n0,1", "it has no rows with the column 'std_delta_len'"),
        (file(preference="most"), "could not convert string to float"),
        (file(preference=2), "preferences must lie in"),
    ],
)
def test_a_file_of_another_shape_is_one_sentence(text, sentence):
    with pytest.raises(MistakeError, match=f"df_gamed.csv: length_control: {sentence}"):
        read_length_control(text, "df_gamed.csv")


def test_an_instruction_without_a_difficulty_is_one_sentence():
    control = read_length_control(file(), "df_gamed.csv")
    with pytest.raises(MistakeError, match=r"'alpaca': length_control has no difficulty of row 40 \(2 such rows\)"):
        check_difficulties(control, {"a": 1, "b": 40, "c": 41}, "alpaca")


def test_the_file_is_part_of_the_benchmark_by_its_content(tmp_path):
    data = tmp_path / "df_gamed.csv"
    data.write_text(file())
    mine = tmp_path / "mine.yaml"
    mine.write_text("extends: alpaca_eval_2\nname: mine\nlength_control: df_gamed.csv\n")
    options = {"extends": "quickstart", "benchmarks": [str(mine)], "engine.max_model_len": 4096}
    given = parse(EvaluationFile, json.dumps(options))
    first = add_digests(given).compared
    data.write_text(file(difficulty=1.0))
    assert first != add_digests(given).compared
    data.unlink()
    with pytest.raises(SpecError, match=r"benchmark 'mine': length_control = .*df_gamed.csv'?: no such file"):
        add_digests(given)


def test_length_is_controlled_where_answers_are_compared():
    with pytest.raises(SpecError, match=r"length_control is only for source.mode: pairwise"):
        parse(BenchmarkFile, '{"extends": "gsm8k", "length_control": "df_gamed.csv"}')
