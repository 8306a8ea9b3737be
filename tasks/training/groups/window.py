"""The window: which groups are sampled ahead of the learner, and where each of their samples stands.

    ask ──► take ──► generated ──► judged ──► keep ──► ready ──► pop: a batch
              ▲          │                └──► drop ◄────┘
              └── lost ◄─┘  its actor was lost: the sample waits again; what was finished stays

A pure state machine: no clock, no asyncio, no processes. Every group that is drawn leaves it exactly once, by `pop` or
by `drop`. A group keeps its place from the moment that it is asked for until it leaves, and `fill` asks for no more
than there are places.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tasks.generation.interface import Completion
from tasks.training.groups.group import Group, Sample, Stage
from tasks.verifiers import Score

Queue = OrderedDict[int, deque[Sample]]
"""Samples that wait, by the number of their group, in the order in which groups are handed out; none is empty."""


@dataclass
class Window:
    """Groups from the asking to the batch.

    Args:
        open_group: draws a prompt, and makes a group of samples that wait; None where no prompt is left.
        suspect_after: a group for which so many actors were lost, in so many places or in all that there are, is
            generated apart from all others (`take_suspects`), so that the next loss says whether its prompt is the
            cause. Losses in one place may be the fault of that.

    Attributes:
        asked: groups that have a place and are not drawn yet.
        in_flight: groups that are sampled or judged, by number.
        ready: groups that wait for a batch, oldest first.
    """

    open_group: Callable[[], Group | None]
    suspect_after: int = 2
    asked: int = 0
    in_flight: dict[int, Group] = field(default_factory=dict)
    ready: deque[Group] = field(default_factory=deque)
    _waiting: Queue = field(default_factory=OrderedDict)
    _suspects: Queue = field(default_factory=OrderedDict)

    @property
    def undecided(self) -> int:
        """Groups that were asked for, and are neither ready nor dropped yet."""
        return self.asked + len(self.in_flight)

    @property
    def places_taken(self) -> int:
        """Groups from the asking to the batch."""
        return self.undecided + len(self.ready)

    @property
    def has_suspects(self) -> bool:
        """Whether samples wait for an actor that generates nothing else."""
        return bool(self._suspects)

    # Asking

    def ask(self, groups: int) -> None:
        """Give places to this many more groups."""
        self.asked += groups

    def fill(self, size: int) -> None:
        """Give places to as many groups as a window of `size` lacks."""
        self.asked += max(size - self.places_taken, 0)

    # Sampling

    def take(self, room: int) -> list[Sample]:
        """Samples of one group, `room` at most, for an actor; empty where nothing waits.

        What was lost comes first. Samples of a group go together, as they share their prompt's KV cache.
        """
        if not self._waiting and self.asked and (group := self.open_group()):
            self.asked -= 1
            self.in_flight[group.number] = group
            self._waiting[group.number] = deque(group.samples)
        return self._first_group(self._waiting, room)

    def take_suspects(self, room: int) -> list[Sample]:
        """Samples of one suspect group, for an actor that generates nothing else."""
        return self._first_group(self._suspects, room)

    def generated(self, sample: Sample, completion: Completion) -> None:
        """An actor has finished `sample`, which is to be judged now."""
        self._move(sample, Stage.GENERATING, Stage.JUDGING)
        sample.completion = completion

    def lost(self, samples: Iterable[Sample], places: int = 1) -> None:
        """An actor was lost that generated these samples: they wait again, before anything new.

        Args:
            places: where there is an actor, that of the lost one included.
        """
        by_group: dict[int, list[Sample]] = {}
        for sample in samples:
            self._move(sample, Stage.GENERATING, Stage.WAITING)
            by_group.setdefault(sample.group.number, []).append(sample)
        for number in reversed(by_group):
            group = self.in_flight[number]
            group.lost_at.append(by_group[number][0].actor)
            if not self._is_suspect(group, places):
                self._waiting.setdefault(number, deque()).extendleft(reversed(by_group[number]))
                self._waiting.move_to_end(number, last=False)
            else:
                self._remove(group)
                self._suspects[number] = _waiting_of(group)

    def judged(self, sample: Sample, score: Score) -> None:
        """`sample` has its judgement."""
        self._move(sample, Stage.JUDGING, Stage.JUDGED)
        sample.score = score

    # Leaving

    def keep(self, group: Group) -> None:
        """A group whose samples are all judged waits for a batch.

        Raises:
            ValueError: a sample is not judged.
        """
        if not group.all_judged:
            raise ValueError(f"group {group.number} has samples that are not judged: it is not ready")
        del self.in_flight[group.number]
        self.ready.append(group)

    def drop(self, group: Group) -> None:
        """The group leaves, from wherever it is; none of its samples waits any more."""
        if self.in_flight.pop(group.number, None) is None:
            self.ready.remove(group)
        else:
            self._remove(group)

    def pop(self, groups: int) -> list[Group]:
        """The oldest groups that are ready leave for a batch, in the order in which their prompts were drawn."""
        return sorted((self.ready.popleft() for _ in range(groups)), key=lambda group: group.number)

    # Over a restart

    def restore(self, ready: Iterable[Group], in_flight: Iterable[Group]) -> list[Sample]:
        """Go on with the groups of a checkpoint; returns the samples that are generated, and are to be judged."""
        self.ready = deque(ready)
        self.in_flight = {group.number: group for group in in_flight}
        self._waiting = OrderedDict(
            (group.number, found) for group in self.in_flight.values() if (found := _waiting_of(group))
        )
        return [
            sample for group in self.in_flight.values() for sample in group.samples if sample.stage is Stage.JUDGING
        ]

    def _is_suspect(self, group: Group, places: int) -> bool:
        n = self.suspect_after
        return len(group.lost_at) >= n and len(set(group.lost_at)) >= min(n, places)

    def _first_group(self, queue: Queue, room: int) -> list[Sample]:
        if not queue:
            return []
        number, samples = next(iter(queue.items()))
        taken = [samples.popleft() for _ in range(min(room, len(samples)))]
        if not samples:
            del queue[number]
        for sample in taken:
            self._move(sample, Stage.WAITING, Stage.GENERATING)
        return taken

    def _remove(self, group: Group) -> None:
        self._waiting.pop(group.number, None)
        self._suspects.pop(group.number, None)

    def _move(self, sample: Sample, before: Stage, after: Stage) -> None:
        if sample.stage is not before or sample.group.number not in self.in_flight:
            raise ValueError(
                f"sample {sample.index} of group {sample.group.number} is {sample.stage.value}: it cannot be "
                f"{after.value}"
            )
        sample.stage = after


def _waiting_of(group: Group) -> deque[Sample]:
    return deque(sample for sample in group.samples if sample.stage is Stage.WAITING)
