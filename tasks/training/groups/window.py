"""Tracks the groups that are sampled ahead of the learner (the window), and the stage of each of their samples.

    ask ──► take ──► generated ──► judged ──► finish ──► ready ──► pop: a batch
              ▲          │                └──► drop ◄────┘
              └ requeue ◄┘  its actor was lost: the sample waits again; finished ones stay

The window is a pure state machine without clock, asyncio or processes. Every group that is opened leaves it exactly
once, by `pop` or by `drop`. A group counts towards the window's size from its request until it leaves.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tasks.generation.interface import Completion
from tasks.training.groups.group import Group, JudgedGroup, Sample, Stage
from tasks.verifiers import Score

Queue = OrderedDict[int, deque[Sample]]
"""Waiting samples by group number, in hand-out order. No entry is empty."""


@dataclass
class Window:
    """All groups of a run from the request for a prompt to the batch.

    Args:
        open_group: samples a prompt and returns a new group for it whose samples wait, or None if no prompt is left.
        suspect_after: number of lost actors on different slots after which a group is suspect, or the number of slots
            with an actor if that is smaller. A suspect group is generated alone on an actor (`take_suspects`), so that
            one more loss shows that its prompt is the cause. Repeated losses on one slot may be caused by that slot.

    Attributes:
        asked: number of groups that were requested and are not opened yet.
        in_flight: groups that are being generated or scored, by number.
        ready: scored groups that wait for a batch, oldest first.
    """

    open_group: Callable[[], Group | None]
    suspect_after: int = 2
    asked: int = 0
    in_flight: dict[int, Group] = field(default_factory=dict)
    ready: deque[JudgedGroup] = field(default_factory=deque)
    _waiting: Queue = field(default_factory=OrderedDict)
    _suspects: Queue = field(default_factory=OrderedDict)

    @property
    def undecided(self) -> int:
        """Number of groups that were requested, and are neither ready nor dropped yet."""
        return self.asked + len(self.in_flight)

    @property
    def size(self) -> int:
        """Number of groups in the window: requested, in flight, or ready."""
        return self.undecided + len(self.ready)

    @property
    def has_suspects(self) -> bool:
        """Return whether samples of a suspect group wait for a reserved actor."""
        return bool(self._suspects)

    # Requesting groups

    def ask(self, groups: int) -> None:
        """Request this many more groups."""
        self.asked += groups

    def fill(self, size: int) -> None:
        """Request as many groups as the window needs to reach this size."""
        self.asked += max(size - self.size, 0)

    # Sampling

    def take(self, limit: int) -> list[Sample]:
        """Return up to `limit` waiting samples of one group for an actor, or an empty list if none waits.

        Samples of lost actors come first. Samples of a group stay together, because they share their prompt's KV cache.
        """
        if not self._waiting and self.asked and (group := self.open_group()):
            self.asked -= 1
            self.in_flight[group.number] = group
            self._waiting[group.number] = deque(group.samples)
        return self._take_first_group(self._waiting, limit)

    def take_suspects(self, limit: int) -> list[Sample]:
        """Return up to `limit` waiting samples of one suspect group, for an actor that generates nothing else."""
        return self._take_first_group(self._suspects, limit)

    def generated(self, sample: Sample, completion: Completion) -> None:
        """Record the response that an actor generated for `sample`. It is scored next."""
        self._move(sample, Stage.GENERATING, Stage.JUDGING)
        sample.completion = completion

    def requeue(self, samples: Iterable[Sample], actors: int = 1) -> None:
        """Put the unfinished samples of a lost actor back in the queue, before new samples.

        Args:
            samples: the samples that it was generating.
            actors: number of slots that had an actor when it was lost, including its slot.
        """
        by_group: dict[int, list[Sample]] = {}
        for sample in samples:
            self._move(sample, Stage.GENERATING, Stage.WAITING)
            by_group.setdefault(sample.group.number, []).append(sample)
        # Each group moves to the front of the queue, and `extendleft` reverses its samples: reversed twice, both keep
        # their order.
        for number in reversed(by_group):
            group = self.in_flight[number]
            # one entry for each lost actor, however many of the group's samples it had
            group.lost_at.append(by_group[number][0].actor)
            if not self._is_suspect(group, actors):
                self._waiting.setdefault(number, deque()).extendleft(reversed(by_group[number]))
                self._waiting.move_to_end(number, last=False)
            else:
                # its samples that waited before move as well: the whole group is generated alone
                self._remove(group)
                self._suspects[number] = _collect_waiting(group)

    def judged(self, sample: Sample, score: Score) -> None:
        """Record the score of `sample`."""
        self._move(sample, Stage.JUDGING, Stage.JUDGED)
        sample.score = score

    # Leaving

    def finish(self, group: JudgedGroup) -> None:
        """Mark a group whose samples are all scored as ready for a batch.

        Raises:
            ValueError: a sample of the group is not scored.
            KeyError: the group is not in flight.
        """
        if not group.sampled.all_judged:
            raise ValueError(f"group {group.number} has samples that are not scored: it is not ready")
        del self.in_flight[group.number]
        self.ready.append(group)

    def drop(self, group: Group | JudgedGroup) -> None:
        """Remove a group in any stage, with its waiting samples.

        Raises:
            ValueError: the group is not in the window.
        """
        if self.in_flight.pop(group.number, None):
            self._remove(group)
        elif isinstance(group, JudgedGroup) and group in self.ready:
            self.ready.remove(group)
        else:
            raise ValueError(f"group {group.number} is not in the window: it cannot be dropped")

    def pop(self, groups: int) -> list[JudgedGroup]:
        """Remove the oldest ready groups for a batch, and return them in the order in which they were opened."""
        return sorted((self.ready.popleft() for _ in range(groups)), key=lambda group: group.number)

    # Resuming

    def restore(self, ready: Iterable[JudgedGroup], in_flight: Iterable[Group]) -> list[Sample]:
        """Continue with the groups of a checkpoint. Return the generated samples that are not scored yet."""
        self.ready = deque(ready)
        self.in_flight = {group.number: group for group in in_flight}
        self._waiting = OrderedDict(
            (group.number, waiting) for group in self.in_flight.values() if (waiting := _collect_waiting(group))
        )
        # generated before the checkpoint: only their scoring is repeated
        return [
            sample for group in self.in_flight.values() for sample in group.samples if sample.stage is Stage.JUDGING
        ]

    def _is_suspect(self, group: Group, actors: int) -> bool:
        # Repeated losses on one slot may be the slot's fault. With fewer actors than `suspect_after`, every slot has to
        # have lost one.
        n = self.suspect_after
        return len(group.lost_at) >= n and len(set(group.lost_at)) >= min(n, actors)

    def _take_first_group(self, queue: Queue, limit: int) -> list[Sample]:
        if not queue:
            return []
        # one group for each call, so that its samples share the KV cache of their prompt in one engine
        number, samples = next(iter(queue.items()))
        taken = [samples.popleft() for _ in range(min(limit, len(samples)))]
        if not samples:
            del queue[number]
        for sample in taken:
            self._move(sample, Stage.WAITING, Stage.GENERATING)
        return taken

    def _remove(self, group: Group | JudgedGroup) -> None:
        self._waiting.pop(group.number, None)
        self._suspects.pop(group.number, None)

    def _move(self, sample: Sample, before: Stage, after: Stage) -> None:
        if sample.stage is not before or sample.group.number not in self.in_flight:
            raise ValueError(
                f"sample {sample.index} of group {sample.group.number} is {sample.stage.value}: it cannot be "
                f"{after.value}"
            )
        sample.stage = after


def _collect_waiting(group: Group) -> deque[Sample]:
    return deque(sample for sample in group.samples if sample.stage is Stage.WAITING)
