"""Computes causal attention over a packed row on machines without a GPU.

transformers offers two ways there: a dense `[T, T]` mask, although a row of n sequences uses only one n-th of it, or
one sequence at a time. Here the sequences of a row are batched in blocks of similar length,

    row     a a a b b b b c c          T tokens, end to end
    blocks  [b b b b | a a a .]        2 sequences of 4 slots
            [c c]                      1 sequence of 2 slots

and each block is two batched matrix products with a causal softmax between them. If responses share a prompt, each
response gets a copy of the prompt's keys in its slots, and the gradients of the copies are added up. No other part of
the model sees the empty slots and the copies.

A sequence joins a block if the block's longest sequence is at most `STRETCH` times as long, so that no sequence costs
more than `STRETCH ** 2` times the square of its length. Scores need memory quadratic in the length. From `LONG` tokens
on, a sequence is a separate block and uses torch's `scaled_dot_product_attention`, which needs linear memory and, at
these lengths, no more time. If a layer's attention has a window, such a sequence is processed in chunks of queries,
each with the keys that its window reaches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from tasks.failures import MistakeError

if TYPE_CHECKING:
    from torch.autograd.function import FunctionCtx

    class _Context(FunctionCtx):
        layout: Layout


NAME = "packed_blocks"
"""Name of this attention in transformers (`attn_implementation`)."""
STRETCH = 1.5
"""Largest ratio of the longest to the shortest sequence of a block."""
LONG = 640
"""Smallest number of tokens of a sequence that is a separate block."""


@dataclass(frozen=True)
class Block:
    """A batch of `count` sequences of up to `length` tokens, in the slots from `start` on."""

    start: int
    count: int
    length: int

    @property
    def slots(self) -> int:
        """Number of slots of the block, empty ones included."""
        return self.count * self.length


@dataclass(frozen=True)
class Copy:
    """A copy of `count` tokens of a shared prompt, from `token` of the row on, in the slots from `slot` on."""

    token: int
    slot: int
    count: int


@dataclass(frozen=True)
class Layout:
    """The slots of the tokens of one packed row; the same for every layer, so built once per row.

    Attributes:
        slots: int64 `[T]`, the slot of each token; the slots of a shared prompt are before its first response.
        copies: copies of shared prompts, before every further response.
        blocks: blocks in order, without gaps between them.
    """

    slots: Tensor
    copies: tuple[Copy, ...]
    blocks: tuple[Block, ...]

    @property
    def num_slots(self) -> int:
        """Number of token positions of all blocks, padding included."""
        return self.blocks[-1].start + self.blocks[-1].slots

    @classmethod
    def build(cls, position_ids: Tensor) -> Layout:
        """Return the blocks of tokens that attend to each other in a packed row, from its `position_ids` `[1, T]`.

        A row contains sequences one after the other; responses to one prompt branch off from a position of the prompt
        (see `packing`).

        Raises:
            ValueError: there is not exactly one row, the row does not start with 0, or it has a branch from a position
                that its sequence does not reach.
        """
        if position_ids.ndim != 2 or len(position_ids) != 1 or position_ids[0, 0] != 0:
            raise ValueError(f"position_ids must be one row that starts at 0, got shape {list(position_ids.shape)}")
        branches = _find_branches(position_ids[0])
        lengths = [branch.length for branch in branches]
        blocks: list[Block] = []
        copies: list[Copy] = []
        slots = torch.empty(position_ids.shape[1], dtype=torch.int64)
        used = 0
        for group in _split_into_blocks(lengths):
            block = Block(start=used, count=len(group), length=lengths[group[0]])
            for number, index in enumerate(group):
                branch, first = branches[index], used + number * block.length
                if branch.shared:
                    copies.append(Copy(token=branch.root, slot=first, count=branch.shared))
                slots[branch.start : branch.end] = torch.arange(first + branch.shared, first + branch.length)
            blocks.append(block)
            used += block.slots
        return cls(slots=slots.to(position_ids.device), copies=tuple(copies), blocks=tuple(blocks))


@dataclass(frozen=True)
class _Branch:
    """Tokens `start` to `end` of a row, after the first `shared` tokens of the sequence that starts at `root`."""

    start: int
    end: int
    root: int
    shared: int

    @property
    def length(self) -> int:
        return self.shared + self.end - self.start


def _find_branches(positions: Tensor) -> list[_Branch]:
    breaks = (positions[1:] != positions[:-1] + 1).nonzero()[:, 0] + 1
    starts = [0, *breaks.tolist()]
    branches: list[_Branch] = []
    root = _Branch(start=0, end=0, root=0, shared=0)
    for start, end in zip(starts, [*starts[1:], len(positions)], strict=True):
        shared = int(positions[start])
        if shared > root.length:
            raise ValueError(
                f"position_ids branch at token {start} from position {shared} of a sequence of {root.length} tokens"
            )
        branch = _Branch(start=start, end=end, root=root.start if shared else start, shared=shared)
        if not shared:
            root = branch
        branches.append(branch)
    return branches


def _split_into_blocks(lengths: Sequence[int]) -> list[list[int]]:
    """Group the sequences into blocks; return the indices of each block, the longest sequence first."""
    groups: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        longest = lengths[groups[-1][0]] if groups else 0
        if groups and longest < LONG and longest <= STRETCH * lengths[index]:
            groups[-1].append(index)
        else:
            groups.append([index])
    return groups


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    layout: Layout,
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
        query: `[1, Hq, T, D]`.
        key: `[1, Hk, T, D]`; query head h reads key head h // (Hq / Hk).
        value: `[1, Hk, T, Dv]`; Dv is D except in multi-head latent attention (DeepSeek-V2, arXiv:2405.04434).
        attention_mask: must be None; the layout replaces it.
        layout: layout of the row, passed to the model's forward as a keyword argument.
        scaling: factor on the scores.
        dropout: must be 0.
        sliding_window: number of tokens that a token attends to, including itself. Optional. If None, it attends to all
            tokens before it.
        softcap: bound of the scores, `softcap * tanh(scores / softcap)` (Gemma 2). Optional. If None, they are not
            bounded.
        s_aux: must be None; a variant of attention that is not implemented here.
        model_inputs: other arguments that transformers passes to every attention, such as `position_ids`; not used.

    Returns:
        `[1, T, Hq, Dv]`, and None instead of the attention weights.

    Raises:
        ValueError: an attention mask, dropout, or an unsupported variant is given, which would be ignored.
    """
    refuse_variants(attention_mask=attention_mask, s_aux=s_aux, dropout=dropout or None)
    heads, tokens, width = query.shape[1:]
    groups = key.shape[1]
    # the rows of the query heads of a group are interleaved, [Hk, slots, Hq / Hk, D]: one product then serves the group
    q = _spread(query[0].view(groups, -1, tokens, width).transpose(1, 2), layout)
    k, v = _spread(key[0], layout), _spread(value[0], layout)
    parts = []
    for block in layout.blocks:
        slots = slice(block.start, block.start + block.slots)
        window = sliding_window if sliding_window and sliding_window < block.length else None
        parts.append(_attend(q[:, slots], k[:, slots], v[:, slots], block, scaling, window, softcap))
    out = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)  # [Hk, slots, Hq / Hk, Dv]
    return _Collect.apply(out, layout).transpose(0, 1).reshape(1, tokens, heads, value.shape[-1]), None


