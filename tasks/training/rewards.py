"""Reward workers: a Ray process that holds a pool of verifier processes, and the controller's end of it."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from typing import Any, Protocol

from tasks.schemas import Message
from tasks.training.config import RewardsConfig
from tasks.verifiers import Score, VerifiersConfig, open_pool


class JudgementError(RuntimeError):
    """A response could not be judged, however often it was tried. Never the same as a score of 0."""


class Judge(Protocol):
    """What the controller asks of reward workers."""

    async def score(self, verifier: str, response: str, ground_truth: Any, messages: list[Message]) -> Score:
        """The judgement of one response, without error; raises `JudgementError` when there is none."""

    async def figures(self) -> dict[str, float]:
        """Counters and latencies since the run began, by verifier."""


class RewardProcess:
    """Runs inside a Ray actor."""

    def __init__(self, config: RewardsConfig, verifiers: VerifiersConfig, names: list[str]) -> None:
        """`names`: the verifiers that the prompts ask for."""
        self._open = ExitStack()
        self._pool = self._open.enter_context(open_pool(config.workers, verifiers, names))

    def wait_ready(self) -> None:
        """Return when every verifier process has loaded its checkers."""
        self._pool.wait_ready()

    async def score(self, verifier: str, response: str, ground_truth: Any, messages: list[Message]) -> Score:
        """One judgement, in a verifier process with a hard time limit."""
        return await self._pool.score(verifier, response, ground_truth, messages)

    def figures(self) -> dict[str, float]:
        """Counters by verifier."""
        return self._pool.figures()

    def stop(self) -> None:
        """End the verifier processes."""
        self._open.close()


class RayJudge:
    """The controller's end of a `RewardProcess`."""

    def __init__(self, handle: Any, config: RewardsConfig) -> None:
        self._handle = handle
        self._retries = config.retries

    async def score(self, verifier: str, response: str, ground_truth: Any, messages: list[Message]) -> Score:
        """See `Judge`."""
        import ray

        problem = ""
        for _ in range(self._retries + 1):
            try:
                score = await _awaited(self._handle.score.remote(verifier, response, ground_truth, messages))
            except ray.exceptions.RayError as error:
                problem = " ".join(str(error).split())[:300]
                continue
            if score.error is None:
                return score
            problem = score.error
        raise JudgementError(f"{verifier}: {problem} (tried {self._retries + 1} times)")

    async def figures(self) -> dict[str, float]:
        """See `Judge`; empty while the reward process is being replaced."""
        import ray

        try:
            return await _awaited(self._handle.figures.remote())
        except ray.exceptions.RayError:
            return {}


async def _awaited(call: Any) -> Any:
    """The result of a call. One that nobody waits for any more is cancelled: Ray would repeat it, and say so."""
    import ray

    try:
        return await call
    except asyncio.CancelledError:
        ray.cancel(call)
        raise
