"""The loss against arithmetic done by hand, against finite differences, and against its own identities."""

from dataclasses import replace
from itertools import product
from math import exp, log

import pytest
import torch

from tasks.inputs.metrics_page import SECTIONS
from tasks.objective import LossInputs, policy_loss, summarize
from tasks.objective.divergence import compute_binary_divergence
from tasks.objective.kl import estimate_kl
from tasks.recipe.objective import ObjectiveConfig

RATIOS = [[0.5, 1.1, 1.5], [0.7, 1.4, 1.0]]  # pi / pi_old
ENGINE = [[1.0, 3.0, 0.5], [2.0, 0.8, 1.0]]  # pi_old / pi_rollout
OLD = [[-1.0, -2.0, -0.5], [-0.3, -1.7, -4.0]]
REF = [[-1.5, -1.5, -1.5], [-1.0, -1.0, -1.0]]
ADVANTAGES = [[2.0, 2.0, 2.0], [-1.0, -1.0, -1.0]]
MASK = [[1, 1, 1], [1, 1, 0]]


def tensor(values):
    return torch.tensor(values, dtype=torch.float64)


def example(**changes):
    old = tensor(OLD)
    fields = {
        "logprobs": old + tensor(RATIOS).log(),
        "old_logprobs": old,
        "rollout_logprobs": old - tensor(ENGINE).log(),
        "advantages": tensor(ADVANTAGES),
        "mask": torch.tensor(MASK),
    }
    return LossInputs(**{**fields, **changes})


def random_inputs(batch=4, seq=6, seed=0, **changes):
    g = torch.Generator().manual_seed(seed)

    def draw(scale):
        return torch.randn(batch, seq, generator=g, dtype=torch.float64) * scale

    old = -draw(1.0).abs()
    fields = {
        "logprobs": old + draw(0.3),
        "old_logprobs": old,
        "rollout_logprobs": old + draw(0.2),
        "ref_logprobs": old + draw(0.3),
        "advantages": draw(1.0)[:, :1].expand(batch, seq),
        "mask": torch.rand(batch, seq, generator=g) < 0.8,
        "entropy": draw(1.0).abs(),
    }
    return LossInputs(**{**fields, **changes})


def loss(inputs, **config):
    return policy_loss(inputs, ObjectiveConfig(**config)).loss


def gradient(inputs, **config):
    logprobs = inputs.logprobs.detach().clone().requires_grad_()
    loss(replace(inputs, logprobs=logprobs), **config).backward()
    return logprobs.grad


# Terms w * min(r A, clip(r) A) of the five trained tokens, with clip to [0.8, 1.28] and w truncated at 2:
#   A = 2:   r 0.5 -> 1.0 (the lower bound does not bind),  r 1.1 -> 2.2,  r 1.5 -> 2.56 (upper bound)
#   A = -1:  r 0.7 -> -0.8 (lower bound),                   r 1.4 -> -1.4 (the upper bound does not bind)
SURROGATE = [[1.0, 2.2, 2.56], [-0.8, -1.4]]
TIS = [[1.0, 2.0, 0.5], [2.0, 0.8]]


def test_the_olmo_rl_objective_by_hand():
    expected = -(1.0 * 1.0 + 2.0 * 2.2 + 0.5 * 2.56 + 2.0 * -0.8 + 0.8 * -1.4) / 5
    assert loss(example()).item() == pytest.approx(expected, abs=1e-12)


def test_sequence_aggregation_by_hand():
    first = (1.0 + 2.0 * 2.2 + 0.5 * 2.56) / 3
    second = (2.0 * -0.8 + 0.8 * -1.4) / 2
    assert loss(example(), aggregation="sequence").item() == pytest.approx(-(first + second) / 2, abs=1e-12)


def test_constant_aggregation_by_hand():
    total = 1.0 + 2.0 * 2.2 + 0.5 * 2.56 + 2.0 * -0.8 + 0.8 * -1.4
    value = loss(example(), aggregation="constant", constant_length=10).item()
    assert value == pytest.approx(-total / (2 * 10), abs=1e-12)


