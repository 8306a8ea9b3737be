"""Runs actors, which are Ray processes with one vLLM engine each, and the client through which the fleet calls them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from tasks.failures import InfrastructureError, one_line
from tasks.generation.config import SamplingConfig
from tasks.generation.engine import Engine
from tasks.generation.interface import (
    Completion,
    EngineError,
    EngineStatistics,
    EngineUse,
    RequestRefusedError,
    WeightsNotTakenError,
    WeightUpdate,
)
from tasks.machine.memory_limit import ShortOfMemoryError
from tasks.machine.ray_memory import RayMemory
from tasks.machine.resources import describe_free_resources
from tasks.recipe.run import ActorsConfig, TrainingConfig
from tasks.training.actors.broadcast import RelayError
from tasks.training.learner.adapter import describe_adapter
from tasks.training.runtime.ray_calls import result_of
from tasks.training.runtime.timeouts import Limit, wait_with_status, wait_within

STOP_SECONDS = 10.0
"""Seconds that an engine may take to shut down before its process is killed."""


class ActorLostError(InfrastructureError):
    """An actor died or hangs, or its engine broke. This is an infrastructure failure, and the actor is replaced."""


class Actor(Protocol):
    """The fleet's interface to an actor with one engine. All methods except `kill` raise `ActorLostError` on a loss."""

    async def placed(self) -> str:
        """Wait without a time limit until the cluster has resources for the actor. Return the id of its node."""

    async def start(self) -> None:
        """Wait until the engine takes requests, with the weights of the initial checkpoint. Called after `placed`."""

    async def generate(self, prompt_ids: list[int], sampling: SamplingConfig, seed: int | None) -> Completion:
        """Return one response to a prompt, which is the same for the same `seed` and weights.

        Cancelling the call aborts the request.

        Raises:
            RequestRefusedError: the engine refuses this request, and continues with others.
        """

    async def update(self, path: str, version: int, *, keep_cache: bool) -> WeightUpdate:
        """Load the weights or the adapter at `path` as policy `version`, also in the middle of responses or asleep.

        An engine that sleeps is awake afterwards.

        Args:
            path: path of the weights or the adapter.
            version: version of the policy.
            keep_cache: whether unfinished responses continue with the KV cache that older weights computed.

        Raises:
            WeightsNotTakenError: the engine does not use a tensor, got no tensor for one of its weights, or does not
                serve the adapter.
        """

    async def sleep(self) -> None:
        """Free the GPU. The weights are in main memory afterwards, and the requests of the engine wait."""

    async def wake(self) -> None:
        """Return to the GPU and continue the requests with unchanged weights. Do nothing if the engine is awake."""

    async def statistics(self) -> EngineStatistics:
        """Return the newest statistics of the engine: tokens, running sequences, KV cache, preemptions."""

    async def kill(self) -> None:
        """End the actor in any state."""


class ActorProcess:
    """The server side of an actor, inside its Ray process. The engine is a child process of this process.

    A call may arrive twice, because Ray repeats a call if the answer was lost with a connection.
    """

    def __init__(self, config: TrainingConfig, model: str) -> None:
        self._config = config
        self._model = model
        self._engine: Engine | None = None

    @property
    def _running(self) -> Engine:
        assert self._engine is not None, "start() has returned"
        return self._engine

    async def placed(self) -> str:
        """Return the id of the node. Ray answers the call once the process has its resources in the cluster."""
        import ray

        return ray.get_runtime_context().get_node_id()

    async def start(self, placed: str) -> int:
        """Start the engine, unless it runs, and return the id of this process.

        `placed` is the result of the method `placed`. Ray waits for it first. No other call is answered while the
        engine loads.
        """
        if self._engine is None:
            config = self._config
            use = EngineUse(
                updatable=True,
                adapter=describe_adapter(self._model, config.lora) if config.lora else None,
                can_sleep=config.takes_turns,
                returns_routes=config.routing_replay,
                head_dtype=config.head_dtype,
            )
            self._engine = await Engine.start(self._model, config.actors.engine, use)
        return os.getpid()

    async def kv_cache_memory(self) -> int:
        """Return the bytes of the engine's KV cache on each of its GPUs."""
        return await self._running.kv_cache_memory()

    async def generate(self, prompt_ids: list[int], sampling: SamplingConfig, seed: int | None) -> Completion:
        """Return one response. vLLM shares the prompt's KV cache among all responses to it."""
        return await self._running.generate(prompt_ids, sampling, seed=seed)

    async def update(self, path: str, version: int, keep_cache: bool) -> WeightUpdate:
        """Replace the weights of the engine by the weights at `path`."""
        return await self._running.update_weights(path, version, keep_cache=keep_cache)

    async def sleep(self) -> None:
        """Take the engine off its GPU."""
        await self._running.sleep()

    async def wake(self) -> None:
        """Bring the engine back to its GPU."""
        await self._running.wake()

    async def statistics(self) -> EngineStatistics:
        """Return the newest statistics of the engine."""
        return self._running.statistics

    def stop(self) -> None:
        """Shut the engine down, so that its processes end before this one is killed."""
        if self._engine is not None:
            self._engine.shutdown()