def refuse_variants(**variants: object) -> None:
    """Raise `ValueError` if a variant of attention is requested that is not implemented and would be ignored."""
    refused = [name for name, value in variants.items() if value is not None]
    if refused:
        raise MistakeError(f"packed attention is plain causal attention and cannot apply {', '.join(refused)}")


def _attend(
    q: Tensor, k: Tensor, v: Tensor, block: Block, scaling: float, window: int | None, softcap: float | None
) -> Tensor:
    """Compute attention in one block: q `[Hk, slots, Hq / Hk, D]`, k `[Hk, slots, D]`, v `[Hk, slots, Dv]`.

    Returns `[Hk, slots, Hq / Hk, Dv]`.
    """
    groups, _, per_group, width = q.shape
    if block.length >= LONG and softcap is None:  # torch's attention supports no cap
        out = _attend_alone(q.transpose(1, 2).flatten(0, 1)[None], k[None], v[None], scaling, window)
        return out.view(groups, per_group, -1, v.shape[-1]).transpose(1, 2)
    q = q.reshape(groups * block.count, block.length * per_group, width)
    k, v = (x.reshape(groups * block.count, block.length, x.shape[-1]) for x in (k, v))
    bias = q.new_full((block.length, block.length), float("-inf")).triu_(1)
    if window:
        bias += torch.full_like(bias, float("-inf")).tril_(-window)
    bias, k = bias.repeat_interleave(per_group, dim=0), k.transpose(1, 2)
    if softcap is None:
        scores = torch.baddbmm(bias, q, k, alpha=scaling)
    else:
        scores = torch.tanh(torch.bmm(q, k) * (scaling / softcap)) * softcap + bias
    return torch.bmm(scores.softmax(dim=-1), v).view(groups, block.slots, per_group, v.shape[-1])