@pytest.mark.parametrize(
    ("correction", "weights"),
    [
        ({"kind": "none"}, [1, 1, 1, 1, 1]),
        ({"kind": "tis", "max": 1.5}, [1.0, 1.5, 0.5, 1.5, 0.8]),
        ({"kind": "tis", "min": 0.9, "max": 1.5}, [1.0, 1.5, 0.9, 1.5, 0.9]),
        # the mask compares the weight before it is truncated: 3 and 0.5 are outside of it, and 2 becomes 1.5
        ({"kind": "tis", "min": 0.9, "max": 1.5, "mask": {"min": 0.6, "max": 2.5}}, [1.0, 0, 0, 1.5, 0.9]),
        ({"kind": "none", "mask": {"min": 0.6, "max": 2.5}}, [1, 0, 0, 1, 1]),
        # geometric means: 1.145 and 1.265
        ({"kind": "tis", "mask": {"level": "sequence", "max": 1.2}}, [1.0, 2.0, 0.5, 0, 0]),
        # abs(w - 1): 0, 2, 0.5 and 1, 0.2, on average 0.833 and 0.6
        ({"kind": "tis", "mask": {"metric": "tv", "max": 0.4}}, [1.0, 0, 0, 0, 0.8]),
        ({"kind": "tis", "mask": {"metric": "tv", "level": "sequence", "max": 0.7}}, [0, 0, 0, 2.0, 0.8]),
        # only 3.0 of the first (A > 0, w > 1) and 0.8 of the second (A < 0, w < 1) increase the difference
        (
            {"kind": "tis", "mask": {"metric": "tv", "level": "sequence", "max": 0.5, "increase_only": True}},
            [1.0, 0, 0.5, 2.0, 0],
        ),
        # p: exp(-1, -2, -0.5; -0.3, -1.7) and p / w: abs(p - q) = 0, 0.0902, 0.6065; 0.3704, 0.0457
        ({"kind": "tis", "mask": {"metric": "binary_tv", "max": 0.09}}, [1.0, 0, 0, 0, 0.8]),
        ({"kind": "icepop", "min": 0.75, "max": 2.5}, [1.0, 0, 0, 2.0, 0.8]),
        # geometric means: (1 * 3 * 0.5)^(1/3) = 1.145 and (2 * 0.8)^(1/2) = 1.265
        ({"kind": "seq_mask_tis", "min": 0.9, "max": 1.2}, [1.0, 3.0, 0.5, 0, 0]),
        ({"kind": "seq_mask_tis", "min": 1.2, "max": 1.3}, [0, 0, 0, 2.0, 0.8]),
        # products: 1 * 3 * 0.5 = 1.5 and 2 * 0.8 = 1.6
        ({"kind": "sequence_truncate", "max": 1.55}, [1.5, 1.5, 1.5, 1.55, 1.55]),
        ({"kind": "sequence_mask", "max": 1.55}, [1.5, 1.5, 1.5, 0, 0]),
    ],
)
def test_engine_corrections_by_hand(correction, weights):
    surrogate = [1.0, 2.2, 2.56, -0.8, -1.4]
    expected = -sum(w * s for w, s in zip(weights, surrogate, strict=True)) / 5
    assert loss(example(), correction=correction).item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("kl", "term"),
    [
        ({"estimator": "k1", "importance_corrected": True}, lambda d, ratio: -d * ratio),
        ({"estimator": "k2"}, lambda d, ratio: d * d / 2),
        ({"estimator": "k3"}, lambda d, ratio: exp(d) - d - 1),
        ({"estimator": "k3", "importance_corrected": True}, lambda d, ratio: (exp(d) - d - 1) * ratio),
    ],
)
def test_kl_penalty_by_hand(kl, term):
    inputs = example(ref_logprobs=tensor(REF))
    terms = [
        term(ref - (old + log(ratio)), ratio)
        for refs, olds, ratios, mask in zip(REF, OLD, RATIOS, MASK, strict=True)
        for ref, old, ratio, m in zip(refs, olds, ratios, mask, strict=True)
        if m
    ]
    added = loss(inputs, kl={"beta": 0.3, **kl}) - loss(inputs)
    assert added.item() == pytest.approx(0.3 * sum(terms) / 5, abs=1e-12)


