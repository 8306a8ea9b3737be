"""The end of a training run whose processes need more memory than this machine or pod has."""

from __future__ import annotations

import asyncio

from tasks.machine.memory_limit import MemoryLimitError, watch
from tasks.machine.ray_memory import RayMemory
from tasks.training.config import TrainingConfig
from tasks.training.restart_budget import RestartBudget

LOOK_SECONDS = 5.0
"""Seconds between two looks at all nodes; a process that is lost is looked after at once."""
RETRIES = 1
"""Number of times within the window that kills are answered by new processes; the next one ends the run."""


async def killed_again(memory: RayMemory, config: TrainingConfig) -> None:
    """Wait until processes of the run were killed twice within `learner.restart_window_seconds`, whichever they were.

    Kills at one time may have been a peak that does not come again, and the run goes on with new processes. After a
    second time the next will follow, in this attempt and in those that Flyte would make. All nodes count together.

    Raises:
        MemoryLimitError: that has happened; the only way in which it ends.
    """
    clock, counted = asyncio.get_running_loop().time, watch().kills
    budget = RestartBudget(RETRIES, config.learner.restart_window_seconds)
    while True:
        await memory.look()
        for _ in range(counted, watch().kills):
            budget.record(clock())
        counted = watch().kills
        if (times := budget.used(clock())) > budget.limit:
            raise MemoryLimitError(
                f"{watch().report()}; it was so {times} times within {budget.window_seconds:g} s, and more would "
                "follow: the run ends, and its newest checkpoint is sound"
            )
        await asyncio.sleep(LOOK_SECONDS)
