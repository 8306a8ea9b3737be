"""Charts: what they show, what they say in words, and what they do without data."""

import math
import re

import pytest

from tasks.charts import (
    Series,
    Stack,
    add_styles,
    draw_curves,
    draw_histogram,
    draw_shares,
    draw_training_curves,
    mean_scores,
)
from tasks.charts.panels import find_first_bin, thin_points
from tasks.reporting.page import render
from tests.reporting.synthetic_run import report_inputs


@pytest.mark.long
def test_training_curves_name_what_no_step_recorded():
    fragment = draw_training_curves([{"step": 1, "reward": 0.1, "reward/math": 0.2}, {"step": 2, "reward": 0.4}])
    assert fragment.count("<svg") == 1
    assert "all domains: from 0.1 at 1 to 0.4 at 2" in fragment
    assert "math: from 0.2 at 1 to 0.2 at 1" in fragment
    assert (
        "Not recorded: rewards by name, validation, validation: pass@k, validation: majority@k, validation by domain,"
        in fragment
    )


def test_validation_has_its_benchmarks_at_its_versions_and_the_reward_at_every_step():
    aime = "validation/benchmarks/aime/pass_rate"
    rows = [
        {"step": 1, "reward": 0.1},
        {"step": 2, "reward": 0.2, "validation/version": 0, "validation/score": 0.3, aime: 0.05},
        {"step": 3, "reward": 0.4, "validation/version": 2, "validation/score": 0.5, aime: 0.25},
    ]
    fragment = draw_training_curves(rows)
    assert "score: from 0.3 at 0 to 0.5 at 2" in fragment
    assert "aime: from 0.05 at 0 to 0.25 at 2" in fragment
    assert "reward in training: from 0.1 at 1 to 0.4 at 3" in fragment


def test_the_reward_of_the_only_domain_is_drawn_once():
    rows = [{"step": step, "reward": 0.1 * step, "reward/math": 0.1 * step} for step in (1, 2)]
    fragment = draw_training_curves(rows)
    assert "all domains: from 0.1 at 1 to 0.2 at 2" in fragment
    assert "math" not in fragment.partition("Not recorded")[0]
    assert "math: from" in draw_training_curves([rows[0], {**rows[1], "reward/math": 0.3}])


def test_rewards_have_a_curve_each_by_name_and_none_for_their_spread():
    steps = [{"step": step, "reward": 0.5, "rewards/mine.f/mean": -1.5, "rewards/mine.f/std": 0.1} for step in (1, 2)]
    fragment = draw_training_curves(steps)
    assert "mine.f: from -1.5 at 1 to -1.5 at 2" in fragment
    assert "from 0.1 at" not in fragment


def test_validations_stand_at_the_version_that_was_validated():
    rows = [{"step": step, "reward": 0.5} for step in range(6)]
    rows[3] |= {"validation/version": 2.0, "validation/score": 0.25}
    rows[5] |= {"validation/version": 6.0, "validation/score": 0.75}
    assert "score: from 0.25 at 2 to 0.75 at 6" in draw_training_curves(rows)


def test_a_deck_carries_the_style():
    assert add_styles(draw_training_curves([])).startswith("<style>")


def test_gaps_stay_gaps():
    points = [(1, 1.0), (2, math.nan), (3, 2.0)]
    assert "from 1 at 1 to 2 at 3" in draw_curves("Loss", "nats", [Series("loss", points, "after")])
    assert "nothing was recorded" in draw_curves("Loss", "nats", [Series("loss", [(1, math.nan)], "after")])


def test_mean_scores_split_at_the_threshold():
    graded = report_inputs(per_source=20).graded
    rates = graded.column("mean_score").to_pylist()
    fragment = mean_scores(graded, 0.625)
    assert "dropped: too easy" in fragment
    assert f"0/8: {sum(rate == 0 for rate in rates)}" in fragment
    assert "dropped" not in mean_scores(graded, None)


@pytest.mark.parametrize(
    ("rate", "samples", "first"),
    [(0.625, 8, 5), (0.625, 4, 3), (0.625, 16, 10), (0.7, 10, 7), (1.0, 4, 4), (0.1, 3, 1)],
)
def test_the_line_stands_before_the_first_bar_of_dropped_prompts(rate, samples, first):
    assert find_first_bin(rate, samples) == first
    assert [passed for passed in range(samples + 1) if passed / samples < rate] == list(range(first))


def test_colours_are_themed_with_a_fallback():
    fragment = draw_shares("Parts", "prompts", ["a"], [Stack("one", [1.0], "blue"), Stack("two", [2.0], "orange")])
    assert "var(--chart-blue,#" in fragment
    assert "a: one 1, two 2" in fragment


def test_labels_are_text_not_markup_or_formulas():
    fragment = draw_histogram("<b>", "prompts", ["$a$", "<i>"], [Stack("s", [1, 2], "blue")], x_label="x")
    assert "<b>" not in fragment
    assert "<i>" not in fragment.replace('<i style="background', "")
    assert "$a$" in fragment


def test_a_long_curve_keeps_its_extremes_and_its_ends():
    points = [(float(i), 0.0) for i in range(20_000)]
    points[777], points[15_000], points[123] = (777.0, 9.0), (15_000.0, -9.0), (123.0, math.nan)
    thin = thin_points(points)
    assert len(thin) <= 302
    assert {points[0], points[-1], points[777], points[15_000]} <= set(thin)
    assert thin == sorted(thin)
    assert thin_points(points[:300]) == points[:300]


@pytest.mark.complete
@pytest.mark.long
def test_the_page_of_20_000_steps_stays_under_a_megabyte():
    inputs = report_inputs(per_source=20, steps=20_000)
    assert len(render(inputs).encode()) < 1_000_000


def test_the_labels_of_an_axis_differ_where_its_values_hardly_do():
    points = [(1, 0.9998), (2, 1.0009), (3, 1.0004)]
    fragment = draw_curves("Importance weight", "mean", [Series("weight", points, "after")], from_zero=False)
    labels = re.findall(r">(1(?:\.\d+)?|0\.9\d+)</text>", fragment)
    assert len(labels) > 3
    assert len(set(labels) - {"1"}) >= len(labels) - 2, labels  # the step 1 as well