def test_the_mean_gradient_of_each_estimator_that_is_accepted_is_that_of_the_divergence():
    logits, reference = (
        torch.tensor([0.3, -0.2, 0.9, 0.0], dtype=torch.float64),
        torch.tensor([0.25] * 4).double().log(),
    )
    logits.requires_grad_()
    logprobs = logits.log_softmax(0)
    (exact,) = torch.autograd.grad((logprobs.exp() * (logprobs - reference)).sum(), logits, retain_graph=True)
    right = {}
    for estimator, corrected in product(("k1", "k2", "k3"), (False, True)):
        terms = estimate_kl(logprobs, reference, estimator)
        if corrected:
            terms = terms * (logprobs - logprobs.detach()).exp()
        (mean,) = torch.autograd.grad((logprobs.detach().exp() * terms).sum(), logits, retain_graph=True)
        right[estimator, corrected] = torch.allclose(mean, exact, rtol=1e-9)
        if estimator == "k1" and not corrected:
            assert mean.abs().max() < 1e-12
    assert right == {(k, c): (k, c) in {("k1", True), ("k2", False), ("k3", True)} for k, c in right}


def test_metrics_by_hand():
    config = ObjectiveConfig(kl={"beta": 0.1, "estimator": "k2"})
    metrics = summarize([policy_loss(example(ref_logprobs=tensor(REF)), config).metrics])
    mismatches = [0.0, log(3), log(2), log(2), log(1 / 0.8)]  # abs(d)
    by_hand = {
        "num_tokens": 5,
        "num_sequences": 2,
        "ratio": (0.5 + 1.1 + 1.5 + 0.7 + 1.4) / 5,
        "ratio_max": 1.5,
        "clip_low": 1 / 5,
        "clip_high": 1 / 5,
        "probability": (exp(-1.0) + exp(-2.0) + exp(-0.5) + exp(-0.3) + exp(-1.7)) / 5,
        "clip_high_probability_max": exp(-0.5),  # of the token whose ratio is 1.5
        "importance_weight": (1.0 + 2.0 + 0.5 + 2.0 + 0.8) / 5,
        "importance_weight_max": 2.0,
        "is_oob_ratio": 1 / 5,  # 3.0 was truncated; 2.0 lies on the bound
        "mismatch": sum(mismatches) / 5,
        "mismatch_max": log(3),
        "token_mult_prob_error": (1 + 3 + 2 + 2 + 1.25) / 5,
        "policy_kl_error": sum(exp(-d) + d - 1 for d in (0.0, log(3), -log(2), log(2), log(0.8))) / 5,
        "gen_kl_error": (0 + (3 - log(3) - 1) + (0.5 + log(2) - 1) + (2 - log(2) - 1) + (0.8 - log(0.8) - 1)) / 5,
    }
    assert {name: metrics[name] for name in by_hand} == pytest.approx(by_hand)
    assert metrics["loss"] == pytest.approx(metrics["policy_loss"] + metrics["kl_loss"])
    assert metrics["entropy_loss"] == 0
    assert metrics["kl_loss"] == pytest.approx(0.1 * metrics["kl"])


def test_the_share_out_of_bounds_counts_sequences_where_sequences_are_dropped():
    def share(**correction):
        return summarize([policy_loss(example(), ObjectiveConfig(correction=correction)).metrics])["is_oob_ratio"]

    assert share(kind="none") == 0
    assert share(kind="icepop", min=0.75, max=2.5) == pytest.approx(2 / 5)
    assert share(kind="seq_mask_tis", min=0.9, max=1.2) == pytest.approx(1 / 2)
    assert share(kind="sequence_mask", max=1.55) == pytest.approx(1 / 2)
    assert share(kind="tis", min=0.6, max=2.5) == pytest.approx(2 / 5)


