"""Finished rollouts -> packed micro-batches.

Sequences of any length lie end to end in one row, without padding, and attention stays within a sequence because
`position_ids` restart at each: from that, transformers builds a block-diagonal causal mask for `sdpa` and `eager` and
calls the variable-length kernels of flash attention. It does so only where it is given neither an attention mask nor a
cache: call the model with `use_cache=False`, or sequences see each other.

A row of T tokens predicts T - 1: the hidden state at position t gives the log-probability of the token at t + 1. Arrays
of what is predicted (`targets` and everything aligned with it) therefore have T - 1 entries, entry t for the token at
t + 1. Where that token opens the next sequence it is a prompt token, which is never trained.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]
Bools = NDArray[np.bool_]

FILLER_LENGTH = 2  # the shortest row that predicts anything


@dataclass(frozen=True)
class Sequence:
    """One rollout as the learner sees it.

    Raises:
        ValueError: the prompt is empty (nothing predicts the first response token), or `rollout_logprobs` or `mask` is
            not as long as `response_ids`.
    """

    prompt_ids: list[int]
    response_ids: list[int]
    rollout_logprobs: list[float]
    """Of each response token, nats, as the inference engine reported them."""
    advantage: float
    mask: list[bool] | None = None
    """Which response tokens are trained; None: all."""

    def __post_init__(self) -> None:
        if not self.prompt_ids:
            raise ValueError("prompt_ids is empty: the first response token has nothing to be predicted from")
        for name, values in (("rollout_logprobs", self.rollout_logprobs), ("mask", self.mask)):
            if values is not None and len(values) != len(self.response_ids):
                raise ValueError(f"{name} has {len(values)} entries for {len(self.response_ids)} response_ids")

    @property
    def length(self) -> int:
        """Tokens of prompt and response."""
        return len(self.prompt_ids) + len(self.response_ids)

    @property
    def num_trained(self) -> int:
        """Response tokens that are trained."""
        return len(self.response_ids) if self.mask is None else sum(self.mask)


@dataclass(frozen=True)
class MicroBatch:
    """One packed row of T tokens, ready for one forward and backward pass."""

    input_ids: Ints
    """`[1, T]`."""
    position_ids: Ints
    """`[1, T]`, from 0 in each sequence."""
    cu_seqlens: NDArray[np.int32]
    """`[sequences + 1]`, where sequences begin and end; padding, if any, is the last of them."""
    targets: Ints
    """`[1, T - 1]`, the predicted tokens."""
    sequence_ids: Ints
    """`[1, T - 1]`, the predicted token's sequence, as its index in the list given to `pack`; -1 on padding."""
    advantages: Floats
    """`[1, T - 1]`, 0 outside the mask."""
    rollout_logprobs: Floats
    """`[1, T - 1]`, 0 outside the mask."""
    mask: Bools
    """`[1, T - 1]`, trained tokens."""

    @property
    def num_tokens(self) -> int:
        """Tokens the model sees, padding included."""
        return int(self.input_ids.size)


def pack(
    sequences: list[Sequence], max_tokens: int, *, ranks: int = 1, pad_to_multiple: int = 1
) -> list[list[MicroBatch]]:
    """Distribute sequences over micro-batches and ranks; every sequence is in exactly one.

    First-fit decreasing into rows of at most `max_tokens`. Every rank gets as many micro-batches as every other,
    because sharded learners must step together: the fullest rows are halved until the count divides, and if there are
    fewer sequences than ranks, the rest are fillers without a trained token. Rows of similar size run at the same time.

    Args:
        sequences: of one global batch.
        max_tokens: tokens of a row, before padding.
        ranks: data-parallel ranks.
        pad_to_multiple: lengthen rows to a multiple of this many tokens, with a sequence of padding (token 0).

    Returns:
        For each rank its micro-batches, in order. The same input gives the same output.

    Raises:
        ValueError: no sequences, one longer than `max_tokens`, or a count below 1.
    """
    _check(sequences, max_tokens, ranks, pad_to_multiple)
    lengths = [sequence.length for sequence in sequences]
    rows = _divide(_first_fit_decreasing(lengths, max_tokens), lengths, ranks)
    return [[_build(row, sequences, pad_to_multiple) for row in share] for share in _deal(rows, lengths, ranks)]