def _attend_alone(q: Tensor, k: Tensor, v: Tensor, scaling: float, window: int | None) -> Tensor:
    """Compute attention of one long sequence: q `[1, Hq, L, D]`, k `[1, Hk, L, D]`, v `[1, Hk, L, Dv]`.

    Returns `[1, Hq, L, Dv]`.
    """
    if window is None:
        return scaled_dot_product_attention(q, k, v, is_causal=True, scale=scaling, enable_gqa=True)
    parts = []
    step = max(window, LONG)
    for start in range(0, q.shape[2], step):
        end, first = min(start + step, q.shape[2]), max(0, start + 1 - window)
        keys, values = k[:, :, first:end], v[:, :, first:end]
        before = torch.arange(start, end)[:, None] - torch.arange(first, end)  # distance from a query to a key
        mask = (before >= 0) & (before < window)
        parts.append(
            scaled_dot_product_attention(
                q[:, :, start:end], keys, values, attn_mask=mask, scale=scaling, enable_gqa=True
            )
        )
    return torch.cat(parts, dim=2)


class _Spread(torch.autograd.Function):
    """Scatters T tokens, `[H, T, ...]`, into the padded layout `[H, slots, ...]` of a row's blocks.

    Tokens of a shared prompt are copied into the slots of each response. Padding slots contain zeros.
    """

    @staticmethod
    def forward(ctx: _Context, tokens: Tensor, layout: Layout) -> Tensor:
        ctx.layout = layout
        slots = _to_slots(tokens, layout)
        for copy in layout.copies:
            slots[:, copy.slot : copy.slot + copy.count] = tokens[:, copy.token : copy.token + copy.count]
        return slots

    @staticmethod
    def backward(ctx: _Context, grad: Tensor) -> tuple[Tensor, None]:
        tokens = grad.index_select(1, ctx.layout.slots)
        for copy in ctx.layout.copies:
            tokens[:, copy.token : copy.token + copy.count] += grad[:, copy.slot : copy.slot + copy.count]
        return tokens, None


class _Collect(torch.autograd.Function):
    """Gathers the outputs of T tokens, `[H, T, ...]`, from the padded layout `[H, slots, ...]` of a row's blocks.

    torch's backward pass of `index_select` adds row by row, which is many times slower.
    """

    @staticmethod
    def forward(ctx: _Context, slots: Tensor, layout: Layout) -> Tensor:
        ctx.layout = layout
        return slots.index_select(1, layout.slots)

    @staticmethod
    def backward(ctx: _Context, grad: Tensor) -> tuple[Tensor, None]:
        return _to_slots(grad, ctx.layout), None


def _spread(tokens: Tensor, layout: Layout) -> Tensor:
    return _Spread.apply(tokens, layout)


def _to_slots(tokens: Tensor, layout: Layout) -> Tensor:
    shape = (tokens.shape[0], layout.num_slots, *tokens.shape[2:])
    return tokens.new_zeros(shape).index_copy_(1, layout.slots, tokens)
