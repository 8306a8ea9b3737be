"""Replaces element-wise functions of a model's layers by fused ones, which read and write their tensors once.

    norms       x / rms(x) * weight                   torch's `rms_norm`
    rotary      q * cos + rotate_half(q) * sin        the model's function, compiled
    gated MLP   activation(gate) * up                 the model's activation and the product, compiled

Compiled functions have no parameters, and a norm uses only its module's, so that ZeRO 3 can gather parameters by module
as before. A function is replaced only if it is as exact on random tensors (`is_as_exact`). The forward pass is
replaced in the module and not in its class, so that other models stay as they are.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch._dynamo.exc import TorchDynamoException
from transformers import PreTrainedModel

from tasks.failures import one_line
from tasks.training.learner.exactness import is_as_exact
from tasks.training.learner.sharding import get_whole_shape

NORMS, ROTARY, MLPS = "norms", "rotary embedding", "gated MLPs"
"""The kinds of functions that are replaced."""
TOKENS = 64
"""Number of tokens of the random tensors that functions are compared on."""
WIDTH = 128
"""Number of units of a gated MLP on random tensors."""
_ROTARY = "apply_rotary_pos_emb"
"""Name of the function of a modeling module that rotates queries and keys."""
_GATED = ("act_fn", "gate_proj", "up_proj", "down_proj")
"""Names of the modules of a gated MLP."""
_PRODUCTS: dict[object, Callable[[Tensor, Tensor], Tensor]] = {}
"""Compiled products of gated MLPs by their activation: each layer has its own copy of it, and one kernel is enough."""


class FusedForward:
    """A forward pass of one module with fused functions, which `switched_off` recognises."""

    def __init__(self, module: nn.Module, function: Callable[..., Any]) -> None:
        """`function` gets the module as its first argument, as the forward pass of a class does."""
        self._module = module
        self._function = function

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Run the forward pass."""
        return self._function(self._module, *arguments, **options)


@dataclass
class Replacements:
    """The number of modules of a model that were changed by `fuse`, and why others were not.

    Attributes:
        counts: number of modules whose forward pass was replaced, by kind.
        reasons: why a kind was not replaced in all its modules.
    """

    counts: Counter[str] = field(default_factory=Counter)
    reasons: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        """Return the kinds that were replaced, and the reasons for the others, for a log line."""
        parts = [f"{kind} in {count} modules" for kind, count in self.counts.items()]
        parts += [f"not {kind}: {reason}" for kind, reason in self.reasons.items()]
        return "; ".join(parts) or "nothing, since the model has no layers of the known kinds"


def fuse(model: PreTrainedModel, device: torch.device) -> Replacements:
    """Replace the functions of a model's layers by fused ones if these are as exact.

    Args:
        model: changed in place.
        device: the device that the model will compute on. Functions are compared there.
    """
    replacements = Replacements()
    verdicts: dict[object, str | None] = {}
    for kind, candidate in ((NORMS, _make_fused_norm), (ROTARY, _make_fused_rotary), (MLPS, _make_fused_mlp)):
        for module in model.modules():
            fused = None if "forward" in vars(module) else candidate(module, model, device)
            if fused is None:
                continue
            if fused.key not in verdicts:
                verdicts[fused.key] = _find_obstacle(fused)
            if reason := verdicts[fused.key]:
                replacements.reasons.setdefault(kind, reason)
            else:
                module.forward = FusedForward(module, fused.forward)
                replacements.counts[kind] += 1
    return replacements


@contextlib.contextmanager
def switched_off(model: nn.Module) -> Iterator[None]:
    """Use the model's own functions within the block."""
    fused = [(module, module.forward) for module in model.modules() if isinstance(module.forward, FusedForward)]
    for module, _ in fused:
        del module.forward
    try:
        yield
    finally:
        for module, forward in fused:
            module.forward = forward


@dataclass(frozen=True)
class _Candidate:
    """A forward pass that may replace that of a module.

    Attributes:
        key: equal for modules that need only one comparison.
        forward: the forward pass.
        is_as_exact: function that compares it with the module's own on random tensors.
    """

    key: object
    forward: Callable[..., Any]
    is_as_exact: Callable[[], bool]


def _find_obstacle(candidate: _Candidate) -> str | None:
    """Compare a fused forward pass with the original one, and return why it cannot be used, or None."""
    try:
        exact = candidate.is_as_exact()
    except TorchDynamoException as error:
        first_line, _, _ = str(error).partition("\n")  # others are about torch's variables for debugging
        return f"the compiler failed: {first_line}"
    except Exception as error:  # any model's functions are called here, and they may need other arguments
        return f"a comparison failed with {type(error).__name__}: {one_line(error)}"
    return None if exact else "it would compute something else"


