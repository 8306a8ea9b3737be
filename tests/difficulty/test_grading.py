"""Rollouts become pass rates; what is too easy goes, what could not be scored is set aside."""

import pyarrow as pa
import pytest

from tasks.difficulty.grading import GradingError, compare, fill_ungraded, grade, select
from tasks.difficulty.spec import DifficultySpec
from tasks.difficulty.stopping import Bounds
from tasks.tables.parquet import build_table
from tasks.tables.schemas import PROMPTS, ROLLOUTS, SET_ASIDE, set_aside_row

ALL_SAMPLED = SET_ASIDE.empty_table()


def prompts(*names: str) -> pa.Table:
    return build_table(
        [
            {
                "prompt_id": name,
                "domain": "math",
                "source": "s",
                "messages": [{"role": "user", "content": name}],
                "verifier": "math",
                "ground_truth": '"1"',
                "metadata": "{}",
                "cluster": None,
                "row": 0,
            }
            for name in names
        ],
        PROMPTS,
        "prompts",
    )


def rollouts(**scores: list[float | None]) -> pa.Table:
    return build_table(
        [
            {
                "prompt_id": name,
                "sample": index,
                "response": "x",
                "num_tokens": 10 + index,
                "finish_reason": "stop",
                "score": score,
                "passed": None if score is None else score == 1,
                "rewards": None if score is None else [],
                "error": None if score is not None else "no judge",
                "policy": "initial",
            }
            for name, values in scores.items()
            for index, score in enumerate(values)
        ],
        ROLLOUTS,
        "rollouts",
    )


def test_the_pass_rate_counts_passes_and_the_mean_score_counts_points_of_the_judged_rollouts():
    graded, aside = grade(prompts("a", "b"), rollouts(b=[1.0, 0.0, None, 1.0], a=[0.5, 0.0]), ALL_SAMPLED)
    rows = graded.to_pylist()
    assert [(row["prompt_id"], row["pass_rate"], row["mean_score"], row["num_rollouts"]) for row in rows] == [
        ("a", 0.0, 0.25, 2),
        ("b", 2 / 3, 2 / 3, 3),
    ]
    assert rows[0]["mean_tokens"] == 10.5
    assert aside.num_rows == 0


def test_a_prompt_without_a_judged_rollout_is_set_aside_and_not_graded_zero():
    graded, aside = grade(prompts("a", "b", "c"), rollouts(a=[1.0], b=[None, None]), ALL_SAMPLED)
    assert graded.column("prompt_id").to_pylist() == ["a"]
    assert {row["value"]: row["reason"] for row in aside.to_pylist()} == {
        "b": "no rollout could be scored: no judge",
        "c": "no rollout could be scored: none was sampled",
    }


def test_five_of_eight_is_too_easy_because_the_bound_is_strict():
    graded, _ = grade(
        prompts("four", "five"), rollouts(four=[1.0] * 4 + [0.0] * 4, five=[1.0] * 5 + [0.0] * 3), ALL_SAMPLED
    )
    kept = select(graded, DifficultySpec().bounds)
    assert kept.column("prompt_id").to_pylist() == ["four"]


def test_nothing_left_is_an_error_that_says_how_far_off_it_is():
    graded, _ = grade(prompts("a"), rollouts(a=[1.0]), ALL_SAMPLED)
    with pytest.raises(GradingError, match=r"below 62\.5% .*those of 1 prompts lie between 1 and 1"):
        select(graded, Bounds())


def test_nothing_graded_at_all_is_an_error_too():
    graded, _ = grade(prompts("a"), rollouts(a=[None, None]), ALL_SAMPLED)
    with pytest.raises(GradingError, match="no prompt has a scored rollout"):
        select(graded, Bounds())


def test_rollouts_of_other_prompts_are_an_error():
    with pytest.raises(GradingError, match="not among the prompts"):
        grade(prompts("a"), rollouts(z=[1.0]), ALL_SAMPLED)


def test_a_prompt_that_was_set_aside_before_sampling_is_not_set_aside_again():
    too_long = set_aside_row("difficulty", "length", "s", 0, "too long", "b", prompt_id="b")
    _, aside = grade(prompts("a", "b", "c"), rollouts(a=[1.0]), build_table([too_long], SET_ASIDE, "too long prompts"))
    assert [(row["prompt_id"], row["kind"]) for row in aside.to_pylist()] == [("c", "unjudged")]


def test_with_a_lower_bound_what_is_never_solved_goes_as_well():
    graded, _ = grade(prompts("never", "once"), rollouts(never=[0.0] * 8, once=[1.0] + [0.0] * 7), ALL_SAMPLED)
    assert select(graded, Bounds(min_mean_score=0.0)).column("prompt_id").to_pylist() == ["once"]


def test_bounds_that_keep_nothing_are_a_mistake():
    with pytest.raises(ValueError, match=r"min_mean_score \(0\.7\) must be below max_mean_score \(0\.625\)"):
        DifficultySpec(min_mean_score=0.7)


@pytest.mark.parametrize("options", [DifficultySpec, Bounds])
def test_a_mean_score_above_1_is_refused_and_no_bound_is_null(options):
    with pytest.raises(ValueError, match="less than or equal to 1"):
        options(max_mean_score=1.01)
    graded, _ = grade(prompts("always"), rollouts(always=[1.0] * 8), ALL_SAMPLED)
    assert select(graded, Bounds(max_mean_score=None)).num_rows == 1
    assert options(max_mean_score=None).max_mean_score is None


def test_without_a_filter_all_prompts_that_fit_are_kept_and_have_no_pass_rate():
    too_long = set_aside_row("difficulty", "length", "s", 0, "too long", "b", prompt_id="b")
    table = fill_ungraded(prompts("a", "b", "c"), build_table([too_long], SET_ASIDE, "too long prompts"))
    assert [(row["prompt_id"], row["pass_rate"], row["num_rollouts"]) for row in table.to_pylist()] == [
        ("a", None, None),
        ("c", None, None),
    ]


def test_variants_are_compared_on_the_prompts_that_all_of_them_answered():
    every = prompts("a", "b", "c")
    first, _ = grade(every, rollouts(a=[1.0, 0.0], b=[0.0, 0.0]), ALL_SAMPLED)
    second, _ = grade(every, rollouts(b=[1.0, 1.0], c=[1.0, 1.0]), ALL_SAMPLED)
    compared = compare([first, second], ["initial", "thinking"])
    assert [(row["prompt_id"], row["variant"], row["pass_rate"]) for row in compared.to_pylist()] == [
        ("b", "initial", 0.0),
        ("b", "thinking", 1.0),
    ]
    with pytest.raises(GradingError, match="under all of initial, other"):
        compare([first.slice(0, 1), second], ["initial", "other"])
