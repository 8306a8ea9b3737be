"""Comparisons of policies are paired by prompt, and their figures are those worked by hand."""

import json

import numpy as np
import pyarrow as pa
import pytest

from tasks.evaluation.comparison import Evaluation, compare
from tasks.evaluation.spec import ComparedBenchmark
from tasks.statistics.intervals import estimate_run_gain
from tasks.tables.parquet import build_table, validate
from tasks.tables.schemas import EVALUATION, EVALUATION_ROLLOUTS, PROMPTS


def prompts(**domains: str) -> pa.Table:
    rows = [
        {
            "prompt_id": name,
            "domain": domain,
            "source": "test",
            "messages": [{"role": "user", "content": name}],
            "verifier": "chat_open",
            "ground_truth": "null",
            "metadata": "{}",
            "cluster": None,
            "row": 0,
        }
        for name, domain in domains.items()
    ]
    return build_table(rows, PROMPTS, "prompts")


def rollouts(
    policy: str, tokens: int = 10, benchmark="heldout", /, parts=lambda _: [], **scores: list[float | None]
) -> pa.Table:
    rows = [
        {
            "benchmark": benchmark,
            "prompt_id": name,
            "sample": i,
            "response": "words",
            "num_tokens": tokens + i,
            "finish_reason": "length" if i == 0 else "stop",
            "score": score,
            "passed": None if score is None else score == 1,
            "rewards": None if score is None else parts(score),
            "detail": "expected 42" if score == 0 else None,
            "error": None if score is not None else "judge unreachable",
            "policy": policy,
            "answer": None,
            "answer_class": None,
        }
        for name, listed in scores.items()
        for i, score in enumerate(listed)
    ]
    return build_table(rows, EVALUATION_ROLLOUTS, policy)


def of_two(before: pa.Table, after: pa.Table, prompts: pa.Table) -> Evaluation:
    """The comparison of the trained policy with the initial checkpoint on held-out prompts."""
    return compare({"before": before, "after": after}, {"heldout": prompts}, "before")


def cell(table: pa.Table, benchmark: str, metric: str, policy: str, baseline: str | None = None) -> dict:
    (row,) = [
        row
        for row in table.to_pylist()
        if (row["benchmark"], row["metric"], row["policy"], row["baseline"]) == (benchmark, metric, policy, baseline)
    ]
    return row


def gains(evaluation: Evaluation) -> dict:
    """The comparisons of the trained policy with the initial checkpoint, by benchmark."""
    return evaluation.comparisons["after", "before"]


WORKED = {
    "before": rollouts("base", 10, a=[1, 0], b=[0, 0], c=[1, 1], d=[0, 0]),
    "after": rollouts("tuned", 20, a=[1, 1], b=[0, 1], c=[1, 0], d=[0, 0]),
    "prompts": prompts(a="math", b="math", c="precise_if", d="precise_if"),
}


def test_figures_equal_a_case_worked_by_hand():
    found = of_two(**WORKED)
    everything, math, instructions = (gains(found)[name] for name in ("all", "math", "precise_if"))
    assert (everything.baseline_rate, everything.rate, everything.gain, everything.n) == (3 / 8, 4 / 8, 1 / 8, 4)
    assert (math.baseline_rate, math.rate, math.gain, math.n) == (1 / 4, 3 / 4, 1 / 2, 2)
    assert (instructions.baseline_rate, instructions.rate, instructions.gain) == (1 / 2, 1 / 4, -1 / 4)
    # Differences .5, .5, -.5, 0, as of the pseudo-prompt that tests/statistics/test_intervals.py works by hand.
    assert everything.p_value == pytest.approx(0.710, abs=0.001)
    assert cell(found.table, "all", "pass@2", "before")["value"] == 2 / 4
    assert cell(found.table, "all", "pass@2", "after")["value"] == 3 / 4
    assert cell(found.table, "all", "mean_tokens", "before")["value"] == 10.5
    assert cell(found.table, "all", "mean_tokens", "after", "before")["value"] == 10
    assert cell(found.table, "all", "truncated", "after")["value"] == 0.5


def test_a_reward_for_the_format_makes_no_wrong_answer_right():
    # A format reward of a fifth of the score: the policy learns the format, and not one answer.
    def named(score):
        values = {"math": 0.0, "mine.in_tags": 5 * score, "mine.never_applies": None}
        return [{"name": name, "value": value} for name, value in values.items()]

    found = of_two(
        rollouts("base", parts=named, a=[0, 0.2], b=[0, 0]),
        rollouts("tuned", parts=named, a=[0.2, 0.2], b=[0.2, 0]),
        prompts(a="math", b="math"),
    )
    assert (gains(found)["all"].baseline_rate, gains(found)["all"].rate) == (0, 0)
    assert cell(found.table, "all", "pass@2", "after")["value"] == 0
    assert cell(found.table, "all", "mean_score", "after")["value"] == pytest.approx(0.15)
    assert cell(found.table, "all", "rewards/mine.in_tags", "before")["value"] == pytest.approx(0.25)
    assert cell(found.table, "all", "rewards/mine.in_tags", "after", "before")["value"] == pytest.approx(0.5)
    assert cell(found.table, "math", "rewards/math", "after")["value"] == 0
    assert "rewards/mine.never_applies" not in found.table.column("metric").to_pylist()