def test_masked_tokens_are_counted_apart_from_truncated_ones():
    config = ObjectiveConfig(correction={"max": 1.5, "mask": {"max": 2.5}})
    metrics = summarize([policy_loss(example(), config).metrics])
    assert (metrics["masked"], metrics["is_oob_ratio"]) == pytest.approx((1 / 5, 2 / 5))  # w = 3; 3 and 2
    assert metrics["importance_weight_max"] == 1.5


@pytest.mark.parametrize(("p", "q"), [(0.5, 0.5), (0.9, 0.3), (1e-3, 0.6), (1 - 1e-6, 0.999), (0.2, 1.0)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_binary_divergences_are_those_of_two_coins(p, q, dtype):
    learner, engine = (tensor([x]).log().to(dtype) for x in (p, q))
    other = (1 - q) * log((1 - q) / (1 - p)) if q < 1 else 0.0
    # an error of the log-probabilities, relative eps, moves q log(q / p) by q eps log(q / p), and 1 - p by eps
    close = 64 * torch.finfo(dtype).eps * (1 + abs(log(q / p))) + 1e-7 * (q == 1)
    assert compute_binary_divergence(learner, engine, "tv").item() == pytest.approx(abs(p - q), abs=close)
    assert compute_binary_divergence(learner, engine, "kl").item() == pytest.approx(q * log(q / p) + other, abs=close)


@pytest.mark.parametrize(("p", "q"), [(0.5, 0.5), (0.9, 0.3), (1e-3, 0.6)])
def test_jensen_shannon_is_the_mean_of_both_divergences_from_the_mixture(p, q):
    inputs = LossInputs(*(tensor([[log(x)]]) for x in (p, p, q)), advantages=tensor([[1.0]]), mask=torch.ones(1, 1))
    error = summarize([policy_loss(inputs, ObjectiveConfig()).metrics])["js_divergence_error"]
    m = (p + q) / 2
    by_hand = sum(x / m - log(x / m) - 1 for x in (p, q)) / 2
    assert error == pytest.approx(by_hand, abs=1e-12)


@pytest.mark.parametrize(
    ("threshold", "stays"),
    # the second sequence has A < 0, and rollout - logprobs = -log(2 * 0.7), -log(0.8 * 1.4): a mean of -0.225 nats
    [(0.1, True), (None, True)],
)
def test_a_sequence_that_is_close_enough_stays(threshold, stays):
    assert (loss(example(), correction={"off_policy_threshold": threshold}) == loss(example())).item() is stays


def test_a_sequence_of_negative_advantage_that_the_policy_has_left_leaves_the_loss():
    # logprobs half a nat below the engine's everywhere: the threshold of 0.4 is exceeded, and only A < 0 is dropped
    inputs = example(logprobs=tensor(OLD), rollout_logprobs=tensor(OLD) + 0.5)
    weight = exp(-0.5)
    config = ObjectiveConfig(correction={"off_policy_threshold": 0.4})
    output = policy_loss(inputs, config)
    assert output.loss.item() == pytest.approx(-(3 * 2.0 * weight) / 5, abs=1e-12)
    assert summarize([output.metrics])["off_policy"] == pytest.approx(1 / 2)
    assert loss(inputs, correction={"off_policy_threshold": 0.6}).item() == pytest.approx(-(6 - 2) * weight / 5)


def test_an_importance_corrected_penalty_by_hand():
    inputs = example(ref_logprobs=tensor(REF))
    plain = loss(inputs)
    added = loss(inputs, kl={"beta": 0.3, "importance_corrected": True}) - plain
    terms = [
        ratio * (exp(d) - d - 1)
        for refs, olds, ratios, mask in zip(REF, OLD, RATIOS, MASK, strict=True)
        for ref, old, ratio, m in zip(refs, olds, ratios, mask, strict=True)
        if m
        for d in [ref - (old + log(ratio))]
    ]
    assert added.item() == pytest.approx(0.3 * sum(terms) / 5, abs=1e-12)


def test_the_entropy_bonus_is_its_mean_over_trained_tokens():
    entropy = tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 99.0]]).requires_grad_()
    inputs = example(entropy=entropy)
    total = loss(inputs, entropy_coefficient=0.1)
    assert (loss(inputs) - total).item() == pytest.approx(0.1 * (1 + 2 + 3 + 4 + 5) / 5, abs=1e-12)
    parts = summarize([policy_loss(inputs, ObjectiveConfig(entropy_coefficient=0.1)).metrics])
    assert parts["entropy_loss"] == pytest.approx(-0.3)
    assert parts["loss"] == pytest.approx(parts["policy_loss"] + parts["entropy_loss"])
    total.backward()
    torch.testing.assert_close(entropy.grad, tensor([[-0.02] * 3, [-0.02, -0.02, 0.0]]))
    with pytest.raises(ValueError, match=r"entropy_coefficient = 0.1 needs entropy"):
        loss(example(), entropy_coefficient=0.1)


