"""Packs finished rollouts into micro-batches.

Sequences of any length are concatenated in one row, without padding. `position_ids` separate them: they restart at 0
with each sequence. From them, transformers builds a block-diagonal causal mask for `sdpa` and `eager` and calls the
variable-length kernels of flash attention. It does so only if it gets neither an attention mask nor a cache: call the
model with `use_cache=False`, or sequences attend to each other.

The responses of a group have the same prompt. An attention implementation that supports it (such as
`learner.attention`) can process a row that contains the prompt once, followed by all of its responses:

    prompts apart    p p p a a a  p p p b b  p p p c c c c        18 tokens
    positions        0 1 2 3 4 5  0 1 2 3 4  0 1 2 3 4 5 6
    prompt shared    p p p a a a b b c c c c                      12 tokens
    positions        0 1 2 3 4 5 3 4 3 4 5 6

A position that is neither 0 nor one more than the previous one starts a branch: the tokens that follow continue the
last sequence that started at 0, from that position on.
"""

from __future__ import annotations

import collections.abc
import itertools
import math
from dataclasses import dataclass
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from tasks.generation.interface import Routes
from tasks.training.learner.row_cost import TOKENS, RowCost

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]
Bools = NDArray[np.bool_]
Numbers = collections.abc.Sequence[float] | NDArray[np.int32] | Floats
"""One number for each token."""


@dataclass(frozen=True)
class Sequence:
    """One rollout as training data: prompt, response, log-probabilities and advantage.

    Raises:
        ValueError: the prompt is empty (nothing predicts the first response token), `rollout_logprobs`, `mask`,
            `old_logprobs` or a list of advantages is not as long as `response_ids`, or `routes` has more tokens than
            the sequence.
    """

    prompt_ids: list[int]
    response_ids: Numbers
    rollout_logprobs: Numbers
    """Log-probability of each response token, nats, as the inference engine reported it."""
    advantage: float | Floats
    """Advantage of every token of the response, or `[n]`, one for each token."""
    mask: list[bool] | None = None
    """True for the response tokens that are trained. Optional. If None, all are."""
    old_logprobs: Numbers | None = None
    """Log-probability of each response token, nats, under the learner's policy before the first of several updates on
    the batch. Optional. If None, the policy at the start of the update is used."""
    sample_tokens: int | None = None
    """Number of trained tokens of the sample, if it consists of several sequences. Optional. If None, this sequence is
    the whole sample."""
    kept_as: int | None = None
    """Number under which a step returns the learner's log-probabilities of the response (`StepReport.logprobs`).
    Optional. If None, it does not return them."""
    routes: Routes | None = None
    """The experts that the engine chose for the first tokens of prompt and response, up to all of them. Optional. If
    None, the learner chooses, as it does for the other tokens."""

    def __post_init__(self) -> None:
        if not self.prompt_ids:
            raise ValueError("prompt_ids is empty: the first response token has nothing to be predicted from")
        for name in ("rollout_logprobs", "mask", "old_logprobs"):
            values = getattr(self, name)
            if values is not None and len(values) != len(self.response_ids):
                raise ValueError(f"{name} has {len(values)} entries for {len(self.response_ids)} response_ids")
        if np.ndim(self.advantage) and np.shape(self.advantage) != (len(self.response_ids),):
            raise ValueError(
                f"advantage has {np.size(self.advantage)} entries for {len(self.response_ids)} response_ids"
            )
        if self.routes is not None and len(self.routes) > self.length:
            raise ValueError(f"routes has {len(self.routes)} entries for {self.length} tokens")

    @property
    def length(self) -> int:
        """Number of tokens of prompt and response."""
        return len(self.prompt_ids) + len(self.response_ids)

    @property
    def num_trained(self) -> int:
        """Number of response tokens that are trained."""
        return len(self.response_ids) if self.mask is None else sum(self.mask)

    @property
    def is_returned(self) -> bool:
        """Return whether a step returns log-probabilities. With `old_logprobs` they are known before it."""
        return self.kept_as is not None and self.old_logprobs is None


