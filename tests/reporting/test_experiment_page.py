"""The page of an experiment, on figures that are made up."""

import math
import re

import pytest

from tasks import charts
from tasks.reporting import experiment
from tasks.reporting.experiment import format_lines, make_final_rows
from tasks.tables.parquet import build_table
from tasks.tables.schemas import EVALUATION
from tasks.tables.single_domain import drop_repeats

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
    return build_table(rows, EVALUATION, "made up")


TABLE = table(
    figure("slow", 0.5), figure("fast", 0.7), figure("fast", 0.2, baseline="slow"), figure("fast", 9.0, metric="length")
)


COMPARED = {
    "policy": "fast",
    "baseline": "slow",
    "benchmark": "sums",
    "baseline_rate": 0.5,
    "rate": 0.7,
    "n": 1200,
    "gain": 0.2,
    "gain_low": 0.1,
    "gain_high": 0.3,
    "p_value": 0.01,
    "adjusted_p_value": 0.02,
    "detectable": 0.14,
    "maintained": True,
    "between_low": None,
    "between_high": None,
}
COST = {"seconds": 3600.0, "core_hours": 2.0, "gpu_hours": 0.5, "judging": 0.0, "total": 4.0}


def render(name, variants, metrics, table, comparisons=(COMPARED,)):
    """The page of variants with one run each, or with a list of runs."""
    runs = {variant: rows if rows and isinstance(rows[0], list) else [rows] for variant, rows in metrics.items()}
    summaries = {variant: [{"cost": COST} for _ in rows] for variant, rows in runs.items()}
    return experiment.render(name, variants, runs, table, comparisons, summaries)


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
    (row,) = make_final_rows(TABLE, [COMPARED])
    assert row["n"] == 40
    assert {name: sorted(figures) for name, figures in row["policies"].items()} == {
        "slow": ["rate"],
        "fast": ["compared", "difference", "rate"],
    }


def test_a_line_has_both_rates_and_the_corrected_p_value():
    compared = {**COMPARED, "benchmark": "all"}
    assert format_lines([compared]) == [
        "held out: fast 70.0%, slow 50.0%, +20.0 points (+10.0 to +30.0, 95%), p = 0.02, 1,200 prompts, "
        "which detect 14.0 points or more"
    ]
    [line] = format_lines([{**compared, "between_low": -0.05, "between_high": 0.45}])
    assert "+20.0 points (+10.0 to +30.0, 95%) over prompts, (-5.0 to +45.0, 95%) over runs, p = 0.02" in line


def test_the_end_has_corrected_p_values_maintained_benchmarks_rewards_and_the_work():
    rates = [figure("slow", 0.5), figure("fast", 0.7), figure("fast", 0.2, baseline="slow"), figure("initial", 0.4)]
    rewards = [figure(name, 0.25, metric="rewards/tidy") for name in ("slow", "fast", "initial")]
    against = [figure("initial", -0.1, baseline="slow")]
    compared = [COMPARED, {**COMPARED, "policy": "initial", "maintained": None}]
    metrics = {name: [{"step": 0, "seconds": 1800.0, "generated_tokens": 12_345}] for name in VARIANTS}
    page = render("rates", VARIANTS, metrics, table(*rates, *rewards, *against), compared)
    assert "p = 0.02, maintained" in page
    assert "<td>tidy</td>" in page
    assert "0.250 " in page
    assert "40.0%" in page, "the initial checkpoint"
    assert "30 min 00 s" in page
    assert "12,345" in page
    assert "4.00 by the given prices" in page
    assert "another seed of training would give other checkpoints" in page


@pytest.mark.long
def test_the_runs_of_a_variant_are_one_curve_with_their_range_and_an_interval_over_runs():
    runs = {"slow": [metrics(0.1), metrics(0.3)], "fast": [metrics(0.5), metrics(0.5)]}
    page = render("seeds", VARIANTS, runs, TABLE, [{**COMPARED, "between_low": -0.05, "between_high": 0.45}])
    assert "slow: from 0.25 at 0 to 0.45 at 2; fast: from 0.25 at 0 to 0.75 at 2" in page
    assert "over runs: -5.0 points to +45.0 points" in page
    assert "2 variants with 2 seeds each" in page


def test_a_variant_links_to_its_reports_and_the_page_begins_with_the_verdict():
    compared = {**COMPARED, "benchmark": "all"}
    summaries = {name: [{"cost": COST}] for name in VARIANTS}
    reports = {"slow": ["../../one/report.html"], "fast": ["../../two/report.html", "../../three/report.html"]}
    page = experiment.render(
        "rates", VARIANTS, {name: [[]] for name in VARIANTS}, TABLE, [compared], summaries, reports
    )
    links = re.findall('href="([^#"]+)"', page)
    assert links == ["../../index.html", *reports["slow"], *reports["fast"]]
    head = page.partition("</header>")[0]
    assert "held out: fast 70.0%, slow 50.0%, +20.0 points" in head
    alone = experiment.render("rates", VARIANTS, {name: [[]] for name in VARIANTS}, TABLE, [compared], summaries)
    assert not re.findall('href="([^#"]+)"', alone), "the page of a cluster has no neighbours"


def test_a_step_without_a_reward_is_a_gap_and_a_version_without_validation_is_none(monkeypatch):
    drawn = {}
    monkeypatch.setattr(charts, "draw_curves", lambda title, _, series, **__: drawn.update({title: series}) or "")
    rows = metrics(0.5)
    del rows[1]["reward"]
    experiment._draw_charts({"slow": [rows]})
    [(first, gap, last)] = [one.points for one in drawn["Reward in training"]]
    assert (first, gap[0], last) == ((1.0, 0.1), 2.0, (3.0, 0.7))
    assert math.isnan(gap[1])
    assert [one.points for one in drawn["Validation: sums"]] == [[(0.0, 0.25), (2.0, 0.75)]]


def test_the_range_of_several_runs_has_the_gap_of_their_curve():
    first, second = metrics(0.5), metrics(0.7)
    del first[1]["reward"]
    drawn = "".join(experiment._draw_charts({"slow": [first, second]}))
    assert drawn.count("<svg") >= 2, "it can be drawn"


def test_a_domain_that_has_all_prompts_is_shown_once():
    def rows(benchmark):
        return [{**figure(name, value), "benchmark": benchmark} for name, value in (("slow", 0.5), ("fast", 0.7))]

    only = drop_repeats(table(*rows("all"), *rows("math"), figure("slow", 0.1), figure("fast", 0.1)))
    assert [row["benchmark"] for row in make_final_rows(only, [])] == ["all", "sums"]
    two = table(*rows("all"), *rows("math"), *rows("code"))
    assert drop_repeats(two) == two, "neither of two domains has all prompts"