EVERY_KIND = [
    {},
    {"aggregation": "sequence"},
    {"aggregation": "constant", "constant_length": 7},
    {"correction": {"kind": "none"}},
    {"correction": {"kind": "icepop", "min": 0.8, "max": 1.2}},
    {"correction": {"kind": "seq_mask_tis", "min": 0.95, "max": 1.05}},
    {"kl": {"beta": 0.2, "estimator": "k1", "importance_corrected": True}},
    {"kl": {"beta": 0.2, "estimator": "k2"}},
    {"kl": {"beta": 0.2, "estimator": "k3"}, "aggregation": "sequence"},
    {"kl": {"beta": 0.2, "estimator": "k3", "importance_corrected": True}},
    {"correction": {"kind": "sequence_truncate", "max": 1.1}},
    {"correction": {"kind": "sequence_mask", "max": 1.1}},
    {"correction": {"off_policy_threshold": 0.01}},
    {"correction": {"min": 0.9, "max": 1.1, "mask": {"level": "sequence", "min": 0.95}}},
    {"correction": {"kind": "none", "mask": {"metric": "binary_kl", "max": 0.01}}},
    {"dual_clip": 1.2},
    {
        "surrogate": "gspo",
        "aggregation": "sequence",
        "clip_low": 0.05,
        "clip_high": 0.05,
        "correction": {"kind": "none"},
    },
    {"surrogate": "dppo", "correction": {"kind": "none"}, "dppo": {"low": 0.05, "high": 0.1, "kl_weight": 0.3}},
    {"surrogate": "dppo", "correction": {"kind": "none"}, "dppo": {"divergence": "kl", "low": 0.01, "high": 0.02}},
    {"entropy_coefficient": 0.1},
]


def test_every_metric_has_a_definition_with_its_unit():
    inputs = replace(random_inputs(), denominator=None)
    measured = {
        name for config in EVERY_KIND for name in summarize([policy_loss(inputs, ObjectiveConfig(**config)).metrics])
    }
    own = ObjectiveConfig.model_validate({"surrogate": {"function": "mine.loss"}})
    output = policy_loss(inputs, own, lambda row: (row.logprobs, {"<name>": row.logprobs}))
    measured |= summarize([output.metrics]).keys()
    assert measured == SECTIONS["The loss"].keys()
    assert all(metric.meaning for metric in SECTIONS["The loss"].values())