@dataclass(frozen=True)
class MicroBatch:
    """One packed row of T tokens that predicts its N response tokens; a row without any predicts one masked token."""

    input_ids: Ints
    """`[1, T]`."""
    position_ids: Ints
    """`[1, T]`, counted from 0 in each sequence; a further response to a shared prompt starts at its length."""
    sources: Ints
    """`[1, N]`, index in the row of the hidden state that predicts the token: the index of the token before it."""
    targets: Ints
    """`[1, N]`, the predicted tokens."""
    sequence_ids: Ints
    """`[1, N]`, the predicted token's sequence, as its index in the list given to `pack`; -1 for none."""
    advantages: Floats
    """`[1, N]`, 0 outside the mask."""
    rollout_logprobs: Floats
    """`[1, N]`, 0 outside the mask."""
    mask: Bools
    """`[1, N]`, trained tokens."""
    sample_tokens: Ints
    """`[1, N]`, number of trained tokens of the sample that the predicted token's sequence belongs to."""
    old_logprobs: Floats | None = None
    """`[1, N]`, 0 outside the mask, or None if the sequences have none."""
    returned: Bools | None = None
    """`[1, N]`, tokens of sequences whose log-probabilities a step returns, or None without such sequences."""
    routes: NDArray[np.int16] | None = None
    """`[T, layers, k]`, the experts of each token, -1 if the learner chooses; None if the sequences have no routes."""

    @property
    def num_tokens(self) -> int:
        """Number of tokens T that the model sees."""
        return int(self.input_ids.size)


class RowOptions(TypedDict):
    """The kind of rows that a model supports, as arguments of `pack`."""

    share_prompts: bool
    """True if the model's attention supports rows with shared prompts."""
    alone: bool
    """True if the model passes a state from token to token in addition to attention, so that a row must contain only
    one sequence."""
    cost: RowCost
    """Operations of the model's rows."""


def pack(
    sequences: list[Sequence],
    max_tokens: int,
    *,
    ranks: int = 1,
    share_prompts: bool = False,
    alone: bool = False,
    cost: RowCost = TOKENS,
) -> list[list[MicroBatch]]:
    """Distribute sequences over micro-batches and ranks; every sequence is in exactly one.

    Sequences are packed first-fit decreasing into rows of at most `max_tokens`. Every rank gets the same number of
    micro-batches, because sharded learners must step together: the sequences are distributed over a number of rows
    that is divisible by `ranks`, and if there are fewer sequences than ranks, the other rows are fillers without
    trained tokens. Rows of similar cost run at the same time, because all ranks wait for the slowest.

    Args:
        sequences: the sequences of one global batch.
        max_tokens: largest number of tokens of a row.
        ranks: number of data-parallel ranks.
        share_prompts: keep sequences of one prompt together if they fit, with one copy of the prompt per row.
        alone: give each sequence a separate row.
        cost: operations of a row. Optional. If not given, a row costs as much as it has tokens.

    Returns:
        The micro-batches of each rank, in order. The same input gives the same output.

    Raises:
        ValueError: there are no sequences or no ranks, or a sequence is longer than `max_tokens`.
    """
    _check(sequences, max_tokens, ranks)
    packer = _Packer(sequences, max_tokens, share_prompts, cost)
    rows = packer.make_divisible([[i] for i in range(len(sequences))] if alone else packer.rows(), ranks)
    return [[packer.build(row) for row in share] for share in packer.deal(rows, ranks)]


def collect_by_number(
    sequences: list[Sequence],
    micro_batches: list[list[MicroBatch]],
    returned: list[collections.abc.Sequence[Floats]],
) -> dict[int, Floats]:
    """Return the log-probabilities that the ranks computed in a step, by the number in `Sequence.kept_as`.

    Args:
        sequences: what was given to `pack`.
        micro_batches: its result.
        returned: for each rank the log-probabilities of the `returned` tokens, an array for each micro-batch with any.
    """
    result: dict[int, Floats] = {}
    wanted = [row.sequence_ids[row.returned] for share in micro_batches for row in share if row.returned is not None]
    for ids, values in zip(wanted, itertools.chain(*returned), strict=True):
        for index in set(ids.tolist()):
            number = sequences[index].kept_as
            assert number is not None
            result[number] = values[ids == index]
    return result


