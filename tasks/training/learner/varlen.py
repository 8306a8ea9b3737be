"""Computes causal attention over a packed row on GPUs, by torch's variable-length kernels, without another package.

The kernels take the tokens of a row in order, and the bounds of its sequences:

    row     a a a b b b b c c          T tokens, end to end
    ends    0     3       7   9        where each begins, and the last one ends

Without them transformers would pass torch a mask `[T, T]`. A row of n sequences uses only one n-th of it, and torch has
no flash attention with a mask.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention.varlen import varlen_attn

from tasks.training.learner.attention import refuse_variants

NAME = "varlen"
"""Name of this attention in transformers (`attn_implementation`)."""
CAPABILITY = (8, 0)
"""Smallest compute capability of a GPU that the kernels run on: Ampere."""
# Before 2.13 torch has no argument for grouped heads: the kernels are the same, and infer it from the shapes.
_GROUPED: dict[str, Any] = {"enable_gqa": True} if "enable_gqa" in inspect.signature(varlen_attn).parameters else {}


def can_run(dtype: torch.dtype) -> bool:
    """Return whether the kernels can run here: on a GPU that supports them, and in 16 bits."""
    narrow = dtype in (torch.bfloat16, torch.float16)
    return narrow and torch.cuda.is_available() and torch.cuda.get_device_capability() >= CAPABILITY


@dataclass(frozen=True)
class Bounds:
    """The bounds of the sequences of one packed row; the same for every layer, so computed once per row.

    Attributes:
        ends: int32 `[n + 1]` on the row's device, 0 and the end of each of n sequences.
        longest: number of tokens of the longest sequence.
    """

    ends: Tensor
    longest: int

    @classmethod
    def build(cls, position_ids: Tensor) -> Bounds:
        """Return the bounds of the sequences of a packed row, from its `position_ids` `[1, T]`.

        Raises:
            ValueError: there is not exactly one row, the row does not start with 0, or its responses share a prompt,
                which the kernels do not support.
        """
        if position_ids.ndim != 2 or len(position_ids) != 1:
            raise ValueError(f"position_ids must be one row, got shape {list(position_ids.shape)}")
        positions = position_ids[0].cpu()  # once per row: every access to a single number would wait for the GPU
        opens = positions == 0
        if not opens[0] or not (opens[1:] | (positions[1:] == positions[:-1] + 1)).all():
            raise ValueError("position_ids must count from 0 in each sequence: no prompt can be shared here")
        ends = torch.cat([opens.nonzero()[:, 0], torch.tensor([len(positions)])])
        return cls(ends=ends.to(position_ids.device, torch.int32), longest=int(ends.diff().max()))


def varlen_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    layout: Bounds,
    scaling: float,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **model_inputs: object,
) -> tuple[Tensor, None]:
    """Compute grouped-query causal attention within each sequence of a packed row, with transformers' interface.

    Args:
        module: the attention module; not used.
        query: `[1, Hq, T, D]`, 16 bits.
        key: `[1, Hk, T, D]`; query head h reads key head h // (Hq / Hk).
        value: `[1, Hk, T, Dv]`; Dv is D except in multi-head latent attention, which has a smaller Dv.
        attention_mask: must be None; the layout replaces it.
        layout: layout of the row, passed to the model's forward as a keyword argument.
        scaling: factor on the scores.
        dropout: must be 0.
        sliding_window: number of tokens that a token attends to, including itself. Optional. If None, it attends to all
            tokens before it.
        softcap, s_aux: must be None; variants of attention that the kernels do not support.
        model_inputs: other arguments that transformers passes to every attention, such as `position_ids`; not used.

    Returns:
        `[1, T, Hq, Dv]`, and None instead of the attention weights.

    Raises:
        ValueError: an attention mask, dropout, or an unsupported variant is given, which would be ignored.
    """
    refuse_variants(attention_mask=attention_mask, softcap=softcap, s_aux=s_aux, dropout=dropout or None)
    narrower = query.shape[-1] - value.shape[-1]
    if narrower:  # the kernels require heads of one size
        value = nn.functional.pad(value, (0, narrower))
    q, k, v = (heads[0].transpose(0, 1) for heads in (query, key, value))  # [T, H, D]
    out = varlen_attn(
        q,
        k,
        v,
        layout.ends,
        layout.ends,
        layout.longest,
        layout.longest,
        scale=scaling,
        window_size=(-1 if sliding_window is None else sliding_window - 1, 0),
        **_GROUPED,
    )
    assert isinstance(out, Tensor)
    return out[None, ..., : out.shape[-1] - narrower], None
