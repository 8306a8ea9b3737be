"""IFEval's four accuracies by hand, from the rewards that the verifier gives in mode `both`."""

import json

import pytest

from tasks.evaluation.comparison import compare
from tasks.rollouts.rollout_cache import Verdict
from tasks.tables.parquet import build_table
from tasks.tables.schemas import EVALUATION_ROLLOUTS, PROMPTS
from tasks.verifiers import instructions
from tasks.verifiers.scores import Score

NO_COMMA, SUN, RAIN = (
    ("punctuation:no_comma", {}),
    ("keywords:existence", {"keywords": ["sun"]}),
    ("keywords:forbidden_words", {"forbidden_words": ["rain"]}),
)
ASKED = {"one": [NO_COMMA], "three": [NO_COMMA, SUN, RAIN]}
FOUR = ("pass_rate", "prompt_loose", "instruction_strict", "instruction_loose")


def truth(prompt, mode):
    ids, arguments = zip(*ASKED[prompt], strict=True)
    return {"instruction_ids": list(ids), "kwargs": list(arguments), "mode": mode}


def prompts(mode):
    rows = [
        {
            "prompt_id": name,
            "domain": "precise_if",
            "source": "ifeval",
            "row": 0,
            "messages": [{"role": "user", "content": name}],
            "verifier": "precise_if",
            "ground_truth": json.dumps(truth(name, mode)),
            "metadata": "{}",
            "cluster": None,
        }
        for name in ASKED
    ]
    return build_table(rows, PROMPTS, "prompts")


def figures(mode="both", **responses):
    """Figures of one policy on a benchmark, by metric; a response of None could not be scored."""
    scores = {
        (name, sample): Score.from_error("away") if text is None else instructions.judge(text, truth(name, mode), None)
        for name, texts in responses.items()
        for sample, text in enumerate(texts)
    }
    rows = [
        {
            "benchmark": "ifeval",
            "prompt_id": name,
            "sample": sample,
            "response": "",
            "num_tokens": 1,
            "finish_reason": "stop",
            "policy": "tuned",
            "answer": None,
            "answer_class": None,
            **Verdict.from_score(score)._asdict(),
        }
        for (name, sample), score in scores.items()
    ]
    answered = {"tuned": build_table(rows, EVALUATION_ROLLOUTS, "rollouts")}
    table = compare(answered, {"ifeval": prompts(mode)}, "tuned").table
    return {row["metric"]: row["value"] for row in table.to_pylist()}


def test_a_case_worked_by_hand():
    # A comma in the first line is forgiven loosely; of three instructions one more is broken in either way.
    rates = figures(one=["Sure, here:\nfine"], three=["Sure, rain:\nsun and rain"])
    assert [rates[name] for name in FOUR] == pytest.approx([0, 1 / 2, 1 / 4, 3 / 4])


def test_samples_of_a_prompt_are_averaged_before_prompts_and_instructions_are():
    rates = figures(one=["fine"], three=["sun", "no sun, no rain"])
    assert rates["pass_rate"] == (1 + 1 / 2) / 2
    assert rates["instruction_strict"] == pytest.approx((1 + (3 + 1) / 2) / 4)


def test_what_could_not_be_judged_is_left_out():
    rates = figures(one=["fine", None], three=[None])
    assert [rates[name] for name in FOUR] == [1, 1, 1, 1]


def test_other_modes_have_no_rates_of_instructions():
    assert not {"prompt_loose", "instruction_strict"} & set(figures("strict", one=["fine"]))