class _Packer:
    """Packs sequences into rows. A row is a list of indices into `sequences`, in the order of its responses."""

    def __init__(self, sequences: list[Sequence], max_tokens: int, share_prompts: bool, cost: RowCost) -> None:
        self._sequences = sequences
        self._row_cost = cost
        self._max_tokens = max_tokens
        # sequences of one family may share a prompt
        numbers: dict[tuple[int, ...], int] = {}
        self._family = [
            numbers.setdefault(tuple(sequence.prompt_ids), i) if share_prompts else i
            for i, sequence in enumerate(sequences)
        ]

    def rows(self) -> list[list[int]]:
        """Return rows of at most `max_tokens`; with shared prompts a row contains whole parts of families."""
        families: dict[int, list[int]] = {}
        for i, family in enumerate(self._family):
            families.setdefault(family, []).append(i)
        units = [unit for family in families.values() for unit in self._split_family(family)]
        sizes = [self._size(unit) for unit in units]
        return [[i for unit in row for i in units[unit]] for row in _pack_bins(sizes, self._max_tokens)]

    def _split_family(self, family: list[int]) -> list[list[int]]:
        """Split a family into parts that, with its prompt, fit into a row; first-fit decreasing makes them few."""
        space = self._max_tokens - len(self._sequences[family[0]].prompt_ids)
        parts = _pack_bins([len(self._sequences[i].response_ids) for i in family], space)
        return [[family[i] for i in part] for part in parts]

    def _size(self, row: list[int]) -> int:
        prompts = sum(len(self._sequences[i].prompt_ids) for i in self._find_openers(row))
        return prompts + sum(len(self._sequences[i].response_ids) for i in row)

    def _find_openers(self, row: list[int]) -> list[int]:
        """Return the sequences of a row whose prompt precedes them; the others share an earlier sequence's prompt."""
        return row[:1] + [own for before, own in itertools.pairwise(row) if self._family[before] != self._family[own]]

    def _compute_cost(self, row: list[int]) -> int:
        """Return the operations of a row. A shared prompt counts once."""
        prompts = sum(
            self._row_cost.compute_prompt_cost(len(self._sequences[i].prompt_ids)) for i in self._find_openers(row)
        )
        chosen = [self._sequences[i] for i in row]
        return prompts + sum(
            self._row_cost.compute_response_cost(len(s.prompt_ids), len(s.response_ids)) for s in chosen
        )

    def make_divisible(self, rows: list[list[int]], ranks: int) -> list[list[int]]:
        """Return rows, of about the same cost if possible, whose number is divisible by `ranks`.

        If there are too few sequences or parts of families, the costliest rows are halved.
        """
        if ranks == 1:
            return rows
        rows = self._split_evenly(rows, math.ceil(len(rows) / ranks) * ranks)
        while len(rows) % ranks:
            costliest = max(range(len(rows)), key=lambda r: (len(rows[r]) > 1, self._compute_cost(rows[r])))
            row = rows[costliest]
            if len(row) < 2:
                rows.append([])
            else:
                cut = min(
                    range(1, len(row)), key=lambda c: max(self._compute_cost(row[:c]), self._compute_cost(row[c:]))
                )
                rows[costliest : costliest + 1] = [row[:cut], row[cut:]]
        return rows

    def _split_evenly(self, rows: list[list[int]], number: int) -> list[list[int]]:
        """Distribute what is in rows over at most `number` rows, so that they cost about the same.

        The costliest sequence or part of a family is first, and each goes to the cheapest row that has space (Graham
        1969, "longest processing time"). If one has no space in any row, the rows are returned as they are.
        """
        units = [list(unit) for row in rows for _, unit in itertools.groupby(row, key=self._family.__getitem__)]
        costs = [self._compute_cost(unit) for unit in units]
        even: list[list[int]] = [[] for _ in range(number)]
        loads, space = np.zeros(number, np.int64), np.full(number, self._max_tokens)
        for index in sorted(range(len(units)), key=lambda i: (-costs[i], i)):
            fitting = np.flatnonzero(space >= self._size(units[index]))
            if not len(fitting):
                return list(rows)
            cheapest = fitting[loads[fitting].argmin()]
            even[cheapest] += units[index]
            loads[cheapest] += costs[index]
            space[cheapest] -= self._size(units[index])
        return [row for row in even if row]

    def deal(self, rows: list[list[int]], ranks: int) -> list[list[list[int]]]:
        """Give every rank equally many rows of about the same cost; rows of similar cost run at the same time."""
        shares: list[list[list[int]]] = [[] for _ in range(ranks)]
        loads = [0] * ranks
        by_cost = sorted(((self._compute_cost(row), row) for row in rows), key=lambda costly: -costly[0])
        for start in range(0, len(by_cost), ranks):
            lightest_first = sorted(range(ranks), key=lambda rank: loads[rank])
            for rank, (cost, row) in zip(lightest_first, by_cost[start : start + ranks], strict=True):
                shares[rank].append(row)
                loads[rank] += cost
        return shares

    def build(self, row: list[int]) -> MicroBatch:
        """Return the arrays of a row."""
        ids: list[float] = []
        positions: list[int] = []
        sources: list[int] = []
        openers = set(self._find_openers(row))
        prompt_end = 0  # end, in the row, of the prompt that the next response belongs to
        for index in row:
            sequence = self._sequences[index]
            prompt, response = sequence.prompt_ids, list(sequence.response_ids)
            if index in openers:
                ids += prompt
                positions += range(len(prompt))
                prompt_end = len(ids)
            if response:
                sources += [prompt_end - 1, *range(len(ids), len(ids) + len(response) - 1)]
            ids += response
            positions += range(len(prompt), len(prompt) + len(response))
        if not sources:
            return _make_empty_row(ids or [0], positions or [0])
        chosen = [self._sequences[i] for i in row]
        lengths = [len(s.response_ids) for s in chosen]
        mask = np.concatenate([s.mask or [True] * n for s, n in zip(chosen, lengths, strict=True)]).astype(np.bool_)
        logprobs = np.concatenate([s.rollout_logprobs for s in chosen]).astype(np.float32)
        advantages = np.concatenate(
            [np.broadcast_to(np.asarray(s.advantage, np.float32), n) for s, n in zip(chosen, lengths, strict=True)]
        )
        old = [s.old_logprobs for s in chosen if s.old_logprobs is not None]
        if old and len(old) < len(chosen):
            raise ValueError("of the sequences in a row, all have old_logprobs or none has")
        returned = [s.is_returned for s in chosen]
        return MicroBatch(
            input_ids=_make_row(ids),
            position_ids=_make_row(positions),
            sources=_make_row(sources),
            targets=np.concatenate([s.response_ids for s in chosen]).astype(np.int64)[None],
            sequence_ids=np.repeat(_make_row(row), lengths, axis=1),
            advantages=np.where(mask, advantages, np.float32(0))[None],
            rollout_logprobs=np.where(mask, logprobs, np.float32(0))[None],
            mask=mask[None],
            sample_tokens=np.repeat(_make_row([_sample_tokens(s) for s in chosen]), lengths, axis=1),
            old_logprobs=np.where(mask, np.concatenate(old), 0)[None].astype(np.float32) if old else None,
            returned=np.repeat([returned], lengths, axis=1) if any(returned) else None,
            routes=self._routes(row, openers),
        )

    def _routes(self, row: list[int], openers: set[int]) -> NDArray[np.int16] | None:
        """Return the routes of a row's tokens. A shared prompt has the routes of the first sequence."""
        parts: list[NDArray[np.int16]] = []
        for index in row:
            sequence = self._sequences[index]
            if sequence.routes is None:
                continue
            missing = sequence.length - len(sequence.routes)
            routes = np.pad(sequence.routes.astype(np.int16), ((0, missing), (0, 0), (0, 0)), constant_values=-1)
            parts.append(routes if index in openers else routes[len(sequence.prompt_ids) :])
        if parts and len(parts) < len(row):
            raise ValueError("of the sequences in a row, all have routes or none has")
        return np.concatenate(parts) if parts else None


