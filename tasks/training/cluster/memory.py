"""The end of a training run whose processes need more memory than this machine or pod has."""

from __future__ import annotations

import asyncio

from tasks.machine.memory_limit import POLL_SECONDS, MemoryLimitError, MemoryWatch
from tasks.training.config import TrainingConfig
from tasks.training.restart_budget import RestartBudget

RETRIES = 1
"""Number of kills within the window that are answered by a new process; the next one ends the run."""


async def killed_again(watch: MemoryWatch, config: TrainingConfig) -> None:
    """Wait until the kernel has killed two processes within `learner.restart_window_seconds`, whichever they were.

    One kill may have been a peak that does not come again, and the run goes on with a new process. After a second one
    the next will follow, in this attempt and in those that Flyte would make.

    Raises:
        MemoryLimitError: that has happened; the only way in which it ends.
    """
    clock, counted = asyncio.get_running_loop().time, watch.kills
    budget = RestartBudget(RETRIES, config.learner.restart_window_seconds)
    while True:
        await asyncio.sleep(POLL_SECONDS)
        for _ in range(counted, watch.kills):
            budget.record(clock())
        counted = watch.kills
        if (kills := budget.used(clock())) > budget.limit:
            raise MemoryLimitError(
                f"{watch.report()}; these were {kills} kills within {budget.window_seconds:g} s, and more would "
                "follow: the run ends, and its newest checkpoint is sound"
            )
