from itertools import combinations, product
from math import sqrt

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.failures import MistakeError
from tasks.objective import compute_advantages, find_zero_variance, normalize_then_sum
from tasks.recipe.objective import ObjectiveConfig
from tests.examples import examples

PROPERTY = settings(deadline=None, max_examples=examples(50), derandomize=True)
LOCAL = ["group_mean", "group_norm", "leave_one_out", "maxrl", "pass_at_k"]
ALL = [*LOCAL, "reinforce_pp", "reinforce_pp_baseline"]
REWARDS = torch.tensor([[1.0, 0.0, 0.0, 1.0], [1.0, 0.0, 0.0, 0.0]], dtype=torch.float64)
LENGTHS = torch.tensor([[1, 2, 3, 4], [2, 2, 2, 4]])


def config_of(name, k=2, **options):
    return ObjectiveConfig(advantage=name, pass_at_k=k if name == "pass_at_k" else None, **options)


def allowed(name, rewards):
    """The rewards, without their signs for an estimator that refuses negative ones."""
    return rewards.abs() if name == "maxrl" else rewards


def advantages(name, rewards=REWARDS, lengths=LENGTHS, **options):
    return compute_advantages(rewards, lengths, config_of(name, **options))


def assert_close(actual, expected):
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-12)


def test_group_mean_by_hand():
    assert_close(advantages("group_mean"), [[0.5, -0.5, -0.5, 0.5], [0.75, -0.25, -0.25, -0.25]])


def test_group_norm_by_hand():
    # sample variances: (4 * 0.25) / 3 and (0.5625 + 3 * 0.0625) / 3 = 0.25
    first, second = sqrt(1 / 3) + 1e-6, 0.5 + 1e-6
    expected = [[x / first for x in (0.5, -0.5, -0.5, 0.5)], [x / second for x in (0.75, -0.25, -0.25, -0.25)]]
    assert_close(advantages("group_norm"), expected)


def test_leave_one_out_by_hand():
    # against the mean of the other three: 1 - 1/3, 0 - 2/3; and 1 - 0, 0 - 1/3
    assert_close(advantages("leave_one_out"), [[2 / 3, -2 / 3, -2 / 3, 2 / 3], [1.0, -1 / 3, -1 / 3, -1 / 3]])


def test_reinforce_pp_by_hand():
    # 20 tokens, of which 1 + 4 + 2 = 7 were rewarded: mean 0.35, variance 0.35 * 0.65
    std = sqrt(0.35 * 0.65)
    hit, miss = 0.65 / std, -0.35 / std
    assert_close(advantages("reinforce_pp"), [[hit, miss, miss, hit], [hit, miss, miss, miss]])


def test_reinforce_pp_baseline_by_hand():
    # token-weighted, the centred rewards sum to (1 - 2 - 3 + 4) / 2 + 2 * 0.75 - 8 * 0.25 = -0.5: mean -0.025;
    # their squares to 10 * 0.25 + 2 * 0.5625 + 8 * 0.0625 = 4.125: variance 4.125 / 20 - 0.025^2
    std = sqrt(4.125 / 20 - 0.025**2)
    centred = [[0.5, -0.5, -0.5, 0.5], [0.75, -0.25, -0.25, -0.25]]
    assert_close(advantages("reinforce_pp_baseline"), [[(x + 0.025) / std for x in row] for row in centred])


def test_leave_one_out_over_the_deviation_of_the_others_by_hand():
    # of (0, 0, 1) and (1, 0, 1): sample variance 1/3; of (0, 0, 0) none, and of (1, 0, 0) 1/3
    scale = sqrt(1 / 3) + 1e-6
    expected = [[x / scale for x in (2 / 3, -2 / 3, -2 / 3, 2 / 3)], [1.0, *(x / scale for x in [-1 / 3] * 3)]]
    assert_close(advantages("leave_one_out", normalization="group"), expected)


def test_leave_one_out_normalised_over_the_batch_by_hand():
    # token-weighted, the advantages sum to (2 - 4 - 6 + 8) / 3 + 2 - 8 / 3 = -2/3, their squares to 40/9 + 2 + 8/9
    mean = -2 / 3 / 20
    std = sqrt((40 / 9 + 2 + 8 / 9) / 20 - mean**2)
    alone = [[2 / 3, -2 / 3, -2 / 3, 2 / 3], [1.0, -1 / 3, -1 / 3, -1 / 3]]
    expected = [[(x - mean) / std for x in row] for row in alone]
    assert_close(advantages("leave_one_out", normalization="batch"), expected)


