"""How a batch is cut, laid out or ordered does not change its loss; what is outside the mask does not exist."""

from dataclasses import fields, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tasks.objective import LossInputs, policy_loss, summarize
from tasks.recipe.objective import ObjectiveConfig
from tests.examples import examples

PROPERTY = settings(deadline=None, max_examples=examples(60), derandomize=True)
EVERY_KIND = [
    {},
    {"aggregation": "sequence", "kl": {"beta": 0.1}},
    {"aggregation": "constant", "constant_length": 50},
    {"correction": {"kind": "icepop", "min": 0.8, "max": 1.2}},
    {"correction": {"kind": "seq_mask_tis", "min": 0.9, "max": 1.1}},
    {"aggregation": "sequence", "correction": {"kind": "seq_mask_tis", "min": 0.9, "max": 1.1}},
    {"force_on_policy_ratio": True},
    {"surrogate": "cispo"},
    {"surrogate": "gspo", "aggregation": "sequence", "correction": {"kind": "sequence_truncate", "max": 1.5}},
    {"dual_clip": 3.0, "correction": {"kind": "sequence_mask", "max": 1.5, "off_policy_threshold": 0.05}},
    {"entropy_coefficient": 0.1, "kl": {"beta": 0.1, "importance_corrected": True}},
    {"surrogate": "dppo", "correction": {"kind": "none"}, "dppo": {"low": 0.05, "high": 0.1, "kl_weight": 0.3}},
    {"surrogate": "dppo", "correction": {"kind": "none"}, "dppo": {"divergence": "kl", "low": 0.01, "high": 0.02}},
    {"correction": {"min": 0.8, "max": 1.2, "mask": {"level": "sequence", "min": 0.95, "max": 1.1}}},
    {"correction": {"mask": {"metric": "tv", "level": "sequence", "max": 0.15, "increase_only": True}}},
    {"correction": {"kind": "none", "mask": {"metric": "binary_tv", "max": 0.05}}},
    {"correction": {"mask": {"metric": "binary_kl", "level": "sequence", "max": 0.01}}},
]
TENSORS = ("logprobs", "old_logprobs", "rollout_logprobs", "ref_logprobs", "entropy", "advantages", "mask")


def padded_batch(lengths=(3, 7, 1, 5, 7, 2, 4, 6), seed=1):
    g = torch.Generator().manual_seed(seed)
    shape = (len(lengths), max(lengths))

    def draw(scale):
        return torch.randn(shape, generator=g, dtype=torch.float64) * scale

    old = -draw(1.0).abs()
    return LossInputs(
        logprobs=old + draw(0.3),
        old_logprobs=old,
        rollout_logprobs=old + draw(0.2),
        ref_logprobs=old + draw(0.3),
        entropy=draw(1.0).abs(),
        advantages=draw(1.0)[:, :1].expand(shape).contiguous(),
        mask=torch.arange(shape[1])[None] < torch.tensor(lengths)[:, None],
    )


def rows(inputs, index, **changes):
    taken = {f.name: getattr(inputs, f.name) for f in fields(inputs)}
    taken = {name: value[index] if isinstance(value, torch.Tensor) else value for name, value in taken.items()}
    return LossInputs(**{**taken, **changes})


def packed(inputs, padding=3):
    """The same sequences end to end in two rows, with junk of every kind as padding."""
    half = len(inputs.mask) // 2
    result = {}
    lengths = inputs.mask.sum(dim=1).tolist()
    size = max(sum(lengths[:half]), sum(lengths[half:])) + padding
    for name in (*TENSORS, "sequence_ids"):
        values = torch.arange(len(lengths))[:, None].expand_as(inputs.mask) if name == "sequence_ids" else None
        values = getattr(inputs, name) if values is None else values
        filler = {"mask": False, "sequence_ids": -1}.get(name, float("nan"))
        out = torch.full((2, size), filler, dtype=values.dtype)
        for row, group in enumerate((slice(None, half), slice(half, None))):
            flat = values[group][inputs.mask[group]]
            out[row, : len(flat)] = flat
        result[name] = out
    return LossInputs(**result)


def run(batches, config):
    """Loss, gradients of each batch and metrics of one global batch, given as micro-batches."""
    config = ObjectiveConfig(**config)
    total, grads, metrics = 0.0, [], []
    for batch in batches:
        logprobs = batch.logprobs.detach().clone().requires_grad_()
        output = policy_loss(replace(batch, logprobs=logprobs), config)
        output.loss.backward()
        total += output.loss.item()
        grads.append(logprobs.grad)
        metrics.append(output.metrics)
    return total, grads, summarize(metrics)


def denominator(inputs, config):
    return ObjectiveConfig(**config).denominator(inputs.mask.sum(dim=1).tolist())


@pytest.mark.parametrize("config", EVERY_KIND)
def test_packing_equals_padding(config):
    inputs = padded_batch()
    bins = packed(inputs)
    loss, (grad,), metrics = run([inputs], config)
    packed_loss, (packed_grad,), packed_metrics = run([bins], config)
    # float64 sums in another order
    assert packed_loss == pytest.approx(loss, abs=1e-14)
    torch.testing.assert_close(packed_grad[bins.mask], grad[inputs.mask], rtol=1e-12, atol=0)
    assert packed_metrics == pytest.approx(metrics, rel=1e-12)


