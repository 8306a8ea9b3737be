"""The actors: Ray processes that hold one vLLM engine each, and the fleet's end of them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any, Protocol

from tasks.failures import InfrastructureError
from tasks.generation.config import SamplingConfig
from tasks.generation.engine import Engine
from tasks.generation.interface import Completion, EngineError, EngineStatistics, RequestRefusedError, UpdateTiming
from tasks.machine.resources import free_resources
from tasks.training.config import ActorsConfig
from tasks.training.learner.config import LoraConfig
from tasks.training.timeouts import Limit, watched, within

STOP_SECONDS = 10.0
"""How long an engine may take to end by itself before its process is killed."""


class ActorLostError(InfrastructureError):
    """An actor died, hangs, or its engine broke: infrastructure, answered by a new actor."""


class Actor(Protocol):
    """What the fleet asks of an actor. Every method but `kill` raises `ActorLostError` when the actor is lost."""

    async def placed(self) -> None:
        """Return when the cluster has had room for it, however long that takes."""

    async def start(self) -> None:
        """Return when the engine takes requests, with the weights of the initial checkpoint; it has its place."""

    async def generate(self, prompt_ids: list[int], sampling: SamplingConfig, seed: int | None) -> Completion:
        """One response to a prompt; the same one for the same `seed` and weights. Cancelled, it is not finished.

        Raises:
            RequestRefusedError: the engine takes no such request, and goes on with others.
        """

    async def update(self, path: str, version: int, *, keep_cache: bool) -> UpdateTiming:
        """Go on with the weights or the adapter at `path`, in the middle of what is being generated."""

    async def statistics(self) -> EngineStatistics:
        """How far the engine is."""

    async def kill(self) -> None:
        """End the actor, whatever state it is in."""


class ActorProcess:
    """Runs inside a Ray actor. Its engine is a process of its own, below it.

    A call may come twice: Ray repeats those whose answers were lost with a connection.
    """

    def __init__(self, model: str, config: ActorsConfig, lora: LoraConfig | None = None) -> None:
        self._model = model
        self._config = config
        self._rank = lora.rank if lora else None
        self._engine: Engine | None = None

    async def placed(self) -> None:
        """Return when this process has its place in the cluster."""

    async def start(self, placed: None) -> int:
        """Start the engine, if that was not done; returns this process's id.

        `placed`: what the method of this name returned. While the engine loads nothing else is answered.
        """
        if self._engine is None:
            self._engine = await Engine.start(self._model, self._config.engine, updatable=True, adapter_rank=self._rank)
        return os.getpid()

    async def generate(self, prompt_ids: list[int], sampling: SamplingConfig, seed: int | None) -> Completion:
        """One response; vLLM shares the prompt's KV cache among those to one prompt."""
        assert self._engine is not None
        return await self._engine.generate(prompt_ids, sampling, seed=seed)

    async def update(self, path: str, version: int, keep_cache: bool) -> UpdateTiming:
        """Replace the weights."""
        assert self._engine is not None
        return await self._engine.update_weights(path, version, keep_cache=keep_cache)

    async def statistics(self) -> EngineStatistics:
        """How far the engine is."""
        assert self._engine is not None
        return self._engine.statistics

    def stop(self) -> None:
        """Shut the engine down, so that its processes end before this one is killed."""
        if self._engine is not None:
            self._engine.shutdown()


class RayActor:
    """The controller's end of an `ActorProcess`."""

    def __init__(self, create: Callable[[], Any], config: ActorsConfig) -> None:
        """`create` returns the handle of a new Ray actor of `ActorProcess`; its engine starts to load at once."""
        self._handle = create()
        self._config = config
        self._placed = self._handle.placed.remote()
        self._started = self._handle.start.remote(self._placed)

    async def placed(self) -> None:
        """See `Actor`."""
        need = f"{self._config.cpus:g} CPUs and, where there are any, {self._config.engine.tensor_parallel_size} GPUs"

        async def waits_for() -> str:
            return f"an actor waits until the cluster has room for it: {need}; {await free_resources()}"

        await watched(self._call(self._placed), waits_for)

    async def start(self) -> None:
        """See `Actor`."""
        await within(
            self._call(self._started),
            "an actor's engine loads",
            Limit(self._config.start_timeout_seconds, "actors.start_timeout_seconds"),
            error=ActorLostError,
        )

    async def generate(self, prompt_ids: list[int], sampling: SamplingConfig, seed: int | None) -> Completion:
        """See `Actor`."""
        return await self._call(self._handle.generate.remote(prompt_ids, sampling, seed))

    async def update(self, path: str, version: int, *, keep_cache: bool) -> UpdateTiming:
        """See `Actor`."""
        return await self._call(self._handle.update.remote(path, version, keep_cache))

    async def statistics(self) -> EngineStatistics:
        """See `Actor`."""
        return await self._call(self._handle.statistics.remote())

    async def kill(self) -> None:
        """See `Actor`. An engine that still answers ends its own processes first, and frees their shared memory."""
        await asyncio.to_thread(self._kill)

    def _kill(self) -> None:
        import ray

        ray.wait([self._handle.stop.remote()], timeout=STOP_SECONDS)
        ray.kill(self._handle)

    async def _call(self, reference: Any) -> Any:
        import ray

        try:
            return await reference
        except asyncio.CancelledError:
            ray.cancel(reference)  # the engine need not finish it
            raise
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, EngineError):
                raise ActorLostError(str(error.cause)) from error
            if isinstance(error.cause, RequestRefusedError):
                raise error.cause from error
            raise
        except ray.exceptions.RayError as error:
            raise ActorLostError(" ".join(str(error).split())[:300]) from error