def _make_row(values: collections.abc.Sequence[float]) -> Ints:
    return np.array([values], dtype=np.int64)


def _sample_tokens(sequence: Sequence) -> int:
    return sequence.num_trained if sequence.sample_tokens is None else sequence.sample_tokens


def _make_empty_row(ids: list[float], positions: list[int]) -> MicroBatch:
    nothing = np.zeros((1, 1), dtype=np.float32)
    return MicroBatch(
        input_ids=_make_row(ids),
        position_ids=_make_row(positions),
        sources=_make_row([0]),
        targets=_make_row([0]),
        sequence_ids=_make_row([-1]),
        advantages=nothing,
        rollout_logprobs=nothing,
        mask=nothing.astype(np.bool_),
        sample_tokens=_make_row([0]),
    )


def _pack_bins(sizes: list[int], capacity: int) -> list[list[int]]:
    """Return the indices of `sizes` in bins of at most `capacity`, the largest first."""
    bins: list[list[int]] = []
    space: list[int] = []
    for index in sorted(range(len(sizes)), key=lambda i: (-sizes[i], i)):
        fits = next((b for b, free in enumerate(space) if sizes[index] <= free), None)
        if fits is None:
            bins.append([])
            space.append(capacity)
            fits = len(bins) - 1
        bins[fits].append(index)
        space[fits] -= sizes[index]
    return bins


def _check(sequences: list[Sequence], max_tokens: int, ranks: int) -> None:
    if not sequences:
        raise ValueError("there are no sequences to pack")
    if ranks < 1:
        raise ValueError(f"ranks must be at least 1, got {ranks}")
    for index, sequence in enumerate(sequences):
        if sequence.length > max_tokens:
            raise ValueError(f"sequence {index} has {sequence.length} tokens, more than max_tokens = {max_tokens}")