@pytest.mark.parametrize("config", EVERY_KIND)
def test_sequence_ids_may_be_any_integers_and_repeat_in_another_row(config):
    bins = packed(padded_batch())
    ids = bins.sequence_ids
    renamed = torch.where(ids >= 0, ids % 4 * 5 + 2, ids)
    assert run([replace(bins, sequence_ids=renamed)], config)[0] == pytest.approx(run([bins], config)[0], abs=1e-14)


@pytest.mark.parametrize("config", EVERY_KIND)
def test_four_accumulated_micro_batches_equal_one_batch_in_any_order(config):
    inputs = padded_batch()
    count = denominator(inputs, config)
    loss, (grad,), metrics = run([inputs], config)
    micro = [rows(inputs, slice(i, i + 2), denominator=count) for i in range(0, 8, 2)]
    for order in ([0, 1, 2, 3], [3, 1, 0, 2]):
        pieces_loss, grads, pieces_metrics = run([micro[i] for i in order], config)
        assert pieces_loss == pytest.approx(loss, abs=1e-14)
        torch.testing.assert_close(torch.cat([grads[order.index(i)] for i in range(4)]), grad, rtol=1e-12, atol=0)
        assert pieces_metrics == pytest.approx(metrics, rel=1e-12)


@pytest.mark.parametrize("config", EVERY_KIND[1:3])
def test_a_sample_in_pieces_weighs_as_much_as_one_in_one_piece(config):
    """Rows 0 and 1 are pieces of one sample of 3 + 7 tokens, be they in one micro-batch or in two."""
    inputs = padded_batch()
    lengths = inputs.mask.sum(dim=1)
    tokens = torch.cat([lengths[:2].sum().expand(2), lengths[2:]])[:, None].expand_as(inputs.mask)
    count = ObjectiveConfig(**config).denominator([10, *lengths[2:].tolist()])
    inputs = replace(inputs, sample_tokens=tokens, denominator=count)
    loss, (grad,), metrics = run([inputs], config)
    apart = [rows(inputs, slice(*bounds), denominator=count) for bounds in ((0, 1), (1, 8))]
    loss_apart, grads, metrics_apart = run(apart, config)
    assert loss_apart == pytest.approx(loss, abs=1e-14)
    torch.testing.assert_close(torch.cat(grads), grad, rtol=1e-12, atol=0)
    assert metrics_apart == pytest.approx(metrics, rel=1e-12)
    assert metrics["num_sequences"] == 7


@pytest.mark.parametrize("config", EVERY_KIND)
def test_a_micro_batch_without_trained_tokens_adds_nothing(config):
    inputs = padded_batch()
    filler = rows(inputs, slice(0, 1), mask=torch.zeros(1, 7, dtype=torch.bool))
    given = {"denominator": denominator(inputs, config)}
    loss, _, metrics = run([replace(inputs, **given)], config)
    with_filler, grads, filled_metrics = run([replace(filler, **given), replace(inputs, **given)], config)
    assert with_filler == loss
    assert (grads[0] == 0).all()
    assert filled_metrics == metrics
    assert run([filler], config)[0] == 0  # nor on its own, where the denominator would be 0


def test_the_denominator_may_be_a_tensor():
    inputs = padded_batch()
    one, two = (run([replace(inputs, denominator=d)], {})[0] for d in (70.0, torch.tensor(70)))
    assert one == two


def test_there_is_nothing_to_summarize_in_no_metrics():
    with pytest.raises(ValueError, match="no metrics"):
        summarize([])


EXTREME = st.floats(-1e4, 0, width=32) | st.sampled_from([0.0, -1e-30, -30.0, -1e30])
JUNK = st.sampled_from([0.0, float("nan"), float("inf"), float("-inf")])
SHAPE = (2, 3)


@pytest.mark.parametrize("config", EVERY_KIND)
@PROPERTY
@given(data=st.data())
def test_whatever_the_mask_and_the_numbers_nothing_is_nan_and_nothing_leaks(config, data):
    mask = torch.from_numpy(data.draw(arrays(bool, SHAPE)))
    junk = torch.from_numpy(data.draw(arrays("float32", SHAPE, elements=JUNK)))
    draws = {name: torch.from_numpy(data.draw(arrays("float32", SHAPE, elements=EXTREME))) for name in TENSORS[:5]}
    advantages = torch.from_numpy(data.draw(arrays("float32", SHAPE, elements=st.floats(-100, 100, width=32))))
    values = {name: torch.where(mask, value, junk) for name, value in {**draws, "advantages": advantages}.items()}
    values["logprobs"].requires_grad_()
    output = policy_loss(LossInputs(**values, mask=mask), ObjectiveConfig(**config))
    output.loss.backward()
    grad = values["logprobs"].grad
    assert not output.loss.isnan()
    assert (grad[~mask] == 0).all()
    assert not grad.isnan().any()
    assert not any(value.isnan() for value in output.metrics.values())


@pytest.mark.parametrize("config", EVERY_KIND)
def test_one_trained_token_is_enough(config):
    inputs = padded_batch(lengths=(1,))
    loss, (grad,), metrics = run([inputs], config)
    assert torch.tensor(loss).isfinite()
    assert grad.shape == (1, 1)
    assert metrics["num_tokens"] == metrics["num_sequences"] == 1
