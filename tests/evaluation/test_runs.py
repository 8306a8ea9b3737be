"""Runs that exist are compared on the prompts that their policies share, with their options side by side."""

import json
import re
from functools import partial

import pytest
from click.testing import CliRunner

from tasks.commands.group import rlvr
from tasks.evaluation.runs import compare_runs
from tasks.evaluation.spec import ComparedBenchmark
from tasks.failures import MistakeError
from tasks.tables.parquet import build_table, write_table
from tasks.tables.schemas import EVALUATION, EVALUATION_PROMPTS, EVALUATION_ROLLOUTS
from tests.evaluation.test_policy_comparison import prompts, rollouts


@pytest.fixture
def written(tmp_path):
    """Writes a run's folder, whose policy `after` has these scores on held-out prompts."""

    def write(name, options=None, **scores):
        folder = tmp_path / name
        folder.mkdir()
        asked = [{"benchmark": "heldout", **row} for row in prompts(**dict.fromkeys(scores, "math")).to_pylist()]
        answers = [row | {"policy": "after"} for row in rollouts("after", **scores).to_pylist()]
        for table, rows, schema in (
            ("evaluation_prompts", asked, EVALUATION_PROMPTS),
            ("evaluation_rollouts", answers, EVALUATION_ROLLOUTS),
        ):
            write_table(folder / f"{table}.parquet", build_table(rows, schema, table), schema)
        (folder / "summary.json").write_text(json.dumps({"options": {"training": options or {}}}))
        return folder

    return write


def test_runs_are_compared_with_the_first_on_the_prompts_that_they_share(written):
    first, second = written("first", a=[0, 0], b=[1, 0], c=[1, 1]), written("second", b=[1, 1], c=[1, 1], d=[0, 0])
    found = compare_runs([first, second]).comparisons["second", "first"]["all"]
    assert (found.baseline_rate, found.rate, found.gain, found.n) == (3 / 4, 1, 1 / 4, 2)


def test_the_command_prints_options_and_rates(written):
    runs = [written("first", {"steps": 4}, a=[0], b=[1]), written("second", {"steps": 8}, a=[1], b=[1])]
    done = CliRunner().invoke(rlvr, ["compare", *map(str, runs)])
    assert done.exit_code == 0, done.output
    assert re.search(r"^first  training\.steps = 4$", done.output, re.MULTILINE)
    assert re.search(r"^second  training\.steps = 8$", done.output, re.MULTILINE)
    assert re.search(r"^all +first +50\.0% +2$", done.output, re.MULTILINE)
    assert re.search(r"^ +second +100\.0% +\+50\.0 \(", done.output, re.MULTILINE)
    assert "\nwarning     policy 'second': responses are cut off at max_tokens (held out 100.0%, " in done.output
    assert re.search(r"^benchmark .* p +detectable +prompts$", done.output, re.MULTILINE)


def test_the_only_domain_has_no_rows_of_its_own(written):
    runs = [written("first", a=[0], b=[1]), written("second", a=[1], b=[1])]
    done = CliRunner().invoke(rlvr, ["compare", *map(str, runs)])
    assert re.search(r"^all +first", done.output, re.MULTILINE)
    assert not re.search(r"^math ", done.output, re.MULTILINE)


def benchmark_run(tmp_path, name, scores, classes=(0, 0, 1), options=None):
    """A run whose policy answered `sums`, three samples to each question, with the options in the footer."""
    folder = tmp_path / name
    folder.mkdir()
    level = {"metadata": json.dumps({"columns": {"level": 2}})}
    asked = [{"benchmark": "sums", **row, **level} for row in prompts(**dict.fromkeys(scores, "math")).to_pylist()]
    parts = partial(rollouts, "after", 10, "sums", lambda score: [{"name": "style", "value": score / 2}])
    answers = [row | {"answer_class": classes[row["sample"]]} for row in parts(**scores).to_pylist()]
    for table, rows, schema in (
        ("evaluation_prompts", asked, EVALUATION_PROMPTS),
        ("evaluation_rollouts", answers, EVALUATION_ROLLOUTS),
    ):
        write_table(folder / f"{table}.parquet", build_table(rows, schema, table), schema)
    benchmarks = [ComparedBenchmark(name="sums", **options or {}).model_dump() | {"of_another_version": 1}]
    metadata = {"spec": {"benchmarks": {"benchmarks": benchmarks}}}
    write_table(folder / "evaluation.parquet", EVALUATION.empty_table(), EVALUATION, metadata)
    return folder


def test_majorities_margins_and_means_of_rewards_stand_next_to_pass_rates(tmp_path):
    options = {"majority": [3], "margin": 1.0, "by": ["level"], "length_control": str(tmp_path / "gone.csv")}
    scores = {f"q{number}": [1, 1, 0] for number in range(30)}
    first = benchmark_run(tmp_path, "first", scores, options=options)
    second = benchmark_run(tmp_path, "second", scores | {"q0": [0, 0, 1]}, options={"majority": [2]})
    done = CliRunner().invoke(rlvr, ["compare", str(first), str(second)])
    assert done.exit_code == 0, done.output
    assert re.search(
        r"^sums: no length-controlled win rate: .*gone.csv: length_control cannot be read", done.output, re.M
    )
    assert re.search(r"^ +second +65\.6% .* yes *$", done.output, re.MULTILINE)
    assert re.search(r"^sums +majority@3 +first +1\.000 +30$", done.output, re.MULTILINE)
    assert re.search(r"^ +second +0\.967 +-0\.033 \(", done.output, re.MULTILINE)
    assert re.search(r"^sums +rewards/style +first +0\.333 +30$", done.output, re.MULTILINE)
    assert re.search(r"^sums, level 2 +pass_rate +first +0\.667 +30$", done.output, re.MULTILINE)
    assert "mean_score" not in done.output, "it is the pass rate"
    assert "majority@2" not in done.output, "the first run's options count"


def test_what_cannot_be_compared_is_one_sentence(written, tmp_path):
    first, second = written("first", a=[0]), written("second", b=[0])
    for runs, sentence in (
        ([first, second], "no prompt was answered in all of first, second"),
        ([first, first], "must have different folders, got first, first"),
        ([first, tmp_path], r"contains no evaluation_rollouts\.parquet"),
    ):
        with pytest.raises(MistakeError, match=sentence):
            compare_runs(runs)
    with pytest.raises(MistakeError, match="no policy is called 'before'; there are: after"):
        compare_runs([first, second], "before")
    assert isinstance(CliRunner().invoke(rlvr, ["compare", str(first)]).exception, MistakeError)
