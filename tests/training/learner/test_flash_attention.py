"""FlashAttention 4: when it is used, and that a package whose functions return other values is not."""

import sys
from types import ModuleType

import deepspeed
import pytest
import torch
from torch.nn.attention import _fa4, current_flash_attention_impl
from transformers import AutoConfig

from tasks.failures import MistakeError
from tasks.recipe.learner import LearnerConfig, check_attention
from tasks.recipe.run import TrainingConfig
from tasks.training.learner import flash_attention, varlen
from tasks.training.learner.flash_attention import (
    VERSION,
    Heads,
    _make_plain_attention,
    find_obstacle,
    switch_off,
    try_out,
)
from tasks.training.learner.trainer import Trainer

CPU = torch.device("cpu")
HEADS = Heads(queries=4, keys=2, sizes=frozenset({16}), windows=frozenset({True, False}), capped=False)
HOPPER, BLACKWELL = (9, 0), (10, 0)


@pytest.mark.parametrize(
    ("heads", "dtype", "capability", "version", "reason"),
    [
        ({}, torch.bfloat16, HOPPER, VERSION, ""),
        ({}, torch.float16, BLACKWELL, VERSION, ""),
        ({"sizes": frozenset({256})}, torch.bfloat16, HOPPER, VERSION, ""),
        ({}, torch.bfloat16, None, VERSION, "the learner has no GPU"),
        ({}, torch.bfloat16, HOPPER, None, "flash-attn-4 is not installed"),
        ({}, torch.bfloat16, HOPPER, "4.0.0b36", f"4.0.0b36 is installed, and torch needs {VERSION}"),
        ({}, torch.bfloat16, (8, 9), VERSION, "compute capability 8.9"),
        ({}, torch.bfloat16, (12, 0), VERSION, "compute capability 12.0"),
        ({}, torch.float32, HOPPER, VERSION, "the model in float32"),
        ({"queries": 0, "keys": 0}, torch.bfloat16, HOPPER, VERSION, "no attention"),
        ({"capped": True}, torch.bfloat16, HOPPER, VERSION, "soft cap"),
        ({"sizes": frozenset({256})}, torch.bfloat16, BLACKWELL, VERSION, "heads have 256 units"),
        ({"sizes": frozenset({64, 512})}, torch.bfloat16, HOPPER, VERSION, "heads have 512 units"),
        ({"sizes": frozenset({60})}, torch.bfloat16, HOPPER, VERSION, "a multiple of 8"),
    ],
)
def test_it_is_used_if_card_type_and_heads_allow(heads, dtype, capability, version, reason):
    given = Heads(**{**vars(HEADS), **heads})
    answer = find_obstacle(given, dtype, capability, version)
    assert reason in answer
    assert bool(reason) == bool(answer)


@pytest.mark.parametrize(
    ("family", "options", "expected"),
    [
        ("qwen2", {}, ((128,), (False,), False)),
        ("olmo3", {"layer_types": ["sliding_attention", "full_attention"]}, ((128,), (False, True), False)),
        ("gemma2", {"head_dim": 256}, ((256,), (False, True), True)),
        ("deepseek_v3", {}, ((192,), (False,), False)),
    ],
)
def test_heads_are_read_from_the_configuration(family, options, expected):
    config = AutoConfig.for_model(
        family, hidden_size=1024, num_attention_heads=8, num_key_value_heads=4, num_hidden_layers=2, **options
    )
    heads = Heads.from_config(config)
    assert (tuple(heads.sizes), tuple(sorted(heads.windows)), heads.capped) == expected
    assert (heads.queries, heads.keys) == (8, 4)


def test_a_model_without_attention_has_no_heads():
    assert Heads.from_config(AutoConfig.for_model("mamba2")).queries == 0


def mask_of(ends, window):
    """`[T, T]`, from the bounds of sequences and the kernels' window."""
    at = torch.arange(int(ends[-1]))
    sequence = torch.bucketize(at, ends[1:], right=True)
    distance = at[:, None] - at
    seen = (sequence[:, None] == sequence) & (distance >= 0)
    return seen if window is None else seen & (distance <= window)


def attend(q, k, v, mask, scale):
    k, v = (heads.repeat_interleave(q.shape[1] // k.shape[1], 1) for heads in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q.double(), k.double()) * scale
    scores = scores.masked_fill(~mask, float("-inf"))
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), v.double()).to(q.dtype), scores.logsumexp(-1).float()


class Package:
    """Functions of a package with the names and arguments that torch calls, on a CPU."""

    def __init__(self, forward_values=2, backward_values=3, factor=1.0):
        self._values = forward_values, backward_values
        self._factor = factor

    def _flash_attn_fwd(self, q, k, v, *, softmax_scale, causal, window_size_left, cu_seqlens_q, **_):
        mask = mask_of(cu_seqlens_q, None if causal else window_size_left)
        out, lse = attend(q, k, v, mask, softmax_scale)
        return (self._factor * out, lse, None, None, None)[: self._values[0]]

    def _flash_attn_bwd(self, q, k, v, out, grad, lse, *, softmax_scale, causal, window_size_left, cu_seqlens_q, **_):
        mask = mask_of(cu_seqlens_q, None if causal else window_size_left)
        with torch.enable_grad():
            leaves = [tensor.detach().requires_grad_() for tensor in (q, k, v)]
            result = attend(*leaves, mask, softmax_scale)[0]
            gradients = torch.autograd.grad(result, leaves, grad)
        return (*gradients, None, None)[: self._values[1]]