@pytest.mark.parametrize("config", EVERY_KIND)
def test_gradients_are_those_of_finite_differences(config):
    inputs = random_inputs()
    analytic, numeric, h = gradient(inputs, **config), torch.zeros_like(inputs.logprobs), 1e-6
    for index in torch.cartesian_prod(*map(torch.arange, inputs.logprobs.shape)).tolist():
        step = torch.zeros_like(inputs.logprobs)
        step[tuple(index)] = h
        up, down = (loss(replace(inputs, logprobs=inputs.logprobs + s), **config) for s in (step, -step))
        numeric[tuple(index)] = (up - down) / (2 * h)
    torch.testing.assert_close(analytic, numeric, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("config", [{}, {"clip_low": 0.0, "clip_high": 0.0}])
def test_forced_on_policy_ratio_is_1_and_its_gradient_is_the_policy_gradient(config):
    inputs = random_inputs()
    output = policy_loss(inputs, ObjectiveConfig(force_on_policy_ratio=True, **config))
    metrics = summarize([output.metrics])
    assert (metrics["ratio"], metrics["clip_low"], metrics["clip_high"]) == (1, 0, 0)
    weights = (inputs.old_logprobs - inputs.rollout_logprobs).exp().clamp(max=2)
    expected = -(weights * inputs.advantages * inputs.mask) / inputs.mask.sum()
    if not config:
        torch.testing.assert_close(gradient(inputs, force_on_policy_ratio=True), expected)


def test_on_policy_the_clip_bounds_do_not_matter():
    inputs = random_inputs()
    inputs = replace(inputs, old_logprobs=inputs.logprobs)
    narrow = gradient(inputs, clip_low=0.01, clip_high=0.01)
    assert torch.equal(narrow, gradient(inputs, clip_low=0.9, clip_high=9.0))
    assert torch.equal(narrow, gradient(inputs, force_on_policy_ratio=True))


def test_with_equal_engines_every_correction_is_the_plain_policy_gradient():
    inputs = random_inputs()
    inputs = replace(inputs, rollout_logprobs=inputs.old_logprobs)
    plain = gradient(inputs, correction={"kind": "none"})
    for correction in ({"kind": "tis", "max": 1e9}, {"kind": "icepop", "min": 0.5, "max": 5.0}):
        assert torch.equal(gradient(inputs, correction=correction), plain)


def test_an_unbounded_rho_gives_the_raw_importance_weights():
    inputs = random_inputs()
    wide = {"correction": {"kind": "tis", "max": 1e9}}
    raw = {"correction": {"kind": "seq_mask_tis", "min": 0.0, "max": 1e9}}
    assert torch.equal(gradient(inputs, **wide), gradient(inputs, **raw))


def test_without_a_penalty_the_reference_is_never_read():
    inputs = random_inputs()
    unreadable = replace(inputs, ref_logprobs=torch.full_like(inputs.logprobs, float("nan")))
    assert torch.equal(loss(inputs), loss(unreadable))
    assert torch.equal(loss(inputs), loss(replace(inputs, ref_logprobs=None)))
    with pytest.raises(ValueError, match=r"kl.beta = 0.1 needs ref_logprobs"):
        loss(replace(inputs, ref_logprobs=None), kl={"beta": 0.1})


def test_only_the_policys_logprobs_carry_a_gradient():
    inputs = random_inputs()
    names = ["old_logprobs", "rollout_logprobs", "ref_logprobs", "advantages", "logprobs"]
    leaves = {name: getattr(inputs, name).detach().clone().requires_grad_() for name in names}
    loss(replace(inputs, **leaves), kl={"beta": 0.1}).backward()
    assert [name for name in names if leaves[name].grad is not None] == ["logprobs"]


@pytest.mark.parametrize("name", ["logprobs", "old_logprobs", "rollout_logprobs", "advantages", "sequence_ids"])
def test_tensors_of_another_shape_are_refused_by_name(name):
    with pytest.raises(ValueError, match=rf"{name} must be \[batch, seq\] like mask \[4, 6\], got \[4, 5\]"):
        loss(random_inputs(**{name: torch.zeros(4, 5)}))


@pytest.mark.parametrize("config", EVERY_KIND)
def test_bfloat16_inputs_give_the_loss_of_the_same_numbers_in_float32(config):
    names = ("logprobs", "old_logprobs", "rollout_logprobs", "ref_logprobs", "advantages", "entropy")
    inputs = random_inputs()
    low = replace(inputs, **{name: getattr(inputs, name).bfloat16() for name in names})
    wide = replace(inputs, **{name: getattr(low, name).float() for name in names})
    assert torch.equal(loss(low, **config), loss(wide, **config))


def test_bfloat16_logprobs_are_computed_in_float32():
    inputs = random_inputs()
    low = replace(inputs, logprobs=inputs.logprobs.bfloat16())
    assert (
        policy_loss(
            replace(
                low,
                **{n: getattr(low, n).bfloat16() for n in ("old_logprobs", "rollout_logprobs")},
                advantages=low.advantages.bfloat16(),
            ),
            ObjectiveConfig(),
        ).loss.dtype
        == torch.float32
    )
