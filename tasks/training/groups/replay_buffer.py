"""The replay buffer: groups that were trained on, and may be trained on again in place of zero-variance groups."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from tasks.training.groups.group import JudgedGroup
from tasks.training.prompt_options import ReplayConfig

Priority: TypeAlias = tuple[int, float, int]
"""Key by which groups of the buffer are compared; the largest is replayed first, the smallest discarded first."""


class ReplayBuffer:
    """At most `config.size` groups, the best of those that were added; without a config it stays empty.

    Attributes:
        groups: the groups in the buffer, by number.
    """

    def __init__(self, config: ReplayConfig | None) -> None:
        self._config = config
        self.groups: dict[int, JudgedGroup] = {}

    def add(self, group: JudgedGroup) -> None:
        """Add a group that was trained on and carries a gradient, unless it was replayed `max_replays` times.

        Where the buffer is full, the group of the lowest priority leaves it.
        """
        config = self._config
        if config and group.replays < config.max_replays:
            self.groups[group.number] = group
            if len(self.groups) > config.size:
                del self.groups[min(self.groups.values(), key=_priority).number]

    def drop(self, is_stale: Callable[[JudgedGroup], bool]) -> None:
        """Remove the groups of which `is_stale` is true."""
        self.groups = {number: group for number, group in self.groups.items() if not is_stale(group)}

    def take(self) -> JudgedGroup | None:
        """Remove the group of the highest priority, and return it with one replay more; None from an empty buffer."""
        if not self.groups:
            return None
        group = self.groups.pop(max(self.groups.values(), key=_priority).number)
        return replace(group, replays=group.replays + 1)


def _priority(group: JudgedGroup) -> Priority:
    """Prefer the group that was replayed least, then the one of the largest spread of scores, then the newest."""
    return -group.replays, statistics.pstdev(group.scores), group.number