class Kernels(torch.autograd.Function):
    """Calls the package as torch's operators do on a GPU."""

    @staticmethod
    def forward(ctx, q, k, v, ends, longest, scale, window):
        ctx.options = ends, ends, scale, window == (-1, 0), *window
        out, lse = _fa4._fa4_run_forward(q, k, v, ends, ends, longest, longest, scale, window == (-1, 0), *window, None)
        ctx.save_for_backward(q, k, v, out, lse)
        return out

    @staticmethod
    def backward(ctx, grad):
        return *_fa4._fa4_run_backward(grad, *ctx.saved_tensors, *ctx.options), None, None, None, None


@pytest.fixture
def install(monkeypatch):
    """Install a package for torch, on a machine without a GPU."""

    def varlen_attn(q, k, v, ends, _, longest, __, *, scale, window_size, **___):
        return Kernels.apply(q, k, v, ends, longest, scale, window_size)

    def install(package):
        module = ModuleType("flash_attn.cute.interface")
        module._flash_attn_fwd, module._flash_attn_bwd = package._flash_attn_fwd, package._flash_attn_bwd
        monkeypatch.setitem(sys.modules, "flash_attn", ModuleType("flash_attn"))
        monkeypatch.setitem(sys.modules, "flash_attn.cute", ModuleType("flash_attn.cute"))
        monkeypatch.setitem(sys.modules, module.__name__, module)
        _fa4._fa4_import_module.cache_clear()

    monkeypatch.setattr(varlen, "varlen_attn", varlen_attn)
    yield install
    switch_off()
    _fa4._fa4_import_module.cache_clear()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_package_that_returns_what_torch_reads_is_used(install, dtype):
    install(Package())
    assert try_out(HEADS, dtype, CPU) == ""
    assert current_flash_attention_impl() == "FA4"
    switch_off()
    assert current_flash_attention_impl() is None


@pytest.mark.parametrize("values", [{"forward_values": 5}, {"backward_values": 5}])
def test_a_package_that_returns_more_values_is_not_used(install, values):
    install(Package(**values))
    assert "ValueError: too many values" in try_out(HEADS, torch.bfloat16, CPU)
    assert current_flash_attention_impl() is None


def test_a_package_that_computes_something_else_is_not_used(install):
    install(Package(factor=1.02))
    assert "less exact" in try_out(HEADS, torch.bfloat16, CPU)
    assert current_flash_attention_impl() is None


def test_a_package_that_cannot_be_imported_is_not_used(monkeypatch):
    monkeypatch.setitem(sys.modules, "flash_attn", None)
    _fa4._fa4_import_module.cache_clear()
    assert "ModuleNotFoundError" in try_out(HEADS, torch.bfloat16, CPU)
    assert current_flash_attention_impl() is None


def test_plain_attention_by_hand():
    positions = torch.tensor([0, 1, 2, 0])
    values = torch.tensor([1.0, 2.0, 4.0, 8.0])[None, None, :, None].double()
    zero = torch.zeros_like(values)  # all scores are equal: a mean over the tokens that are attended to
    assert _make_plain_attention(positions, 1.0, None)(zero, zero, values).flatten().tolist() == [
        1,
        1.5,
        pytest.approx(7 / 3),
        8,
    ]
    assert _make_plain_attention(positions, 1.0, 2)(zero, zero, values).flatten().tolist() == [1, 1.5, 3, 8]


@pytest.fixture
def one_rank(monkeypatch):
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 0)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 1)


def test_a_rank_that_cannot_use_fa4_refuses_it(one_rank, tiny_model):
    config = TrainingConfig(learner=LearnerConfig(attention="fa4"))
    with pytest.raises(MistakeError, match=r"learner\.attention = fa4: the learner has no GPU"):
        Trainer(config, str(tiny_model))


def test_a_rank_prints_why_it_does_not_use_it(one_rank, tiny_model, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (8, 0))
    monkeypatch.setattr(deepspeed, "initialize", None)
    with pytest.raises(TypeError, match="not callable"):  # after attention is chosen
        Trainer(TrainingConfig(learner=LearnerConfig(dtype="float32", fused_layers=False)), str(tiny_model))
    assert "the learner does not use FlashAttention 4: flash-attn-4 is not installed" in capsys.readouterr().err


def test_on_a_machine_that_lacks_it_fa4_is_refused_and_the_rest_is_not():
    for option in ("auto", "fa2"):
        check_attention(LearnerConfig(attention=option), gpu=False)
    with pytest.raises(MistakeError, match=r"learner\.attention = fa4: it needs a GPU"):
        check_attention(LearnerConfig(attention="fa4"), gpu=False)
    if flash_attention.find_installed_version() is None:
        with pytest.raises(MistakeError, match="install the extra `fa4`"):
            check_attention(LearnerConfig(attention="fa4"), gpu=True)
