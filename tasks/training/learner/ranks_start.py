"""Describes how far the start of the learner's ranks is, for log lines and the error that ends the wait."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from tasks.machine.resources import describe_free_resources
from tasks.recipe.learner import LearnerConfig

IMPORT_SECONDS = 240.0
"""Seconds that the imports of torch and DeepSpeed take on a busy laptop. Until then it is not known
whether they have their places in the cluster, and a lack of free CPUs, which are perhaps their own, is not reported."""


def is_one_machine() -> bool:
    """Return whether the Ray cluster is one machine. A run that starts on it has room for all its processes."""
    import ray

    return len(ray.nodes()) == 1


class RanksStart:
    """One start of all ranks.

    Attributes:
        placed: whether all of them have answered, and hence have their places.
    """

    def __init__(self, config: LearnerConfig, limit: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin to measure.

        Args:
            config: the options of the learner.
            limit: the longest wait, seconds, after which `describe` is the error.
            clock: returns the time, seconds.
        """
        self.placed = False
        self._config = config
        self._quiet = min(IMPORT_SECONDS, limit)
        self._clock = clock
        self._began = clock()

    async def describe(self) -> str:
        """Return what the ranks do, or wait for."""
        config = self._config
        many = config.ranks > 1
        ranks = f"{config.ranks} learner ranks" if many else "the learner's rank"
        if self.placed:
            return f"{ranks} load the model and find each other" if many else f"{ranks} loads the model"
        if self._clock() - self._began < self._quiet and await asyncio.to_thread(is_one_machine):
            return f"{ranks} start" if many else f"{ranks} starts"
        waits, ending = ("wait", " each") if many else ("waits", "")
        needed = f"{config.cpus:g} CPUs and, if there are any, a GPU{ending}"
        return f"{ranks} {waits} for a place in the cluster ({needed}); {await describe_free_resources()}"