def test_pass_at_k_is_compared_for_every_k_that_both_policies_have_samples_for():
    # Before: one of four (pairs: 3/6, triples: 3/4), and two of three; after: two of four (5/6, 1), and none of three.
    found = of_two(
        rollouts("base", a=[0, 1, 0, 0], b=[1, 1, 0, None]),
        rollouts("tuned", a=[1, 0, 0, 1], b=[0, 0, 0]),
        prompts(a="math", b="code"),
    )
    figures = {
        (row["benchmark"], row["metric"], "gain" if row["baseline"] else row["policy"]): (row["value"], row["n"])
        for row in found.table.to_pylist()
        if row["metric"].startswith("pass@")
    }
    assert {metric for _, metric, _ in figures} == {"pass@2", "pass@3", "pass@4"}
    assert ("code", "pass@4", "before") not in figures, "no prompt has four judged samples"
    assert figures["all", "pass@2", "before"] == pytest.approx(((1 / 2 + 1) / 2, 2))
    assert figures["all", "pass@2", "gain"] == pytest.approx(((5 / 6 - 1 / 2 - 1) / 2, 2))
    assert figures["all", "pass@3", "after"] == (1 / 2, 2)
    assert figures["all", "pass@4", "after"] == (1, 1), "b has three judged samples and is left out"


def test_each_difference_has_a_p_value_and_the_smallest_that_is_detected_and_no_policy_has():
    found = of_two(
        rollouts("base", a=[0, 1, 0, 0], b=[1, 1, 0, 0], c=[0, 0, 1, 0]),
        rollouts("tuned", a=[1, 0, 1, 1], b=[1, 0, 1, 0], c=[1, 1, 1, 0]),
        prompts(a="math", b="code", c="math"),
    )
    for row in found.table.to_pylist():
        if row["benchmark"] == "code":  # one prompt
            assert row["detectable"] is None
        elif row["baseline"] is None:
            assert (row["p_value"], row["detectable"]) == (None, None)
        else:
            assert (row["p_value"] < 0.05) == (row["low"] > 0 or row["high"] < 0), row
            assert 0 <= row["detectable"] <= (1 if row["metric"] != "mean_tokens" else 100)
    gain = gains(found)["all"]
    row = cell(found.table, "all", "pass_rate", "after", "before")
    assert (row["low"], row["high"], row["p_value"], row["detectable"]) == (
        *(gain.gain_low, gain.gain_high),
        *(gain.p_value, gain.detectable),
    )


def test_the_same_verdicts_have_the_same_interval_under_every_name():
    def verdict(score):
        return [{"name": "math", "value": float(score)}, {"name": "mine.penalty", "value": -2.0 * score}]

    found = of_two(
        rollouts("base", parts=verdict, a=[0, 0], b=[0, 0], c=[1, 0]),
        rollouts("tuned", parts=verdict, a=[1, 0], b=[0, 0], c=[1, 1]),
        prompts(a="math", b="math", c="math"),
    )
    for key in (("before",), ("after",), ("after", "before")):
        passed, *others = (cell(found.table, "all", name, *key) for name in ("pass_rate", "mean_score", "rewards/math"))
        for other in others:
            assert other | {"metric": "pass_rate"} == passed
    assert cell(found.table, "all", "rewards/mine.penalty", "after")["low"] < -1, "no rate: a plain t interval"


def test_domains_of_the_users_are_benchmarks_after_the_known_ones():
    found = of_two(
        rollouts("base", a=[0], b=[1], c=[1]),
        rollouts("tuned", a=[1], b=[1], c=[1]),
        prompts(a="poetry", b="chat", c="math"),
    )
    assert list(gains(found)) == ["all", "math", "chat", "poetry"]


def test_unjudged_rollouts_are_left_out_in_pairs_and_counted():
    found = of_two(
        rollouts("base", a=[1, None], b=[None, None], c=[0, 0]),
        rollouts("tuned", a=[1, 0], b=[1, 1], c=[1, 1]),
        prompts(a="math", b="math", c="math", d="math"),
    )
    assert (found.unjudged, found.unpaired) == ({"before": 3, "after": 0}, 2)
    assert gains(found)["all"].n == 2
    assert (gains(found)["all"].baseline_rate, gains(found)["all"].rate) == (0.5, 0.75)
    assert cell(found.table, "all", "pass@2", "before")["n"] == 1, "pass@2 needs both samples judged"


