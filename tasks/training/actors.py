"""The actors: Ray processes that hold one vLLM engine each, and the controller's end of them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any, Protocol

from tasks.failures import InfrastructureError
from tasks.generation.config import SamplingConfig
from tasks.generation.engine import Completion, Engine, EngineError, UpdateTiming, sample_seed
from tasks.training.config import ActorsConfig, LoraConfig

STOP_SECONDS = 10.0
"""How long an engine may take to end by itself before its process is killed."""


class ActorLostError(InfrastructureError):
    """An actor died, hangs, or its engine broke: infrastructure, answered by a new actor."""


class Actor(Protocol):
    """What the controller asks of an actor. Every method raises `ActorLostError` when the actor is lost."""

    async def start(self) -> None:
        """Return when the engine takes requests, with the weights of the initial checkpoint."""

    async def generate(self, prompt_ids: list[int], sampling: SamplingConfig) -> list[Completion]:
        """`sampling.samples` responses to one prompt; the same ones for the same `sampling.seed` and weights."""

    async def update(self, path: str, version: int) -> UpdateTiming:
        """Go on with the weights or the adapter at `path`, in the middle of what is being generated."""

    def kill(self) -> None:
        """End the actor, whatever state it is in."""


class ActorProcess:
    """Runs inside a Ray actor. Its engine is a process of its own, below it."""

    def __init__(self, model: str, config: ActorsConfig, lora: LoraConfig | None = None) -> None:
        self._model = model
        self._config = config
        self._rank = lora.rank if lora else None
        self._engine: Engine | None = None

    async def start(self) -> int:
        """Start the engine; returns this process's id."""
        self._engine = await Engine.start(self._model, self._config.engine, updatable=True, adapter_rank=self._rank)
        return os.getpid()

    async def generate(self, prompt_ids: list[int], sampling: SamplingConfig) -> list[Completion]:
        """All samples at once: vLLM shares the prompt's KV cache among them."""
        assert self._engine is not None
        seeds = [None if sampling.seed is None else sample_seed(sampling.seed, "", i) for i in range(sampling.samples)]
        requests = [self._engine.generate(prompt_ids, sampling, seed=seed) for seed in seeds]
        return list(await asyncio.gather(*requests))

    async def update(self, path: str, version: int) -> UpdateTiming:
        """Replace the weights."""
        assert self._engine is not None
        return await self._engine.update_weights(path, version)

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
        self._started = self._handle.start.remote()

    async def start(self) -> None:
        """See `Actor`."""
        await self._call(self._started)

    async def generate(self, prompt_ids: list[int], sampling: SamplingConfig) -> list[Completion]:
        """See `Actor`."""
        return await self._call(self._handle.generate.remote(prompt_ids, sampling))

    async def update(self, path: str, version: int) -> UpdateTiming:
        """See `Actor`."""
        return await self._call(self._handle.update.remote(path, version))

    def kill(self) -> None:
        """See `Actor`. An engine that still answers ends its own processes first, and frees their shared memory."""
        import ray

        ray.wait([self._handle.stop.remote()], timeout=STOP_SECONDS)
        ray.kill(self._handle)

    async def _call(self, reference: Any) -> Any:
        import ray

        try:
            return await asyncio.wait_for(reference, timeout=self._config.request_timeout_seconds)
        except TimeoutError:
            raise ActorLostError(
                f"no answer within request_timeout_seconds = {self._config.request_timeout_seconds:g}"
            ) from None
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, EngineError):
                raise ActorLostError(str(error.cause)) from error
            raise
        except ray.exceptions.RayError as error:
            raise ActorLostError(" ".join(str(error).split())[:300]) from error
