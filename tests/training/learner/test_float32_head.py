"""The head in float32 between 16-bit layers: what it rounds, in values and gradients."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tasks.recipe.learner import LoraConfig
from tasks.recipe.run import TrainingConfig
from tasks.training.learner.logprobs import token_logprobs
from tasks.training.learner.policy import Policy, make_layout_arguments
from tasks.training.learner.trainer import Trainer

pytestmark = pytest.mark.usefixtures("one_thread")

T, H, V = 23, 16, 50
ROUNDING = {torch.bfloat16: 2**-9, torch.float16: 2**-12, torch.float32: 2**-24}
"""Largest relative error of rounding to the nearest number of a type."""
TYPES = [torch.bfloat16, torch.float16]
HEADS = {
    "plain": {},
    "temperature": {"temperature": 0.6},
    "scale": {"scale": 1 / 8},
    "bias": {"bias": True},
    "cap": {"cap": 3.0},
    "all": {"scale": 0.5, "bias": True, "cap": 3.0, "temperature": 0.6},
}


def inputs(dtype, *, bias=False):
    g = torch.Generator().manual_seed(0)
    tensors = [torch.randn(*shape, generator=g).to(dtype).requires_grad_() for shape in ((T, H), (V, H), (V,))]
    return tensors if bias else tensors[:2], torch.randint(0, V, (T,), generator=g)


def results(leaves, targets, *, entropy_gradient=False, chunk=5, **head):
    """Values [T] of log-probability and entropy, and the gradients of a weighted sum of them."""
    hidden, weight, *bias = leaves
    head = head | {"bias": bias[0] if bias else None}
    values = token_logprobs(hidden, weight, targets, chunk=chunk, entropy_gradient=entropy_gradient, **head)
    upstream = torch.linspace(-1, 2, T, dtype=values[0].dtype)
    loss = (upstream * values[0]).sum() + (0.3 * values[1].sum() if entropy_gradient else 0.0)
    return [value.detach() for value in values], torch.autograd.grad(loss, leaves)


def exact(leaves, targets, **head):
    """The same of a float64 head on the same numbers, whose correctness `test_logprobs` checks."""
    return results([leaf.detach().double().requires_grad_() for leaf in leaves], targets, **head)


def error(ours, theirs):
    return ((ours.double() - theirs).norm() / theirs.norm()).item()


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("entropy_gradient", [False, True])
@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS.keys())
def test_only_the_gradients_are_rounded_to_16_bits_and_once(head, entropy_gradient, dtype):
    head = dict(head)
    leaves, targets = inputs(dtype, bias=head.pop("bias", False))
    head["entropy_gradient"] = entropy_gradient
    (values, gradients), (narrow_values, narrow_gradients), (expected, expected_gradients) = (
        results(leaves, targets, float32=True, **head),
        results(leaves, targets, **head),
        exact(leaves, targets, **head),
    )
    for ours, narrow, theirs in zip(values, narrow_values, expected, strict=True):
        # logits are below 32 here; H + 8 roundings of float32: H products are summed, then the softmax and its sums
        assert (ours.double() - theirs).abs().max() < 32 * (H + 8) * ROUNDING[torch.float32]
        assert error(ours, theirs) < error(narrow, theirs) / 30
    for ours, narrow, theirs in zip(gradients, narrow_gradients, expected_gradients, strict=True):
        assert ours.dtype == dtype
        assert error(ours, theirs) < ROUNDING[dtype]
        assert error(ours, theirs) < error(narrow, theirs)


@pytest.mark.parametrize("chunk", [1, 7, T, 1000])
def test_the_size_of_a_chunk_changes_neither_values_nor_gradients(chunk):
    leaves, targets = inputs(torch.bfloat16)
    values, gradients = results(leaves, targets, float32=True, chunk=chunk)
    whole, of_whole = results(leaves, targets, float32=True, chunk=T)
    torch.testing.assert_close(values, whole, rtol=1e-6, atol=1e-6)
    for ours, theirs in zip(gradients, of_whole, strict=True):
        # a sum in another order may be rounded to the next number
        torch.testing.assert_close(ours, theirs, rtol=2 * ROUNDING[torch.bfloat16], atol=1e-6)


def test_a_head_of_float32_weights_is_not_changed():
    leaves, targets = inputs(torch.float32)
    ours, theirs = (results(leaves, targets, float32=float32) for float32 in (True, False))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def folder(request, tmp_path_factory):
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=61, initializer_range=0.3, tie_word_embeddings=request.param, **sizes)
    path = tmp_path_factory.mktemp("tiny")
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(path)
    return path


def step(folder, lora, **options):
    """A policy in bfloat16 with the gradient of its log-probabilities [1, 11] on one row, which are returned, too."""
    torch.manual_seed(1)
    policy = Policy.load(folder, dtype=torch.bfloat16, lora=lora, **options).train()
    ids = torch.arange(12)[None] * 5
    every = torch.ones(1, 11, dtype=torch.bool)
    logprobs, _ = policy(ids, torch.arange(12)[None], torch.arange(11)[None], ids[:, 1:], every, 1.0)
    (logprobs * torch.linspace(-1, 2, 11)).sum().backward()
    return policy, logprobs.detach()


@pytest.mark.parametrize("lora", [None, LoraConfig(rank=4, alpha=8)], ids=["weights", "adapter"])
def test_a_policy_rounds_no_logit_and_keeps_the_types_of_its_weights(folder, lora):
    policy, logprobs = step(folder, lora, float32_head=True)
    narrow, rounded = step(folder, lora)
    head = policy.model.get_output_embeddings().weight
    hidden = policy.model.base_model(torch.arange(12)[None] * 5, use_cache=False, **layout(policy))[0][0, :-1]
    expected = (hidden.double() @ head.double().T).log_softmax(-1).gather(1, 5 * torch.arange(1, 12)[:, None])[:, 0]
    torch.testing.assert_close(logprobs[0].double(), expected, rtol=0, atol=1e-5)
    assert (rounded[0] - expected).abs().max() > 1e-3
    changed = 0  # both policies have gradients of the same function, in 16 bits
    for (name, ours), (_, theirs) in zip(policy.named_parameters(), narrow.named_parameters(), strict=True):
        assert ours.dtype == theirs.dtype, name
        if ours.requires_grad:
            assert ours.grad.dtype == ours.dtype
            assert error(ours.grad, theirs.grad.double()) < 0.2 or not theirs.grad.any()
            changed += not torch.equal(ours.grad, theirs.grad)
    assert changed


def layout(policy):
    positions = torch.arange(12)[None]
    return {"position_ids": positions, **make_layout_arguments(policy.model, positions)}


@pytest.mark.parametrize("head_dtype", ["model", "float32"])
def test_the_learner_loads_the_head_of_the_recipe(folder, monkeypatch, head_dtype):
    class LoadedError(Exception):
        """Ends the learner's start."""

    def load(*_, float32_head, **__):
        raise LoadedError(float32_head)

    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 0)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 1)
    monkeypatch.setattr(Policy, "load", load)
    with pytest.raises(LoadedError, match=str(head_dtype == "float32")):
        Trainer(TrainingConfig(head_dtype=head_dtype), str(folder))