def test_equal_policies_gain_nothing_and_the_interval_says_so():
    same = rollouts("base", a=[1, 0], b=[0, 0], c=[1, 1])
    gain = gains(of_two(same, same, prompts(a="math", b="math", c="code")))["all"]
    assert (gain.gain, gain.p_value) == (0.0, 1.0)
    assert gain.gain_low < 0 < gain.gain_high


def test_row_order_changes_nothing():
    generator = np.random.default_rng(3)

    def shuffled(table: pa.Table) -> pa.Table:
        return table.take(generator.permutation(table.num_rows))

    found, again = of_two(**WORKED), of_two(**{name: shuffled(table) for name, table in WORKED.items()})
    assert found.facts() == again.facts()
    assert found.table.equals(again.table)


def test_result_is_an_evaluation_table_with_finite_rates():
    found = of_two(**WORKED)
    table = validate(found.table, EVALUATION, "evaluation")
    assert set(table.column("metric").to_pylist()) == {
        "pass_rate",
        "mean_score",
        "pass@2",
        "truncated",
        "mean_tokens",
    }
    assert table.column("benchmark").to_pylist()[0] == "all"


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (rollouts("base", x=[1]), rollouts("tuned", a=[1]), "prompt 'x' is not among the evaluated prompts"),
        (pa.concat_tables([rollouts("base", a=[1])] * 2), rollouts("tuned", a=[1]), "sample 0 of prompt 'a' occurs"),
        (rollouts("base", a=[None]), rollouts("tuned", a=[1]), "nothing to compare"),
        (rollouts("base"), rollouts("tuned"), "nothing to compare"),
    ],
)
def test_unusable_rollouts_are_named(before, after, message):
    with pytest.raises(ValueError, match=message):
        of_two(before, after, prompts(a="math"))


def test_one_prompt_is_no_evidence():
    found = of_two(rollouts("base", a=[0, 0]), rollouts("tuned", a=[1, 1]), prompts(a="math"))
    gain = gains(found)["math"]
    assert (gain.gain, gain.gain_low, gain.gain_high, gain.p_value) == (1.0, -1.0, 1.0, 1.0)
    assert np.isnan(cell(found.table, "math", "mean_tokens", "after")["low"])


def of_three(**options) -> Evaluation:
    """Two held-out prompts and a benchmark of two, answered by three policies."""
    answers = {
        "before": ({"a": [0, 0], "b": [1, 0]}, {"x": [0], "y": [1]}),
        "after": ({"a": [1, 0], "b": [1, 1]}, {"x": [1], "y": [1]}),
        "other": ({"a": [1, 1], "b": [1, 1]}, {"x": [0], "y": [None]}),
    }
    answered = {
        name: pa.concat_tables([rollouts(name, **held), rollouts(name, 10, "quiz", **quiz)])
        for name, (held, quiz) in answers.items()
    }
    asked = {"heldout": prompts(a="math", b="code"), "quiz": prompts(x="math", y="math")}
    return compare(answered, asked, **options)


def test_every_policy_is_compared_with_the_baseline_on_every_benchmark():
    found = of_three(baseline="before")
    assert list(found.comparisons) == [("after", "before"), ("other", "before")]
    assert list(found.comparisons["other", "before"]) == ["all", "math", "code", "quiz"]
    rates = {name: cell(found.table, "all", "pass_rate", name)["value"] for name in ("before", "after", "other")}
    assert rates == {"before": 1 / 4, "after": 3 / 4, "other": 1}
    assert cell(found.table, "all", "pass_rate", "other", "before")["value"] == 3 / 4
    assert found.comparisons["other", "before"]["math"].gain == 1


def test_a_prompt_that_one_policy_lacks_is_left_out_under_all():
    found = of_three(baseline="before")
    assert found.unpaired == 1
    for policy, rate in (("before", 0), ("after", 1), ("other", 0)):
        row = cell(found.table, "quiz", "pass_rate", policy)
        assert (row["value"], row["n"]) == (rate, 1), "y has no verdict under `other`"


def test_with_another_baseline_the_gain_of_training_is_still_there():
    found = of_three(baseline="other")
    assert list(found.comparisons) == [("after", "before"), ("before", "other"), ("after", "other")]
    assert cell(found.table, "all", "pass_rate", "after", "before")["value"] == 1 / 2
    assert cell(found.table, "all", "pass_rate", "before", "other")["value"] == -3 / 4


def test_p_values_are_corrected_for_the_number_of_benchmarks_and_not_of_domains():
    found = of_three(baseline="before").comparisons["other", "before"]
    tested = {name: found[name].adjusted_p_value for name in ("all", "quiz")}
    assert tested == {"all": min(1.0, 2 * found["all"].p_value), "quiz": 1.0}
    assert found["math"].adjusted_p_value is None


