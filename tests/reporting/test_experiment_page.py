"""The page of an experiment, on figures that are made up."""

import pytest

from tasks.reporting.experiment import final_rows, lines, render
from tasks.tables.parquet import table_from_rows
from tasks.tables.schemas import EVALUATION

VARIANTS = {
    "slow": {"training": {"steps": 4, "optimizer": {"learning_rate": 0.1}}},
    "fast": {"training": {"steps": 4, "optimizer": {"learning_rate": 0.3}}},
}
SCORE = "validation/benchmarks/sums/score"


def figure(policy, value, baseline=None, metric="pass_rate"):
    row = {"benchmark": "sums", "metric": metric, "policy": policy, "baseline": baseline}
    tested = {} if baseline is None else {"p_value": 0.001, "detectable": 0.125}
    return {**row, "value": value, "low": value - 0.1, "high": value + 0.1, "n": 40, **tested}


def table(*rows):
    return table_from_rows(rows, EVALUATION, "made up")


TABLE = table(
    figure("slow", 0.5), figure("fast", 0.7), figure("fast", 0.2, baseline="slow"), figure("fast", 9.0, metric="length")
)


def bounds(score):
    return {f"{SCORE[:-5]}low": score - 0.1, f"{SCORE[:-5]}high": score + 0.1}


def metrics(rise):
    return [
        {"step": 1, "reward": 0.1},
        {"step": 2, "reward": 0.2, "validation/version": 0, SCORE: 0.25, **bounds(0.25)},
        {"step": 3, "reward": 0.2 + rise, "validation/version": 2, SCORE: 0.25 + rise, **bounds(0.25 + rise)},
    ]


def timed(hours, entropy):
    """Metrics of a run whose steps take some hours, with two domains."""
    common = {"entropy": entropy, "probability": 0.9, "reward/math": 0.5, "reward/code": 0.25}
    return [{**row, **common, "seconds": 3600 * hours * row["step"]} for row in metrics(0.5)]


@pytest.mark.long
def test_a_page_has_the_options_that_differ_the_curves_and_the_differences():
    page = render("rates", VARIANTS, {"slow": metrics(0.125), "fast": metrics(0.5)}, TABLE)
    assert "training.optimizer.learning_rate = 0.3" in page
    assert "training.steps" not in page, "it is the same in both"
    assert "slow: from 0.25 at 0 to 0.375 at 2; fast: from 0.25 at 0 to 0.75 at 2" in page
    assert "Reward in training" in page
    assert "70.0%" in page
    assert "+20.0 points (+10.0 to +30.0)" in page
    assert "detectable: 12.5 points" in page


@pytest.mark.long
def test_variants_are_compared_over_time_and_by_entropy_probability_and_domain():
    page = render("speed", VARIANTS, {"slow": timed(2.0, 0.5), "fast": timed(1.0, 0.25)}, TABLE)
    assert "Curves over hours of work. slow: from 0.25 at 4 to 0.75 at 6; fast: from 0.25 at 2 to 0.75 at 3" in page
    assert "slow: from 0.5 at 1 to 0.5 at 3; fast: from 0.25 at 1 to 0.25 at 3" in page
    assert all(title in page for title in ("Entropy", "Probability", "Reward: code", "Reward: math"))


def test_a_variant_that_is_often_truncated_is_a_warning():
    rates = [figure("slow", 0.5), figure("fast", 0.7)]
    shares = [figure("slow", 0.05, metric="truncated"), figure("fast", 0.06, metric="truncated")]
    page = render("rates", VARIANTS, {}, table(*rates, *shares))
    assert "policy &#39;fast&#39;: responses are cut off at max_tokens (sums 6.0%)" in page
    assert "policy &#39;slow&#39;" not in page


def test_names_that_a_user_gives_are_escaped():
    page = render("<b>", {"<i>": {}, "slow": {}}, {}, table(figure("<i>", 0.5), figure("slow", 0.5)))
    assert "<b>" not in page
    assert "<i>" not in page.partition("</style>")[2].replace('<i style="', "")


def test_a_benchmark_has_a_row_and_the_baseline_no_difference():
    (row,) = final_rows(TABLE)
    assert row["n"] == 40
    assert {name: sorted(figures) for name, figures in row["variants"].items()} == {
        "slow": ["rate"],
        "fast": ["difference", "rate"],
    }


def test_a_line_has_both_rates_and_the_corrected_p_value():
    compared = {"policy": "fast", "baseline": "slow", "benchmark": "all", "baseline_rate": 0.5, "rate": 0.7, "n": 1200}
    compared |= {
        "gain": 0.2,
        "gain_low": 0.1,
        "gain_high": 0.3,
        "p_value": 0.01,
        "adjusted_p_value": 0.02,
        "detectable": 0.14,
    }
    assert lines([compared]) == [
        "held out: fast 70.0%, slow 50.0%, +20.0 points (+10.0 to +30.0, 95%), p = 0.02, 1,200 prompts, "
        "which detect 14.0 points or more"
    ]