def _first_fit_decreasing(lengths: list[int], max_tokens: int) -> list[list[int]]:
    rows: list[list[int]] = []
    space: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        fits = next((r for r, free in enumerate(space) if lengths[index] <= free), None)
        if fits is None:
            rows.append([])
            space.append(max_tokens)
            fits = len(rows) - 1
        rows[fits].append(index)
        space[fits] -= lengths[index]
    return rows


def _divide(rows: list[list[int]], lengths: list[int], ranks: int) -> list[list[int]]:
    # Rows are in decreasing order of length inside, so that taking every second sequence halves the tokens too.
    rows = list(rows)
    while len(rows) % ranks:
        fullest = max(range(len(rows)), key=lambda r: (len(rows[r]) > 1, _size(rows[r], lengths)))
        if len(rows[fullest]) < 2:
            rows.append([])
        else:
            row = rows[fullest]
            rows[fullest : fullest + 1] = [row[::2], row[1::2]]
    return rows


def _deal(rows: list[list[int]], lengths: list[int], ranks: int) -> list[list[list[int]]]:
    shares: list[list[list[int]]] = [[] for _ in range(ranks)]
    loads = [0] * ranks
    by_size = sorted(rows, key=lambda row: -_size(row, lengths))
    for start in range(0, len(by_size), ranks):
        lightest_first = sorted(range(ranks), key=lambda rank: loads[rank])
        for rank, row in zip(lightest_first, by_size[start : start + ranks], strict=True):
            shares[rank].append(row)
            loads[rank] += _size(row, lengths)
    return shares


def _size(row: list[int], lengths: list[int]) -> int:
    return sum(lengths[i] for i in row)


def _build(row: list[int], sequences: list[Sequence], pad_to_multiple: int) -> MicroBatch:
    chosen = [sequences[i] for i in row]
    lengths = [s.length for s in chosen]
    used = max(sum(lengths), FILLER_LENGTH)
    padding = -(-used // pad_to_multiple) * pad_to_multiple - sum(lengths)
    ends = [length for length in (*lengths, padding) if length]
    ids, logprobs, advantages, mask = [], [], [], []
    for s in chosen:
        trained = [False] * len(s.prompt_ids) + (s.mask or [True] * len(s.response_ids))
        ids += [*s.prompt_ids, *s.response_ids]
        logprobs += [*[0.0] * len(s.prompt_ids), *s.rollout_logprobs]
        advantages += [s.advantage] * s.length
        mask += trained

    def predicted(values: list, dtype: type) -> NDArray:
        return np.array([*values, *[0] * padding], dtype=dtype)[None, 1:]

    trained_only = predicted(mask, np.bool_)
    input_ids = np.array([[*ids, *[0] * padding]], dtype=np.int64)
    return MicroBatch(
        input_ids=input_ids,
        position_ids=np.concatenate([np.arange(n) for n in ends])[None],
        cu_seqlens=np.array([0, *accumulate(ends)], dtype=np.int32),
        targets=input_ids[:, 1:],
        sequence_ids=np.repeat([*row, -1], [*lengths, padding])[None, 1:],
        advantages=np.where(trained_only, predicted(advantages, np.float32), np.float32(0)),
        rollout_logprobs=np.where(trained_only, predicted(logprobs, np.float32), np.float32(0)),
        mask=trained_only,
    )


def _check(sequences: list[Sequence], max_tokens: int, ranks: int, pad_to_multiple: int) -> None:
    if not sequences:
        raise ValueError("there are no sequences to pack")
    for name, value in (("ranks", ranks), ("pad_to_multiple", pad_to_multiple)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    for index, sequence in enumerate(sequences):
        if sequence.length > max_tokens:
            raise ValueError(f"sequence {index} has {sequence.length} tokens, more than max_tokens = {max_tokens}")