def test_maxrl_by_hand():
    # means 1/2 and 1/4; a group without a success, and one without a failure, teach nothing
    assert_close(advantages("maxrl"), [[1.0, -1.0, -1.0, 1.0], [3.0, -1.0, -1.0, -1.0]])
    rewards = torch.tensor([[0.0] * 4, [1.0] * 4], dtype=torch.float64)
    assert (advantages("maxrl", rewards) == 0).all()


def test_maxrl_refuses_negative_rewards():
    with pytest.raises(MistakeError, match=r"maxrl divides by the mean reward of a group, and a reward is -0.5"):
        advantages("maxrl", REWARDS - 0.5)


def test_pass_at_k_by_hand():
    # k = 2: twice the mean of what a sample adds to one of the other three. A success adds 1 to each failure.
    assert_close(advantages("pass_at_k"), [[2 * 2 / 3, 0, 0, 2 * 2 / 3], [2.0, 0, 0, 0]])
    # k = 3: three times the mean over the three pairs of others. Of those of a success, 1 and 3 have no success.
    assert_close(advantages("pass_at_k", k=3), [[3 * 1 / 3, 0, 0, 3 * 1 / 3], [3.0, 0, 0, 0]])
    # k = 2 with 0.2, 0.6, 1.0: 1.0 adds 0.8 and 0.4, 0.6 adds 0.4 and 0
    graded = torch.tensor([[0.6, 0.2, 1.0]], dtype=torch.float64)
    assert_close(advantages("pass_at_k", graded, torch.ones(1, 3)), [[0.4, 0, 1.2]])


@PROPERTY
@given(
    rewards=st.lists(st.sampled_from([-1.0, 0.0, 0.25, 0.5, 1.0]) | st.floats(-3, 3), min_size=2, max_size=6),
    k=st.integers(2, 6),
)
def test_pass_at_k_is_what_a_sample_adds_to_every_set_of_others(rewards, k):
    n = len(rewards)
    expected = []
    for i, reward in enumerate(rewards):
        sets = [max(others) for others in combinations(rewards[:i] + rewards[i + 1 :], min(k, n) - 1)]
        expected.append(min(k, n) * sum(max(reward - highest, 0) for highest in sets) / len(sets))
    row = torch.tensor([rewards], dtype=torch.float64)
    assert_close(advantages("pass_at_k", row, torch.ones(1, n), k=k), [expected])


def expected_gradient(name, values, logits, samples, k=2):
    """The mean of `mean_i A_i d log pi(x_i)` over all groups of `samples` outcomes, whose rewards are `values`.

    The number of outcomes is finite, and each group has its probability under the softmax of `logits`.
    """
    outcomes = torch.cartesian_prod(*[torch.arange(len(values))] * samples)  # [groups, samples]
    logprobs = logits.log_softmax(0)[outcomes]
    a = advantages(name, values[outcomes], torch.ones(outcomes.shape), k=k)
    chance = logprobs.detach().sum(dim=1).exp()
    (gradient,) = torch.autograd.grad((chance * (a * logprobs).mean(dim=1)).sum(), logits)
    return gradient


