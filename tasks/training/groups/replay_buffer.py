"""Stores groups that were trained on, and may be trained on again in place of zero-variance groups."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from tasks.recipe.prompts import ReplayConfig
from tasks.training.groups.group import JudgedGroup

Priority: TypeAlias = tuple[int, float, int]
"""Priority of a group in the buffer. The largest is replayed first, and the smallest is discarded first."""


class ReplayBuffer:
    """Stores up to `config.size` groups with the highest priorities. Without a config it stays empty.

    Attributes:
        groups: the groups in the buffer, by number.
    """

    def __init__(self, config: ReplayConfig | None) -> None:
        self._config = config
        self.groups: dict[int, JudgedGroup] = {}

    def add(self, group: JudgedGroup) -> None:
        """Add a group that was trained on and carries a gradient, unless it was replayed `max_replays` times.

        If the buffer is full, the group with the lowest priority is removed.
        """
        config = self._config
        if config and group.replays < config.max_replays:
            self.groups[group.number] = group
            if len(self.groups) > config.size:
                del self.groups[min(self.groups.values(), key=_compute_priority).number]

    def drop(self, is_stale: Callable[[JudgedGroup], bool]) -> None:
        """Remove the groups for which `is_stale` returns True."""
        self.groups = {number: group for number, group in self.groups.items() if not is_stale(group)}

    def take(self) -> JudgedGroup | None:
        """Remove and return the group with the highest priority, with its replays incremented, or None if empty."""
        if not self.groups:
            return None
        group = self.groups.pop(max(self.groups.values(), key=_compute_priority).number)
        return replace(group, replays=group.replays + 1)


def _compute_priority(group: JudgedGroup) -> Priority:
    """Prefer groups with fewer replays, then with a larger standard deviation of scores, then newer ones."""
    return -group.replays, statistics.pstdev(group.scores), group.number
