"""What the evaluation claims: figures worked by hand, intervals that cover, and comparisons that are paired."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.evaluation.paired_gain import (
    compare,
    length_interval,
    rate_gain,
    rate_interval,
    sign_flip_p_value,
)
from tasks.tables.parquet import table_from_rows, validate
from tasks.tables.schemas import EVALUATION, PROMPTS, ROLLOUTS
from tests.examples import examples


def prompts(**domains: str) -> pa.Table:
    rows = [
        {
            "prompt_id": name,
            "domain": domain,
            "source": "test",
            "messages": [{"role": "user", "content": name}],
            "verifier": domain,
            "ground_truth": "null",
            "metadata": "{}",
            "cluster": None,
            "row": 0,
        }
        for name, domain in domains.items()
    ]
    return table_from_rows(rows, PROMPTS, "prompts")


def rollouts(policy: str, tokens: int = 10, /, parts=lambda _: [], **scores: list[float | None]) -> pa.Table:
    rows = [
        {
            "prompt_id": name,
            "sample": i,
            "response": "words",
            "num_tokens": tokens + i,
            "finish_reason": "length" if i == 0 else "stop",
            "score": score,
            "passed": None if score is None else score == 1,
            "rewards": None if score is None else parts(score),
            "error": None if score is not None else "judge unreachable",
            "policy": policy,
        }
        for name, listed in scores.items()
        for i, score in enumerate(listed)
    ]
    return table_from_rows(rows, ROLLOUTS, policy)


def cell(table: pa.Table, benchmark: str, metric: str, policy: str) -> dict:
    (row,) = [
        row
        for row in table.to_pylist()
        if (row["benchmark"], row["metric"], row["policy"]) == (benchmark, metric, policy)
    ]
    return row


WORKED = {
    "before": rollouts("base", 10, a=[1, 0], b=[0, 0], c=[1, 1], d=[0, 0]),
    "after": rollouts("tuned", 20, a=[1, 1], b=[0, 1], c=[1, 0], d=[0, 0]),
    "prompts": prompts(a="math", b="math", c="precise_if", d="precise_if"),
}


def test_figures_equal_a_case_worked_by_hand():
    found = compare(**WORKED)
    everything, math, instructions = (found.comparisons[name] for name in ("all", "math", "precise_if"))
    assert (everything.before, everything.after, everything.gain, everything.n) == (3 / 8, 4 / 8, 1 / 8, 4)
    assert (math.before, math.after, math.gain, math.n) == (1 / 4, 3 / 4, 1 / 2, 2)
    assert (instructions.before, instructions.after, instructions.gain) == (1 / 2, 1 / 4, -1 / 4)
    # Differences .5, .5, -.5, 0: of the 16 sign patterns 8 reach a sum of .5 or more; two-sided that is certainty.
    assert everything.p_value == 1.0
    assert cell(found.table, "all", "pass@2", "before")["value"] == 2 / 4
    assert cell(found.table, "all", "pass@2", "after")["value"] == 3 / 4
    assert cell(found.table, "all", "mean_tokens", "before")["value"] == 10.5
    assert cell(found.table, "all", "mean_tokens", "gain")["value"] == 10
    assert cell(found.table, "all", "truncated", "after")["value"] == 0.5


def test_a_reward_for_the_format_makes_no_wrong_answer_right():
    # A format reward of a fifth of the score: the policy learns the format, and not one answer.
    def named(score):
        values = {"math": 0.0, "mine.in_tags": 5 * score, "mine.never_applies": None}
        return [{"name": name, "value": value} for name, value in values.items()]

    found = compare(
        rollouts("base", parts=named, a=[0, 0.2], b=[0, 0]),
        rollouts("tuned", parts=named, a=[0.2, 0.2], b=[0.2, 0]),
        prompts(a="math", b="math"),
    )
    assert (found.comparisons["all"].before, found.comparisons["all"].after) == (0, 0)
    assert cell(found.table, "all", "pass@2", "after")["value"] == 0
    assert cell(found.table, "all", "mean_score", "after")["value"] == pytest.approx(0.15)
    assert cell(found.table, "all", "rewards/mine.in_tags", "before")["value"] == pytest.approx(0.25)
    assert cell(found.table, "all", "rewards/mine.in_tags", "gain")["value"] == pytest.approx(0.5)
    assert cell(found.table, "math", "rewards/math", "after")["value"] == 0
    assert "rewards/mine.never_applies" not in found.table.column("metric").to_pylist()


def test_domains_of_the_users_are_benchmarks_after_the_known_ones():
    found = compare(
        rollouts("base", a=[0], b=[1], c=[1]),
        rollouts("tuned", a=[1], b=[1], c=[1]),
        prompts(a="poetry", b="chat", c="math"),
    )
    assert list(found.comparisons) == ["all", "math", "chat", "poetry"]


def test_wilson_interval_equals_a_case_worked_by_hand():
    # Five prompts with one sample each, all passed: n_eff = 5, t(0.975, 4) = 2.776445, low = 1 / (1 + t^2 / 5).
    found = rate_interval(np.ones(5), rollouts=5)
    assert (found.value, found.high) == (1.0, 1.0)
    assert found.low == pytest.approx(1 / (1 + 2.776445**2 / 5), abs=1e-6)


def test_gain_interval_equals_a_case_worked_by_hand():
    # Differences 1, 1, 0, 0 and the pseudo-prompts: centre 2/6, variance 3/6 - 1/9, t(0.975, 3) = 3.182446.
    found = rate_gain(np.array([1.0, 1.0, 0.0, 0.0]))
    half = 3.182446 * np.sqrt((1 / 2 - 1 / 9) / 6)
    assert found.value == 0.5
    assert found.low == pytest.approx(1 / 3 - half, abs=1e-6)
    assert found.high == pytest.approx(min(1.0, 1 / 3 + half), abs=1e-6)


@pytest.mark.parametrize("prompts", [13, 14, 50])
def test_sign_flips_in_chunks_give_the_p_value_of_all_at_once(monkeypatch, prompts):
    differences = np.random.default_rng(prompts).integers(-4, 6, prompts) / 8
    at_once = sign_flip_p_value(differences)
    monkeypatch.setattr("tasks.evaluation.paired_gain.FLIPPED_AT_ONCE", 1 << 10)
    assert sign_flip_p_value(differences) == at_once


def test_sign_flips_are_exact_for_few_prompts():
    # Only 2 of 2^8 sign patterns are as extreme as eight gains out of eight.
    assert sign_flip_p_value(np.full(8, 0.25)) == pytest.approx(2 / 2**8)
    assert sign_flip_p_value(np.zeros(8)) == 1.0
    assert sign_flip_p_value(np.full(60, 0.25)) < 0.001


def test_unjudged_rollouts_are_left_out_in_pairs_and_counted():
    found = compare(
        rollouts("base", a=[1, None], b=[None, None], c=[0, 0]),
        rollouts("tuned", a=[1, 0], b=[1, 1], c=[1, 1]),
        prompts(a="math", b="math", c="math", d="math"),
    )
    assert (found.unjudged_before, found.unjudged_after, found.unpaired) == (3, 0, 2)
    assert found.comparisons["all"].n == 2
    assert (found.comparisons["all"].before, found.comparisons["all"].after) == (0.5, 0.75)
    assert cell(found.table, "all", "pass@2", "before")["n"] == 1, "pass@2 needs both samples judged"


def test_equal_policies_gain_nothing_and_the_interval_says_so():
    same = rollouts("base", a=[1, 0], b=[0, 0], c=[1, 1])
    gain = compare(same, same, prompts(a="math", b="math", c="code")).comparisons["all"]
    assert (gain.gain, gain.p_value) == (0.0, 1.0)
    assert gain.gain_low < 0 < gain.gain_high


def test_row_order_changes_nothing():
    generator = np.random.default_rng(3)

    def shuffled(table: pa.Table) -> pa.Table:
        return table.take(generator.permutation(table.num_rows))

    found, again = compare(**WORKED), compare(**{name: shuffled(table) for name, table in WORKED.items()})
    assert found.facts() == again.facts()
    assert found.table.equals(again.table)


def test_result_is_an_evaluation_table_with_finite_rates():
    found = compare(**WORKED)
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
        compare(before, after, prompts(a="math"))


def test_one_prompt_is_no_evidence():
    found = compare(rollouts("base", a=[0, 0]), rollouts("tuned", a=[1, 1]), prompts(a="math"))
    gain = found.comparisons["math"]
    assert (gain.gain, gain.gain_low, gain.gain_high, gain.p_value) == (1.0, -1.0, 1.0, 1.0)
    assert np.isnan(cell(found.table, "math", "mean_tokens", "after")["low"])


@pytest.mark.parametrize(("n", "samples", "floor"), [(64, 4, 0.93), (24, 4, 0.92), (64, 1, 0.93)])
def test_intervals_cover_what_they_claim(n, samples, floor):
    # Prompts differ: skill is Beta distributed, the tuned policy adds to it; the truth is known by construction.
    generator = np.random.default_rng(11)
    rate_hits = gain_hits = 0
    trials = 800
    for _ in range(trials):
        skill = generator.beta(0.4, 1.2, n)
        raised = skill + (1 - skill) * 0.3
        old = generator.binomial(samples, skill) / samples
        new = generator.binomial(samples, raised) / samples
        rate, gain = rate_interval(old, n * samples), rate_gain(new - old)
        rate_hits += rate.low <= 0.25 <= rate.high
        gain_hits += gain.low <= 0.225 <= gain.high
    assert floor <= rate_hits / trials <= 0.99
    assert floor <= gain_hits / trials <= 0.99


rates = st.lists(st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]), min_size=2, max_size=40)


@settings(max_examples=examples(150), deadline=None)
@given(rates)
def test_rate_intervals_hold_their_value_and_never_collapse(means):
    found = rate_interval(np.array(means), rollouts=4 * len(means))
    assert 0 <= found.low <= found.value <= found.high <= 1
    assert found.high - found.low > 0.01


@settings(max_examples=examples(150), deadline=None)
@given(rates, st.integers(0, 10**6))
def test_gain_intervals_hold_their_value_and_mirror_under_exchange(means, seed):
    old = np.array(means)
    new = np.random.default_rng(seed).permutation(old)
    forth, back = rate_gain(new - old), rate_gain(old - new)
    assert -1 <= forth.low <= forth.value <= forth.high <= 1
    assert forth.low < forth.high
    assert (back.low, back.high) == pytest.approx((-forth.high, -forth.low))


def test_length_interval_is_the_t_interval():
    # Mean 12, standard error 2 / sqrt(3), t(0.975, 2) = 4.302653.
    found = length_interval(np.array([10.0, 12.0, 14.0]))
    assert (found.low, found.high) == pytest.approx((12 - 4.302653 * 2 / 3**0.5, 12 + 4.302653 * 2 / 3**0.5))