@pytest.mark.parametrize("values", [(0.0, 1.0), (0.0, 0.0, 1.0), (0.1, 0.4, 1.0)])
@pytest.mark.parametrize(("samples", "k"), [(2, 2), (3, 2), (4, 2), (4, 3), (4, 4), (5, 3)])
def test_the_mean_gradient_of_pass_at_k_is_that_of_the_best_of_k(values, samples, k):
    values = torch.tensor(values, dtype=torch.float64)
    logits = torch.linspace(0.5, -0.7, len(values), dtype=torch.float64).requires_grad_()
    given = expected_gradient("pass_at_k", values, logits, samples, k)
    drawn = torch.cartesian_prod(*[torch.arange(len(values))] * k).view(-1, k)
    best = (logits.log_softmax(0)[drawn].sum(dim=1).exp() * values[drawn].amax(dim=1)).sum()
    (wanted,) = torch.autograd.grad(best, logits)
    torch.testing.assert_close(given, wanted, rtol=1e-12, atol=1e-14)
    if set(values.tolist()) == {0.0, 1.0}:  # pass@k
        failure = logits.softmax(0)[values == 0].sum()
        (wanted,) = torch.autograd.grad(1 - failure**k, logits)
        torch.testing.assert_close(given, wanted, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("samples", [2, 3, 4, 6])
def test_the_mean_gradient_of_maxrl_is_that_of_a_truncated_log_likelihood(samples):
    # of sum_k pass@k / k for k < samples: one order less than without the baseline, which groups without a success lack
    values, logits = torch.tensor([0.0, 1.0]).double(), torch.tensor([0.8, -0.6]).double().requires_grad_()
    failure = logits.softmax(0)[0]
    (wanted,) = torch.autograd.grad(sum((1 - failure**k) / k for k in range(1, samples)), logits)
    torch.testing.assert_close(expected_gradient("maxrl", values, logits, samples), wanted, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    ("name", "normalization", "same_as"),
    [
        ("group_norm", "none", "group_mean"),
        ("reinforce_pp_baseline", "none", "group_mean"),
        ("group_mean", "group", "group_norm"),
        ("group_mean", "batch", "reinforce_pp_baseline"),
        ("leave_one_out", "none", "leave_one_out"),
    ],
)
def test_a_normalisation_of_ones_own_replaces_the_estimators(name, normalization, same_as):
    assert torch.equal(advantages(name, normalization=normalization), advantages(same_as))


def test_without_normalisation_reinforce_pp_is_the_reward():
    assert torch.equal(advantages("reinforce_pp", normalization="none"), REWARDS)
    with pytest.raises(ValueError, match="normalization = group divides by the deviation of a group"):
        advantages("reinforce_pp", normalization="group")


@pytest.mark.parametrize("name", ["reinforce_pp", "reinforce_pp_baseline"])
def test_batch_normalised_advantages_have_mean_0_and_variance_1_over_tokens(name):
    per_token = advantages(name).flatten().repeat_interleave(LENGTHS.flatten())
    assert per_token.mean().item() == pytest.approx(0, abs=1e-12)
    assert per_token.var(correction=0).item() == pytest.approx(1)


@pytest.mark.parametrize("name", ["reinforce_pp", "reinforce_pp_baseline"])
def test_a_rollout_without_tokens_has_no_say_in_the_batch_moments(name):
    one_group = torch.tensor([[1.0, 0.0, 0.5, 9.0]], dtype=torch.float64)
    lengths = torch.tensor([[1, 2, 3, 0]])
    values = advantages(name, one_group, lengths)[0, :3].repeat_interleave(lengths[0, :3])
    assert values.mean().item() == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("name", LOCAL)
@PROPERTY
@given(reward=st.floats(-100, 100), samples=st.integers(2, 17), dtype=st.sampled_from([torch.float32, torch.float64]))
def test_equal_rewards_teach_exactly_nothing(name, reward, samples, dtype):
    rewards = allowed(name, torch.full((1, samples), reward, dtype=dtype))
    assert find_zero_variance(rewards).all()
    assert (advantages(name, rewards, torch.ones(1, samples, dtype=torch.long)) == 0).all()


@pytest.mark.parametrize("name", ALL)
@PROPERTY
@given(reward=st.floats(-100, 100), tokens=st.lists(st.integers(0, 5), min_size=6, max_size=6))
def test_a_batch_of_one_reward_only_gives_exactly_zero(name, reward, tokens):
    rewards = allowed(name, torch.full((2, 3), reward))
    assert (advantages(name, rewards, torch.tensor(tokens).view(2, 3)) == 0).all()


@pytest.mark.parametrize("name", ALL)
@PROPERTY
@given(
    rewards=st.lists(st.floats(-1e3, 1e3, width=32), min_size=12, max_size=12),
    tokens=st.lists(st.integers(0, 1000), min_size=12, max_size=12),
)
def test_any_rewards_give_finite_advantages_of_the_same_shape_and_dtype(name, rewards, tokens):
    values = advantages(name, allowed(name, torch.tensor(rewards).view(3, 4)), torch.tensor(tokens).view(3, 4))
    assert values.isfinite().all()
    assert (values.shape, values.dtype) == ((3, 4), torch.float32)


@pytest.mark.parametrize("name", LOCAL)
def test_groups_do_not_see_each_other(name):
    together = advantages(name)
    apart = torch.cat([advantages(name, REWARDS[i : i + 1], LENGTHS[i : i + 1]) for i in range(2)])
    assert torch.equal(together, apart)


def test_a_group_of_one_teaches_nothing_and_has_no_leave_one_out():
    one, length = torch.ones(2, 1), torch.ones(2, 1, dtype=torch.long)
    assert (advantages("group_mean", one, length) == 0).all()
    assert (advantages("group_norm", one, length) == 0).all()
    assert (advantages("maxrl", one, length) == 0).all()
    assert (advantages("pass_at_k", one, length) == 0).all()
    with pytest.raises(ValueError, match="at least 2 samples"):
        advantages("leave_one_out", one, length)


@pytest.mark.parametrize(
    ("rewards", "lengths", "message"),
    [
        (torch.ones(3), torch.ones(3), r"got \[3\] and \[3\]"),
        (torch.ones(2, 3), torch.ones(2, 4), r"got \[2, 3\] and \[2, 4\]"),
        (torch.ones(0, 3), torch.ones(0, 3), "non-empty"),
        (torch.ones(2, 3, dtype=torch.long), torch.ones(2, 3), "floating point"),
        (torch.tensor([[1.0, float("nan")]]), torch.ones(1, 2), r"rewards\[0, 1\] is nan"),
        (torch.ones(1, 2), torch.tensor([[1, -1]]), "negative"),
    ],
)
def test_what_cannot_be_rewards_is_refused(rewards, lengths, message):
    with pytest.raises(ValueError, match=message):
        advantages("group_mean", rewards, lengths)


# Groups of different sizes


NAN = float("nan")
RAGGED = torch.tensor([[1.0, 0.0, 0.0, NAN], [1.0, 0.0, 0.0, 0.0]], dtype=torch.float64)
PRESENT = torch.tensor([[True, True, True, False], [True, True, True, True]])
TOKENS = 1 + 2 + 3 + 2 + 2 + 2 + 4
THIRDS = [2 / 3, -1 / 3, -1 / 3]
QUARTERS = [0.75, -0.25, -0.25, -0.25]


def ragged(name, rewards=RAGGED, present=PRESENT):
    lengths = LENGTHS.masked_fill(~present, -1)
    return compute_advantages(rewards, lengths, config_of(name), present)


def test_group_mean_of_three_and_of_four_by_hand():
    assert_close(ragged("group_mean"), [[*THIRDS, 0.0], QUARTERS])


def test_group_norm_of_three_and_of_four_by_hand():
    # sample variances: (4 + 1 + 1) / 9 / 2 = 1/3 and (9 + 1 + 1 + 1) / 16 / 3 = 1/4
    first, second = sqrt(1 / 3) + 1e-6, 0.5 + 1e-6
    assert_close(ragged("group_norm"), [[*(x / first for x in THIRDS), 0.0], [x / second for x in QUARTERS]])


def test_leave_one_out_of_three_and_of_four_by_hand():
    # against the mean of the other two: 1 - 0, 0 - 1/2; of the other three: 1 - 0, 0 - 1/3
    assert_close(ragged("leave_one_out"), [[1.0, -0.5, -0.5, 0.0], [1.0, -1 / 3, -1 / 3, -1 / 3]])


def test_maxrl_of_three_and_of_four_by_hand():
    assert_close(ragged("maxrl"), [[2.0, -1.0, -1.0, 0.0], [3.0, -1.0, -1.0, -1.0]])


def test_pass_at_k_of_three_and_of_four_by_hand():
    # in the group of three, k is 3: the success adds 1 to the one pair of others
    config = ObjectiveConfig(advantage="pass_at_k", pass_at_k=4)
    assert_close(compute_advantages(RAGGED, LENGTHS, config, PRESENT), [[3.0, 0, 0, 0], [4.0, 0, 0, 0]])


def test_reinforce_pp_of_three_and_of_four_by_hand():
    # of 16 tokens 1 + 2 = 3 were rewarded
    share = 3 / TOKENS
    std = sqrt(share * (1 - share))
    hit, miss = (1 - share) / std, -share / std
    assert_close(ragged("reinforce_pp"), [[hit, miss, miss, 0.0], [hit, miss, miss, miss]])


def test_reinforce_pp_baseline_of_three_and_of_four_by_hand():
    # token-weighted, the centred rewards sum to (2 - 2 - 3) / 3 + 2 * 0.75 - 8 * 0.25 = -1.5,
    # their squares to (4 + 2 + 3) / 9 + 2 * 0.5625 + 8 * 0.0625 = 2.625
    mean = -1.5 / TOKENS
    std = sqrt(2.625 / TOKENS - mean**2)
    expected = [[*((x - mean) / std for x in THIRDS), 0.0], [(x - mean) / std for x in QUARTERS]]
    assert_close(ragged("reinforce_pp_baseline"), expected)


def test_leave_one_out_of_groups_of_different_sizes_is_that_of_each_alone():
    config = ObjectiveConfig(advantage="leave_one_out", normalization="group")
    together = compute_advantages(RAGGED, LENGTHS, config, PRESENT)
    alone = compute_advantages(RAGGED[:1, :3], LENGTHS[:1, :3], config)
    assert_close(together[:1], [[*alone[0].tolist(), 0.0]])


masks = st.lists(st.booleans(), min_size=10, max_size=10).map(lambda given: torch.tensor(given).view(2, 5))


@pytest.mark.parametrize("name", LOCAL)
@PROPERTY
@given(
    rewards=st.lists(st.floats(-1e3, 1e3, width=32), min_size=10, max_size=10),
    present=masks.filter(lambda mask: (mask.sum(dim=1) >= 2).all()),
)
def test_a_group_with_k_of_n_samples_is_the_group_of_those_k_alone(name, rewards, present):
    rewards = allowed(name, torch.tensor(rewards, dtype=torch.float64).view(2, 5))
    lengths, config = torch.ones(2, 5, dtype=torch.long), config_of(name, k=4)
    together = compute_advantages(rewards, lengths, config, present)
    for row, values, mask in zip(together, rewards, present, strict=True):
        alone = compute_advantages(values[mask][None], lengths[0, mask][None], config)
        torch.testing.assert_close(row[mask][None], alone, rtol=1e-9, atol=1e-9)
        assert (row[~mask] == 0).all()


@pytest.mark.parametrize("name", ["reinforce_pp", "reinforce_pp_baseline"])
def test_the_moments_of_the_batch_are_those_of_the_samples_that_are_present(name):
    per_token = ragged(name)[PRESENT].repeat_interleave(LENGTHS[PRESENT])
    assert per_token.mean().item() == pytest.approx(0, abs=1e-12)
    assert per_token.var(correction=0).item() == pytest.approx(1)


@pytest.mark.parametrize("name", ALL)
def test_a_mask_of_all_samples_changes_nothing(name):
    assert torch.equal(ragged(name, REWARDS, torch.ones_like(PRESENT)), advantages(name))


@pytest.mark.parametrize("name", ALL)
def test_equal_rewards_beside_one_that_is_not_present_give_exactly_0(name):
    rewards = torch.tensor([[0.1, 0.1, 0.1, 7.0], [0.1, 0.1, 0.1, 0.1]], dtype=torch.float64)
    assert find_zero_variance(rewards, PRESENT).all()
    assert (ragged(name, rewards) == 0).all()


def test_a_mask_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match=r"present must be bool \[2, 4\], got torch.bool \[2, 3\]"):
        compute_advantages(REWARDS, LENGTHS, ObjectiveConfig(), PRESENT[:, :3])
    with pytest.raises(ValueError, match="group 1 has no sample"):
        compute_advantages(REWARDS, LENGTHS, ObjectiveConfig(), torch.tensor([[True] * 4, [False] * 4]))
    with pytest.raises(ValueError, match="at least 2 samples"):
        ragged("leave_one_out", present=torch.tensor([[True] * 3 + [False], [True] + [False] * 3]))


