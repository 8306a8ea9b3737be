"""vLLM's scheduler, with a prefix cache that new weights divide: what begins under them shares nothing that is older.

A request brings its salt, the version of the weights under which it was sent (`Engine.generate`). One that still waits
when an update ends begins under newer ones, and is given another salt.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import RequestStatus

if TYPE_CHECKING:
    from vllm.config import VllmConfig

SCHEDULER = f"{__name__}.scheduler"
"""Its name, as vLLM takes it."""


def scheduler(*, vllm_config: VllmConfig, **options: Any) -> Scheduler:
    """The scheduler of an engine whose weights are replaced; asynchronous where vLLM has chosen that."""
    kind = _Asynchronous if vllm_config.scheduler_config.async_scheduling else _Salted
    return kind(vllm_config=vllm_config, **options)


class _Salted(Scheduler):
    def set_pause_state(self, pause_state: PauseState) -> None:
        """Called around each update; see vLLM's."""
        super().set_pause_state(pause_state)
        if pause_state is not PauseState.UNPAUSED:
            return
        for request in self.waiting:
            if request.status is RequestStatus.WAITING:  # and not preempted: that one had begun
                request.cache_salt = f"{request.cache_salt}, waiting"
                request.block_hashes.clear()
                request.update_block_hashes()


class _Asynchronous(_Salted, AsyncScheduler):
    pass
