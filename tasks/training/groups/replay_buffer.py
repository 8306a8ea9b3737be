"""Groups that were trained on, for another time."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import TypeAlias

from tasks.training.groups.group import Group
from tasks.training.prompt_options import ReplayConfig

Worth: TypeAlias = tuple[int, float, int]


class ReplayBuffer:
    """At most `config.size` groups; None keeps none.

    Attributes:
        groups: what is kept, by number.
    """

    def __init__(self, config: ReplayConfig | None) -> None:
        self._config = config
        self.groups: dict[int, Group] = {}

    def add(self, group: Group) -> None:
        """Keep a group with signal that was trained on, as long as no better ones push it out."""
        config = self._config
        if config and group.replays < config.max_replays:
            self.groups[group.number] = group
            if len(self.groups) > config.size:
                del self.groups[min(self.groups.values(), key=_worth).number]

    def drop(self, is_stale: Callable[[Group], bool]) -> None:
        """Forget groups that are too old."""
        self.groups = {number: group for number, group in self.groups.items() if not is_stale(group)}

    def take(self) -> Group | None:
        """The group that is worth most leaves, to be trained on again; None where none is left."""
        if not self.groups:
            return None
        group = self.groups.pop(max(self.groups.values(), key=_worth).number)
        group.replays += 1
        return group


def _worth(group: Group) -> Worth:
    """What was replayed least comes first, then what has the largest spread of rewards, then what is newest."""
    return -group.replays, statistics.pstdev(group.scores), group.number