# Several rewards


def summed(rewards, weights):
    return normalize_then_sum(torch.tensor(rewards, dtype=torch.float64), torch.tensor(weights, dtype=torch.float64))


def test_normalize_then_sum_by_hand():
    # [group, sample, reward]; the second reward has ten times the scale and half the weight
    rewards = [[[1.0, 0.0], [0.0, 10.0]], [[1.0, 10.0], [0.0, 0.0]]]
    z = 0.5 / (sqrt(0.5) + 1e-6), 5 / (sqrt(50) + 1e-6)  # sample deviations of (1, 0) and (10, 0)
    against, along = z[0] - 0.5 * z[1], z[0] + 0.5 * z[1]
    scale = sqrt((2 * against**2 + 2 * along**2) / 4)
    expected = [[against / scale, -against / scale], [along / scale, -along / scale]]
    assert_close(summed(rewards, [[1.0, 0.5], [1.0, 0.5]]), expected)


def test_normalize_then_sum_sees_what_the_sum_hides():
    hidden = [[[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0]]]
    assert find_zero_variance(torch.tensor(hidden, dtype=torch.float64).sum(2)).all()
    assert (summed(hidden, [[1.0, 0.5]]) != 0).all()


def test_a_reward_of_any_scale_counts_the_same():
    rewards = torch.rand(3, 4, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    scaled = rewards * torch.tensor([1.0, 1000.0])
    weights = torch.ones(3, 2, dtype=torch.float64)
    given, wanted = normalize_then_sum(scaled, weights), normalize_then_sum(rewards, weights)
    torch.testing.assert_close(given, wanted, rtol=0, atol=1e-3)  # but for the 1e-6 beside the deviation


def test_a_reward_that_does_not_apply_changes_nothing():
    one = summed([[[1.0], [0.0], [0.0]]], [[1.0]])
    assert_close(summed([[[1.0, NAN], [0.0, NAN], [0.0, NAN]]], [[1.0, 7.0]]), one.tolist())
    alone = summed([[[1.0, 5.0], [0.0, NAN], [0.0, NAN]]], [[1.0, 7.0]])  # one value has no spread
    assert_close(alone, one.tolist())


def test_normalize_then_sum_of_two_and_of_three_by_hand():
    # sample deviations of (1, 0) and (1, 0, 0): sqrt(1/2) and sqrt(1/3); the root mean square is that of five samples
    first = [x / (sqrt(1 / 2) + 1e-6) for x in (0.5, -0.5)]
    second = [x / (sqrt(1 / 3) + 1e-6) for x in THIRDS]
    scale = sqrt(sum(x * x for x in (*first, *second)) / 5)
    rewards = torch.tensor([[[1.0], [0.0], [float("inf")]], [[1.0], [0.0], [0.0]]], dtype=torch.float64)
    present = torch.tensor([[True, True, False], [True, True, True]])
    values = normalize_then_sum(rewards, torch.ones(2, 1, dtype=torch.float64), present)
    assert_close(values, [[*(x / scale for x in first), 0.0], [x / scale for x in second]])


def test_groups_whose_rewards_do_not_vary_get_exactly_0():
    assert (summed([[[0.1, 3.0]] * 3], [[1.0, 1.0]]) == 0).all()
    assert (summed([[[NAN]] * 3], [[1.0]]) == 0).all()


def test_normalize_then_sum_refuses_what_it_cannot_normalise():
    with pytest.raises(ValueError, match="infinite"):
        summed([[[1.0], [float("inf")]]], [[1.0]])
    with pytest.raises(ValueError, match="weights"):
        summed([[[1.0], [0.0]]], [[1.0, 2.0]])
    with pytest.raises(ValueError, match=r"reward_aggregation = normalize_then_sum .* advantage = group_norm"):
        ObjectiveConfig(reward_aggregation="normalize_then_sum")


REFUSED = [("reinforce_pp", "group"), *product(["maxrl", "pass_at_k"], ["group", "batch"])]
NORMALISED = [pair for pair in product(ALL, ["none", "group", "batch"]) if pair not in REFUSED]


@pytest.mark.parametrize("noisy", [[0.0, 0.3, 0.1 + 0.2], [1.0, 3 * (0.1 * 3), 4 * 0.3 - 0.3]])
@pytest.mark.parametrize(("name", "normalization"), NORMALISED)
def test_rewards_that_differ_by_rounding_alone_are_equal(name, normalization, noisy):
    assert noisy[1] != noisy[2]
    rewards = torch.tensor([noisy, [noisy[0], noisy[1], noisy[1]]], dtype=torch.float64)
    config = config_of(name, normalization=normalization)
    given, plain = compute_advantages(rewards, torch.ones(2, 3, dtype=torch.long), config)
    torch.testing.assert_close(given, plain, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("name", "normalization"), [each for each in NORMALISED if each != ("reinforce_pp", "none")])
def test_a_group_of_rounding_noise_teaches_exactly_nothing(name, normalization):
    rewards = torch.tensor([[0.3, 0.1 + 0.2, 0.3]], dtype=torch.float64)
    config = config_of(name, normalization=normalization)
    assert (compute_advantages(rewards, torch.ones(1, 3, dtype=torch.long), config) == 0).all()
    assert find_zero_variance(rewards).all()
    weights = torch.ones(1, 2, dtype=torch.float64)
    several = torch.stack([rewards, torch.tensor([[0.0, 1.0, 1.0]], dtype=torch.float64)], dim=2)
    alone = torch.stack([torch.zeros_like(rewards), several[:, :, 1]], dim=2)
    torch.testing.assert_close(normalize_then_sum(several, weights), normalize_then_sum(alone, weights))
