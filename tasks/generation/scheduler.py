"""Extends vLLM's scheduler so that no request uses a cached prefix that was computed with older weights.

Every request has a salt, which is part of the keys of the prefix cache. The salt is the version of the weights when
the request was sent (`Engine.generate`). A request that is still waiting when an update ends begins with newer
weights, and gets another salt.

The scheduler also does not count a request as preempted if its KV cache is dropped for an update or for an engine's
sleep. A preemption should mean that the sequences do not fit in the cache (`training.actors.concurrency`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreEventType
from vllm.v1.request import RequestStatus

if TYPE_CHECKING:
    from vllm.config import VllmConfig

SCHEDULER = f"{__name__}.scheduler"
"""Path of the function `scheduler`, for vLLM's option `scheduler_cls`."""


def scheduler(*, vllm_config: VllmConfig, **options: Any) -> Scheduler:
    """Create the scheduler of an updatable engine. It is asynchronous if vLLM's configuration says so."""
    kind = _Asynchronous if vllm_config.scheduler_config.async_scheduling else _Salted
    return kind(vllm_config=vllm_config, **options)


class _Salted(Scheduler):
    def set_pause_state(self, pause_state: PauseState) -> None:
        """Change the pause state, as vLLM does around each update. At its end, waiting requests get a new salt."""
        super().set_pause_state(pause_state)
        if pause_state is not PauseState.UNPAUSED:
            return
        for request in self.waiting:
            # Also a request that waits for its grammar begins now. A preempted request has already begun.
            if request.status is not RequestStatus.PREEMPTED:
                request.cache_salt = f"{request.cache_salt}, waiting"
                request.block_hashes.clear()
                request.update_block_hashes()

    def reset_prefix_cache(self, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        """Drop the KV cache as vLLM does. Running requests that lose theirs are not counted as preempted."""
        running = list(self.running) if reset_running_requests else []
        is_reset = super().reset_prefix_cache(reset_running_requests, reset_connector)
        for request in running:
            request.events = [event for event in request.events if event.type is not EngineCoreEventType.PREEMPTED]
        return is_reset


class _Asynchronous(_Salted, AsyncScheduler):
    pass
