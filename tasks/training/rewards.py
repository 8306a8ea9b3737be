"""Reward workers: a Ray process that holds a pool of verifier processes, and the controller's end of it.

A response that cannot be judged leaves its group, which goes on with the others.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import ExitStack
from typing import Any, Protocol

from tasks.generation.interface import Completion
from tasks.tables.schemas import Message
from tasks.training.config import RewardsConfig
from tasks.training.groups.group import Prompt
from tasks.verifiers import Score, VerifiersConfig, open_pool

MIN_JUDGED = 2
"""Judged responses that a group needs: an advantage compares a response with the others of its group."""


LONGEST_PAUSE = 30.0
"""Seconds between two attempts at a verifier that is away."""


class JudgementError(RuntimeError):
    """A response could not be judged, however often it was tried. Never the same as a score of 0."""


class RewardClient(Protocol):
    """What the controller asks of reward workers."""

    async def score(self, verifier: str, response: str, ground_truth: Any, messages: list[Message]) -> Score:
        """The judgement of one response, without error; raises `JudgementError` when there is none."""

    async def figures(self) -> dict[str, float]:
        """Counters and latencies since the run began, by verifier."""


async def judge_response(judge: RewardClient, prompt: Prompt, completion: Completion) -> Score:
    """The judgement of a response; where there is none, `Score.error` says why, and its group goes on without it."""
    try:
        return await judge.score(prompt.verifier, completion.text, prompt.ground_truth, prompt.messages)
    except JudgementError as error:
        return Score.unjudged(str(error))


class RewardProcess:
    """Runs inside a Ray actor."""

    def __init__(self, config: RewardsConfig, verifiers: VerifiersConfig, names: list[str]) -> None:
        """`names`: the verifiers that the prompts ask for."""
        self._names = names
        self._open = ExitStack()
        self._pool = self._open.enter_context(open_pool(config.workers, verifiers, names))

    def wait_ready(self) -> None:
        """Return when every verifier process has loaded its checkers."""
        self._pool.wait_ready(self._names)

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
        self._config = config
        self._retried: Counter[str] = Counter()
        self._succeeded: Counter[str] = Counter()

    async def score(self, verifier: str, response: str, ground_truth: Any, messages: list[Message]) -> Score:
        """See `RewardClient`.

        A failure counts where the verifier has succeeded with others since the last attempt; `retries` such failures
        are repeated. Where it has not, it may be away, and the response waits for it, `patience_seconds` at most.
        """
        clock = asyncio.get_running_loop().time
        gives_up_at = clock() + self._config.patience_seconds
        succeeded, failures, counted = self._succeeded[verifier], 0, 0
        while True:
            score = await self._try(verifier, response, ground_truth, messages)
            if score.error is None:
                self._succeeded[verifier] += 1
                return score
            failures += 1
            counted += self._succeeded[verifier] > succeeded
            succeeded = self._succeeded[verifier]
            if counted > self._config.retries or clock() >= gives_up_at:
                raise JudgementError(f"{verifier}: {score.error} (tried {failures} times)")
            self._retried[verifier] += 1
            await asyncio.sleep(min(2.0 ** (failures - 1), LONGEST_PAUSE))

    async def _try(self, *about: Any) -> Score:
        import ray

        try:
            score: Score = await _awaited(self._handle.score.remote(*about))
        except ray.exceptions.RayError as error:
            return Score.unjudged(" ".join(str(error).split())[:300])
        return score

    async def figures(self) -> dict[str, float]:
        """See `RewardClient`; only the retries while the reward process is being replaced."""
        import ray

        retried = {f"{verifier}/retried": float(count) for verifier, count in sorted(self._retried.items())}
        try:
            return {**await _awaited(self._handle.figures.remote()), **retried}
        except ray.exceptions.RayError:
            return retried


async def _awaited(call: Any) -> Any:
    """The result of a call. One that nobody waits for any more is cancelled: Ray would repeat it, and say so."""
    import ray

    try:
        return await call
    except asyncio.CancelledError:
        ray.cancel(call)
        raise
