"""What the responses of an evaluation took, by benchmark and policy."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from tasks.reporting.page import render
from tasks.reporting.sampling_costs import compute_sampling_costs
from tasks.tables.schemas import StageSummary
from tests.reporting.reader import Reader
from tests.reporting.synthetic_run import report_inputs


def took(name, generated, seconds, responses=100):
    return {
        "name": name,
        "responses": responses,
        "tokens": 20 * responses,
        "generated_responses": generated,
        "generated_tokens": 20 * generated,
        "engine_seconds": seconds,
    }


def evaluation(policy, *benchmarks, gpus=2.0, run="this"):
    facts = {"benchmarks": list(benchmarks)}
    return StageSummary(f"evaluation: {policy}", datetime.now(UTC), 500.0, "", facts, run=run, cores=1.0, gpus=gpus)


COMPARED = {
    "comparisons": [],
    "benchmarks": [{"name": "gsm8k", "licence": "mit", "asked": 100, "rows": 100, "margin": None}],
}
"""The facts of the comparing stage, which have no part in it."""
SUMMARIES = [
    evaluation("before", took("heldout", 100, 90.0), took("gsm8k", 0, 0.0)),
    evaluation("after", took("heldout", 100, 180.0, 100), took("gsm8k", 40, 36.0), run="earlier"),
    StageSummary("comparison", datetime.now(UTC), 1.0, "", COMPARED),
]


def test_the_price_is_that_of_the_engines_seconds_on_its_gpus():
    """180 s of 2 GPUs are 0.1 GPU hours, and 36 s are 0.02."""
    rows = compute_sampling_costs(SUMMARIES, "this", 3.0)
    assert [(row["benchmark"], row["policy"], row["price"], row["origin"]) for row in rows] == [
        ("heldout", "before", pytest.approx(0.15), "this run"),
        ("heldout", "after", pytest.approx(0.3), "an earlier run"),
        ("gsm8k", "before", None, "from the cache"),
        ("gsm8k", "after", pytest.approx(0.06), "an earlier run, and from the cache"),
    ]


def test_without_gpus_or_their_price_there_is_no_price():
    assert {row["price"] for row in compute_sampling_costs(SUMMARIES)} == {None}
    assert (
        compute_sampling_costs([evaluation("before", took("heldout", 100, 90.0), gpus=0.0)], "this", 3.0)[0]["price"]
        is None
    )


@pytest.mark.long
def test_the_report_has_them_in_a_table():
    inputs = report_inputs()
    page = render(replace(inputs, summaries=[*inputs.summaries, *SUMMARIES], price_per_gpu_hour=3.0))
    reader = Reader(page)
    assert reader.row("heldout", "after") == [
        *("heldout", "after", "100", "2,000", "100", "2,000", "3 min 00 s", "0.30", "an earlier run")
    ]
    assert reader.row("gsm8k", "before")[2:] == ["100", "2,000", "0", "0", *"\N{EN DASH}\N{EN DASH}", "from the cache"]
    assert "Tokens and time" not in render(inputs)
