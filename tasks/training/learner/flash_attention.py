"""Switches torch's variable-length attention to FlashAttention 4, for which the package `flash-attn-4` is needed.

torch contains FlashAttention 2, and 4 is made for Hopper and Blackwell. torch calls the functions of the package
instead of its kernels, so that `varlen` stays as it is. The switch applies to the whole process.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import attention as torch_attention
from transformers import PreTrainedConfig

from tasks.failures import one_line
from tasks.training.learner.exactness import is_as_exact
from tasks.training.learner.varlen import Bounds, varlen_attention

PACKAGE, VERSION = "flash-attn-4", "4.0.0b16"
"""The package and its version: functions of later ones return more values than torch 2.13 reads."""
LARGEST_HEAD = {9: 256, 10: 128}
"""Largest number of units of a head, by the major number of the GPU's compute capability."""
NARROW = (torch.bfloat16, torch.float16)
"""The types that it computes in."""
LENGTHS = (70, 1, 57)
"""Number of tokens of each sequence of the random row that attention is compared on."""
WINDOW = 24
"""Number of tokens of a sliding window on it."""


@dataclass(frozen=True)
class Heads:
    """The attention heads of a model, which the kernels must support.

    Attributes:
        queries, keys: number of heads of the queries, and of keys and values.
        sizes: number of units of a head of queries and keys, one for each kind of layer. Values are padded to it.
        windows: whether layers use a sliding window; both if only some do.
        capped: whether scores have a soft cap.
    """

    queries: int
    keys: int
    sizes: frozenset[int]
    windows: frozenset[bool]
    capped: bool

    @classmethod
    def from_config(cls, config: PreTrainedConfig) -> Heads:
        """Return the heads of a model with this configuration."""
        text = config.get_text_config()
        queries = getattr(text, "num_attention_heads", 0)  # recurrent models have none
        size = (
            getattr(text, "qk_head_dim", None)  # of multi-head latent attention
            or getattr(text, "head_dim", None)
            or text.hidden_size // max(queries, 1)
        )
        other = getattr(text, "global_head_dim", None)  # Gemma 4's layers without a window
        window = getattr(text, "sliding_window", None) is not None
        kinds = getattr(text, "layer_types", None) or ["sliding_attention" if window else "full_attention"]
        return cls(
            queries=queries,
            keys=getattr(text, "num_key_value_heads", None) or queries,
            sizes=frozenset({size, other or size}),
            windows=frozenset("sliding" in kind for kind in kinds),
            capped=bool(getattr(text, "attn_logit_softcapping", None)),
        )


def find_obstacle(heads: Heads, dtype: torch.dtype, capability: tuple[int, int] | None, version: str | None) -> str:
    """Return why FlashAttention 4 cannot compute a model, or an empty text if nothing is known against it.

    Args:
        heads: the model's heads.
        dtype: type of its activations.
        capability: the GPU's compute capability, or None without a GPU.
        version: the installed version of the package, or None.
    """
    if capability is None:
        return "the learner has no GPU"
    major, minor = capability
    largest = LARGEST_HEAD.get(major, 0)
    odd = [size for size in sorted(heads.sizes) if size % 8 or size > largest]
    reasons = (
        (version is None, f"{PACKAGE} is not installed (the extra `fa4`)"),
        (version != VERSION, f"{PACKAGE} {version} is installed, and torch needs {VERSION}"),
        (not largest, f"the GPU has compute capability {major}.{minor}, and it needs 9 or 10"),
        (dtype not in NARROW, f"it computes in 16 bits, and the model in {str(dtype).removeprefix('torch.')}"),
        (not heads.queries, "the model has no attention"),
        (heads.capped, "it has no soft cap of scores"),
        (odd, f"heads have {sum(odd[:1])} units, and it needs a multiple of 8, at most {largest}"),
    )
    return next((reason for applies, reason in reasons if applies), "")


def find_installed_version() -> str | None:
    """Return the installed version of the package, or None."""
    try:
        return importlib.metadata.version(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return None


def switch_off() -> None:
    """Return to FlashAttention 2, in the whole process."""
    if torch_attention.current_flash_attention_impl() is not None:
        torch_attention.restore_flash_attention_impl()


def switch_on(heads: Heads, dtype: torch.dtype, device: torch.device) -> str:
    """Use FlashAttention 4 from now on in this process if it can compute a model, as exactly as plain attention.

    Args:
        heads: the model's heads.
        dtype: type of its activations.
        device: the device that computes it.

    Returns:
        Why it is not used, or an empty text if it is.
    """
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else None
    return find_obstacle(heads, dtype, capability, find_installed_version()) or try_out(heads, dtype, device)


def try_out(heads: Heads, dtype: torch.dtype, device: torch.device) -> str:
    """Switch it on, and off again if results or gradients on random tensors are less exact than plain attention's.

    The package compiles its kernels at the first call, in about a minute, for the heads that the model has.

    Returns:
        Why it is not used, or an empty text if it is.
    """
    try:
        torch_attention.activate_flash_attention_impl("FA4")
        exact = all(_is_exact(heads, size, windows, dtype, device) for size in heads.sizes for windows in heads.windows)
    except Exception as error:  # of the package, of its compiler, or of torch's calls of it
        switch_off()
        return f"a test of it failed with {type(error).__name__}: {one_line(error)}"
    if not exact:
        switch_off()
        return "its results on random tensors are less exact than plain attention's"
    return ""


def _is_exact(heads: Heads, size: int, windows: bool, dtype: torch.dtype, device: torch.device) -> bool:
    generator = torch.Generator().manual_seed(0)
    shapes = [(1, count, sum(LENGTHS), size) for count in (heads.queries, heads.keys, heads.keys)]
    inputs = [torch.randn(shape, generator=generator).to(device, dtype) for shape in shapes]
    positions = torch.cat([torch.arange(length) for length in LENGTHS])[None].to(device)
    window = WINDOW if windows else None

    def compute_with_kernels(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        layout = Bounds.build(positions)
        return varlen_attention(
            nn.Identity(), queries, keys, values, None, layout=layout, scaling=size**-0.5, sliding_window=window
        )[0]

    return is_as_exact(compute_with_kernels, _make_plain_attention(positions[0], size**-0.5, window), inputs)


def _make_plain_attention(positions: Tensor, scaling: float, window: int | None) -> Callable[..., Tensor]:
    """Return a function that computes attention over a packed row with a mask `[T, T]`."""
    tokens = torch.arange(len(positions), device=positions.device)
    distance = tokens[:, None] - tokens
    seen = (distance >= 0) & (distance <= positions[:, None])
    if window:
        seen &= distance < window

    def attend(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        groups = queries.shape[1] // keys.shape[1]
        keys, values = (heads.repeat_interleave(groups, 1) for heads in (keys, values))
        scores = (queries @ keys.transpose(-1, -2) * scaling).masked_fill(~seen, float("-inf"))
        return (scores.softmax(-1) @ values).transpose(1, 2)  # [1, T, Hq, D]

    return attend
