"""Causal attention over a packed row on GPUs: torch's own kernels for sequences of many lengths, from no other package.

They take the tokens of a row as they lie, and the bounds of its sequences:

    row     a a a b b b b c c          T tokens, end to end
    ends    0     3       7   9        where each begins, and the last one ends

Without them transformers would give torch a mask `[T, T]`, of which a row of n sequences uses one part in n, and with
which torch has no flash attention.
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
"""Name under which transformers knows this attention (`attn_implementation`)."""
CAPABILITY = (8, 0)
"""Smallest compute capability of a GPU that the kernels run on: Ampere."""
# Before 2.13 torch does not ask whether heads are grouped: the kernels are the same, and see it from the shapes.
_GROUPED: dict[str, Any] = {"enable_gqa": True} if "enable_gqa" in inspect.signature(varlen_attn).parameters else {}


def serves(dtype: torch.dtype) -> bool:
    """Return whether the kernels can run here: on a GPU that has them, and in 16 bits."""
    narrow = dtype in (torch.bfloat16, torch.float16)
    return narrow and torch.cuda.is_available() and torch.cuda.get_device_capability() >= CAPABILITY


@dataclass(frozen=True)
class Bounds:
    """The bounds of the sequences of one packed row; the same for every layer, so made once per row.

    Attributes:
        ends: int32 `[n + 1]` on the row's device, 0 and the end of each of n sequences.
        longest: tokens of the longest sequence.
    """

    ends: Tensor
    longest: int

    @classmethod
    def of(cls, position_ids: Tensor) -> Bounds:
        """Return the bounds that the `position_ids` `[1, T]` of a packed row have.

        Raises:
            ValueError: not one row, a row that does not start with 0, or one in which responses share a prompt, which
                the kernels do not know.
        """
        if position_ids.ndim != 2 or len(position_ids) != 1:
            raise ValueError(f"position_ids must be one row, got shape {list(position_ids.shape)}")
        positions = position_ids[0].cpu()  # once a row, where every look at a single number would wait for the GPU
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
    """Compute grouped-query causal attention within each sequence of a packed row, behind transformers' interface.

    Args:
        module: the attention module; not used.
        query: `[1, Hq, T, D]`, 16 bits.
        key: `[1, Hk, T, D]`; query head h reads key head h // (Hq / Hk).
        value: `[1, Hk, T, Dv]`; Dv is D but in multi-head latent attention, where it is smaller.
        attention_mask: None; the layout takes its part.
        layout: of the row, given to the model's forward as a keyword.
        scaling: factor on the scores.
        dropout: 0.
        sliding_window: tokens that a token attends to, itself included; None: all before it.
        softcap, s_aux: None; variants of attention that the kernels do not know.
        model_inputs: further arguments that transformers passes to every attention, such as `position_ids`; not used.

    Returns:
        `[1, T, Hq, Dv]`, and None in place of the attention weights.

    Raises:
        ValueError: an attention mask, dropout, or a variant, which would be ignored.
    """
    refuse_variants(attention_mask=attention_mask, softcap=softcap, s_aux=s_aux, dropout=dropout or None)
    narrower = query.shape[-1] - value.shape[-1]
    if narrower:  # the kernels take heads of one size alone
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