@cache
def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function compiled for tensors of any shape, the same for all models. It is compiled when it runs."""
    compiled: Callable[..., Any] = torch.compile(function, dynamic=True)
    return compiled


def _make_fused_norm(module: nn.Module, model: PreTrainedModel, device: torch.device) -> _Candidate | None:
    """Return a root mean square norm (Zhang and Sennrich 2019, arXiv:1910.07467) with torch's kernel."""
    original = type(module).forward
    weight = module._parameters.get("weight")
    named = type(module).__name__.endswith("RMSNorm") and not isinstance(module, nn.RMSNorm)
    eps = next((name for name in ("variance_epsilon", "eps") if isinstance(getattr(module, name, None), float)), None)
    if not named or weight is None or eps is None or not _takes_one_tensor(original):
        return None
    shape, epsilon = get_whole_shape(weight), getattr(module, eps)

    def forward(self: Any, hidden: Tensor) -> Tensor:
        if hidden.dtype != self.weight.dtype:  # such as Mamba 2's residual in float32
            return original(self, hidden)
        return nn.functional.rms_norm(hidden, shape, self.weight, epsilon)

    def run(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda hidden, values: function(_copy_module(module, _parameters={"weight": values}), hidden)

    def compare() -> bool:
        inputs = _sample_tensors(weight.dtype, device, (TOKENS, *shape), shape)
        return is_as_exact(run(forward), run(original), inputs)

    return _Candidate((type(module), shape, epsilon, weight.dtype), forward, compare)


def _make_fused_mlp(module: nn.Module, model: PreTrainedModel, device: torch.device) -> _Candidate | None:
    """Return a gated MLP (Shazeer 2020, arXiv:2002.05202) whose activation and product are one compiled function."""
    original = type(module).forward
    if not all(hasattr(module, name) for name in _GATED) or not _takes_one_tensor(original):
        return None
    activation: Any = module.act_fn
    if isinstance(activation, nn.Module) and next(activation.parameters(), None) is not None:
        return None
    kind = (type(activation), _collect_settings(activation)) if isinstance(activation, nn.Module) else activation
    if kind not in _PRODUCTS:
        _PRODUCTS[kind] = compiled(_make_product(activation))
    product = _PRODUCTS[kind]

    def forward(self: Any, hidden: Tensor) -> Tensor:
        down: Tensor = self.down_proj(product(self.gate_proj(hidden), self.up_proj(hidden)))
        return down

    def run(function: Callable[..., Any]) -> Callable[..., Any]:
        halves = {"gate_proj": _Half(0), "up_proj": _Half(1), "down_proj": nn.Identity()}
        return lambda hidden: function(_copy_module(module, _modules=module._modules | halves), hidden)

    def compare() -> bool:
        return is_as_exact(run(forward), run(original), _sample_tensors(model.dtype, device, (TOKENS, 2 * WIDTH)))

    return _Candidate((type(module), _collect_settings(module), kind), forward, compare)


def _make_fused_rotary(module: nn.Module, model: PreTrainedModel, device: torch.device) -> _Candidate | None:
    """Return a forward pass of an attention module with its rotary embedding (Su et al. 2021, arXiv:2104.09864)
    compiled, or None if the module does not call `apply_rotary_pos_emb`.
    """
    original = type(module).forward
    function = getattr(original, "__globals__", {}).get(_ROTARY)
    if not isinstance(original, FunctionType) or _ROTARY not in original.__code__.co_names or function is None:
        return None
    replacement = compiled(function)

    def compare(cos: Tensor, sin: Tensor) -> bool:
        size = getattr(module, "head_dim", cos.shape[-1])
        heads = _sample_tensors(model.dtype, device, (1, TOKENS, 4, size), (1, TOKENS, 2, size))
        queries, keys = (one.transpose(1, 2) for one in heads)  # as layers pass them, so that they are compiled once
        return is_as_exact(replacement, function, (queries, keys), (cos, sin))

    def compare_angles() -> bool:
        return all(compare(*angles) for angles in _compute_angles(model, device))

    forward = _replace_globals(original, **{_ROTARY: replacement})
    return _Candidate((type(module), getattr(module, "head_dim", None)), forward, compare_angles)


def _compute_angles(model: PreTrainedModel, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield cosines and sines `[1, T, D]` of the first tokens, as each kind of layer gets them."""
    hidden = torch.zeros(1, TOKENS, 1, dtype=model.dtype, device=device)
    positions = torch.arange(TOKENS, device=device)[None]
    for module in model.modules():
        if not type(module).__name__.endswith("RotaryEmbedding"):
            continue
        if "layer_type" in inspect.signature(module.forward).parameters:
            for kind in sorted(set(model.config.get_text_config().layer_types)):
                yield module(hidden, positions, kind)
        else:
            yield module(hidden, positions)


def _make_product(activation: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    def compute_product(gate: Tensor, up: Tensor) -> Tensor:
        return activation(gate) * up

    return compute_product


class _Half(nn.Module):
    """Returns one half of the units, instead of a projection."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self._number = number

    def forward(self, hidden: Tensor) -> Tensor:
        """Return units `[T, n / 2]` of `[T, n]`."""
        return hidden.chunk(2, -1)[self._number]


def _takes_one_tensor(forward: Callable[..., Any]) -> bool:
    return len(inspect.signature(forward).parameters) == 2


def _collect_settings(module: nn.Module) -> tuple[tuple[str, object], ...]:
    """Return the numbers and texts that a module was made with."""
    named = ((name, value) for name, value in vars(module).items() if not name.startswith("_") and name != "training")
    return tuple(sorted((name, value) for name, value in named if isinstance(value, int | float | str)))


def _copy_module(module: nn.Module, **attributes: Any) -> nn.Module:
    """Return a shallow copy of a module, with other values of these attributes."""
    other = copy.copy(module)
    vars(other).update(attributes)
    return other


def _replace_globals(function: FunctionType, **names: Any) -> FunctionType:
    """Return a copy of a function, with other values of these globals."""
    values = {**function.__globals__, **names}
    other = FunctionType(function.__code__, values, function.__name__, function.__defaults__, function.__closure__)
    other.__kwdefaults__ = function.__kwdefaults__
    return other


def _sample_tensors(dtype: torch.dtype, device: torch.device, *shapes: Sequence[int]) -> list[Tensor]:
    """Return normally distributed tensors, the same for each call."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(*shape, generator=generator).to(device, dtype) for shape in shapes]