def test_a_benchmark_is_maintained_where_the_interval_lies_above_its_margin():
    same = {f"q{i}": [1] for i in range(40)}
    asked = {"heldout": prompts(a="math"), "quiz": prompts(**dict.fromkeys(same, "math"))}
    answered = {
        name: pa.concat_tables([rollouts(name, a=[1]), rollouts(name, 10, "quiz", **same)])
        for name in ("before", "after")
    }
    for margin, holds in ((0.2, True), (0.01, False)):
        found = compare(answered, asked, "before", [ComparedBenchmark(name="quiz", margin=margin)])
        assert found.comparisons["after", "before"]["quiz"].maintained is holds
        assert found.comparisons["after", "before"]["all"].maintained is None


def test_the_runs_of_a_policy_are_averaged_and_have_an_interval_between_runs():
    asked = prompts(a="math", b="math", c="math", d="math")
    runs = {
        "old, run 1": rollouts("old", a=[0], b=[0], c=[0], d=[1]),
        "old, run 2": rollouts("old", a=[0], b=[0], c=[1], d=[1]),
        "new, run 1": rollouts("new", a=[0], b=[1], c=[1], d=[1]),
        "new, run 2": rollouts("new", a=[1], b=[1], c=[1], d=[1]),
    }
    averaged = {"old": ["old, run 1", "old, run 2"], "new": ["new, run 1", "new, run 2"]}
    result = compare(runs, {"heldout": asked}, "old", runs=averaged)
    compared = result.comparisons["new", "old"]["all"]
    assert (compared.baseline_rate, compared.rate, compared.gain) == (3 / 8, 7 / 8, 4 / 8)
    between = estimate_run_gain(np.array([1 / 4, 2 / 4]), np.array([3 / 4, 4 / 4]))
    assert (compared.between_low, compared.between_high) == (between.low, between.high)
    assert {row["policy"] for row in result.table.to_pylist()} == {"old", "new"}
    single = compare(dict(list(runs.items())[1:3]), {"heldout": asked}, "old, run 2")
    assert single.comparisons["new, run 1", "old, run 2"]["all"].between_low is None


def test_p_values_of_several_policies_are_corrected_together_where_all_are_variants():
    asked = prompts(**{f"p{i}": "math" for i in range(8)})
    none, some = ({f"p{i}": [float(i < right)] for i in range(8)} for right in (0, 6))
    policies = {"base": rollouts("base", **none), "x": rollouts("x", **some), "y": rollouts("y", **some)}
    alone = compare(policies, {"heldout": asked}, "base").comparisons["x", "base"]["all"]
    together = compare(policies, {"heldout": asked}, "base", corrected_together=True).comparisons["x", "base"]["all"]
    assert alone.adjusted_p_value == alone.p_value == together.p_value
    assert together.adjusted_p_value == 2 * together.p_value


def test_a_benchmark_has_rates_by_subject_and_level():
    given = {
        "a": {"subject": "sums", "level": 1},
        "b": {"subject": "sums", "level": 2},
        "c": {"subject": None},
        "d": {},
    }
    asked = prompts(**dict.fromkeys(given, "math"))
    metadata = pa.array([json.dumps({"columns": columns} if columns else {}) for columns in given.values()])
    index = asked.schema.get_field_index("metadata")
    asked = asked.set_column(index, PROMPTS.field("metadata"), metadata.cast(PROMPTS.field("metadata").type))
    answers = {"before": {"a": [0], "b": [1], "c": [0], "d": [0]}, "after": {"a": [1], "b": [1], "c": [0], "d": [1]}}
    scored = {policy: rollouts(policy, 10, "sums", **scores) for policy, scores in answers.items()}
    found = compare(scored, {"sums": asked}, "before", [ComparedBenchmark(name="sums", by=["subject", "level"])])
    rates = {
        (row["benchmark"], row["policy"], row["baseline"]): (row["value"], row["n"])
        for row in found.table.to_pylist()
        if row["metric"] == "pass_rate"
    }
    assert {name for name, *_ in rates} == {"sums", "sums, subject sums", "sums, level 1", "sums, level 2"}
    assert rates["sums, subject sums", "before", None] == (0.5, 2)
    assert rates["sums, subject sums", "after", "before"] == (0.5, 2)
    assert rates["sums, level 2", "after", None] == (1.0, 1)
    assert list(found.comparisons["after", "before"]) == ["sums"], "values of columns have no tests of their own"
    by_value = {row["metric"] for row in found.table.to_pylist() if row["benchmark"] == "sums, level 1"}
    assert by_value == {"pass_rate", "mean_score"}
