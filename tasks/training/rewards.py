"""Reward workers: a Ray process that holds a pool of verifier processes, and the controller's end of it."""

from __future__ import annotations

from typing import Any, Protocol

from tasks.schemas import Message
from tasks.training.config import RewardsConfig
from tasks.verifiers import Score


class JudgementError(RuntimeError):
    """A response could not be judged, however often it was tried. Never the same as a score of 0."""


class Judge(Protocol):
    """What the controller asks of reward workers."""

    async def score(self, verifier: str, response: str, ground_truth: Any, messages: list[Message]) -> float:
        """The reward of one response, in [0, 1]; raises `JudgementError` when there is none."""


class RewardProcess:
    """Runs inside a Ray actor."""

    def __init__(self, config: RewardsConfig) -> None:
        from tasks.verifiers import VerifierPool

        self._pool = VerifierPool(config.workers, config.time_limit_seconds)

    def wait_ready(self) -> None:
        """Return when every verifier process has loaded its checkers."""
        self._pool.wait_ready()

    async def score(self, verifier: str, response: str, ground_truth: Any, messages: list[Message]) -> Score:
        """One judgement, in a verifier process with a hard time limit."""
        return await self._pool.score(verifier, response, ground_truth, messages)

    def stats(self) -> dict[str, Any]:
        """Counters by verifier."""
        return self._pool.stats()

    def stop(self) -> None:
        """End the verifier processes."""
        self._pool.close()


class RayJudge:
    """The controller's end of a `RewardProcess`."""

    def __init__(self, handle: Any, config: RewardsConfig) -> None:
        self._handle = handle
        self._retries = config.retries

    async def score(self, verifier: str, response: str, ground_truth: Any, messages: list[Message]) -> float:
        """See `Judge`."""
        import ray

        problem = ""
        for _ in range(self._retries + 1):
            try:
                score = await self._handle.score.remote(verifier, response, ground_truth, messages)
            except ray.exceptions.RayError as error:
                problem = " ".join(str(error).split())[:300]
                continue
            if score.error is None:
                return score.value
            problem = score.error
        raise JudgementError(f"{verifier}: {problem} (tried {self._retries + 1} times)")