class Reservation(Protocol):
    """The resources of one engine, reserved in the cluster before its actor is created."""

    async def wait_until_granted(self) -> None:
        """Wait until the resources are reserved."""

    def release(self) -> None:
        """Free the resources, or withdraw the request for them."""


class RayActor:
    """The fleet's client of one `ActorProcess`. Converts Ray's errors to `ActorLostError`."""

    def __init__(
        self,
        create: Callable[[], Any],
        config: ActorsConfig,
        reservation: Reservation | None = None,
        prepare: Callable[[str], Awaitable[None]] | None = None,
        memory: RayMemory | None = None,
        *,
        loads_at_once: bool = True,
        report_cache: Callable[[int], object] | None = None,
    ) -> None:
        """Create the Ray actor.

        Args:
            create: returns the handle of a new Ray actor of `ActorProcess`.
            config: the options of the actor.
            reservation: resources for the actor, which is created once they are reserved. Optional. If None, Ray
                chooses a node.
            prepare: copies the model to the node with the given id before the engine loads there, or raises
                `RelayError`. Optional. If None, the model is already there.
            memory: memory of the cluster's nodes, used to explain losses. Optional. If None, only this node's is used.
            loads_at_once: if True, the engine loads as soon as the actor has its resources. Otherwise it loads when
                `start` is called.
            report_cache: called with the bytes of the engine's KV cache when the engine runs. Optional.
        """
        self._create = create
        self._config = config
        self._reservation = reservation
        self._prepare = prepare
        self._memory = memory or RayMemory()
        self._loads_at_once = loads_at_once
        self._report_cache = report_cache
        self._handle: Any = None
        self._started: Any = None
        self._creation: asyncio.Task[None] | None = None
        self._preparation: asyncio.Task[Any] | None = None
        if reservation is None:
            self._begin()
        else:
            self._creation = asyncio.create_task(self._begin_when_granted(reservation))

    def _begin(self) -> None:
        self._handle = self._create()
        self._placed = self._handle.placed.remote()
        if self._loads_at_once:
            self._load()

    def _load(self) -> None:
        if self._prepare is None:
            self._started = self._handle.start.remote(self._placed)
        else:
            self._preparation = asyncio.create_task(self._start_prepared(self._prepare))

    async def _start_prepared(self, prepare: Callable[[str], Awaitable[None]]) -> None:
        """Load the engine once its node is prepared for it."""
        node = await self._call(self._placed)
        try:
            await prepare(node)
        except RelayError as error:
            raise ActorLostError(str(error)) from error
        self._started = self._handle.start.remote(node)

    async def _begin_when_granted(self, reservation: Reservation) -> None:
        await reservation.wait_until_granted()
        self._begin()

    async def placed(self) -> str:
        need = f"{self._config.cpus:g} CPUs and, if there are any, {self._config.engine.gpus} GPUs"

        async def describe_status() -> str:
            return f"an actor waits for resources of the cluster: {need}; {await describe_free_resources()}"

        return await wait_with_status(self._wait_until_reserved(), describe_status)

    async def _wait_until_reserved(self) -> str:
        import ray

        if self._creation:
            try:
                await self._creation
            except ray.exceptions.RayError as error:
                raise ActorLostError(f"no resources were reserved for an actor: {one_line(error)}") from error
        return await self._call(self._placed)

    async def start(self) -> None:
        await wait_within(
            self._wait_until_started(),
            "an actor's engine loads",
            Limit(self._config.start_timeout_seconds, "actors.start_timeout_seconds"),
            error=ActorLostError,
        )

    async def _wait_until_started(self) -> None:
        if self._preparation is None and self._started is None:
            self._load()
        if self._preparation:
            await self._preparation
        await self._call(self._started)
        if self._report_cache:
            self._report_cache(await self._call(self._handle.kv_cache_memory.remote()))

    async def generate(self, prompt_ids: list[int], sampling: SamplingConfig, seed: int | None) -> Completion:
        return await self._call(self._handle.generate.remote(prompt_ids, sampling, seed))

    async def update(self, path: str, version: int, *, keep_cache: bool) -> WeightUpdate:
        return await self._call(self._handle.update.remote(path, version, keep_cache))

    async def sleep(self) -> None:
        await self._call(self._handle.sleep.remote())

    async def wake(self) -> None:
        await self._call(self._handle.wake.remote())

    async def statistics(self) -> EngineStatistics:
        return await self._call(self._handle.statistics.remote())

    async def kill(self) -> None:
        """Kill the process. An engine that still responds first ends its processes, and frees their shared memory."""
        for task in (self._creation, self._preparation):
            if task:
                task.cancel()
        await asyncio.to_thread(self._kill)

    def _kill(self) -> None:
        import ray

        if self._handle is not None:
            ray.wait([self._handle.stop.remote()], timeout=STOP_SECONDS)
            ray.kill(self._handle)
        if self._reservation is not None:
            self._reservation.release()

    async def _call(self, reference: Any) -> Any:
        import ray

        try:
            return await result_of(reference)
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, EngineError | ShortOfMemoryError):
                raise ActorLostError(str(error.cause)) from error
            if isinstance(error.cause, RequestRefusedError | WeightsNotTakenError):
                raise error.cause from error
            raise
        except ray.exceptions.RayError as error:
            raise ActorLostError(await self._memory.find_reason(error)) from error
