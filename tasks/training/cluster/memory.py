"""Ends a training run whose processes need more memory than their machine or pod has."""

from __future__ import annotations

import asyncio

from tasks.machine.memory_limit import MemoryLimitError, watch
from tasks.machine.ray_memory import RayMemory
from tasks.recipe.run import TrainingConfig
from tasks.training.runtime.restart_budget import RestartBudget

LOOK_SECONDS = 5.0
"""Interval in seconds at which all nodes are checked. A lost process triggers a check at once."""
RETRIES = 1
"""Number of times within the window that killed processes are replaced. The next kill ends the run."""


async def wait_until_killed_again(memory: RayMemory, config: TrainingConfig) -> None:
    """Wait until any processes of the run were killed twice within `learner.restart_window_seconds`.

    A first kill may be caused by a peak that does not recur, so the run continues with new processes. After a second
    kill more are expected, in this attempt and in further attempts by Flyte. Kills on all nodes are counted together.

    Raises:
        MemoryLimitError: there was a second kill. The function ends in no other way.
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
                "follow: the run ends, and its newest checkpoint is intact"
            )
        await asyncio.sleep(LOOK_SECONDS)
