"""Reward workers: a Ray process that holds a pool of verifier processes, and the controller's end of it.

What becomes of a response that cannot be judged is decided in `judge_responses`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, Protocol

from tasks.generation.engine import Completion
from tasks.schemas import Message
from tasks.training.config import RewardsConfig
from tasks.training.rollouts import Prompt, why_unjudged
from tasks.verifiers import Score, VerifiersConfig, open_pool

MIN_JUDGED = 2
"""Judged responses that a group needs: an advantage compares a response with the others of its group."""


class JudgementError(RuntimeError):
    """A response could not be judged, however often it was tried. Never the same as a score of 0."""


class TooFewJudgedError(RuntimeError):
    """Fewer than `MIN_JUDGED` responses of a group can be judged.

    Attributes:
        unjudged: responses whose judgement had failed by then.
    """

    def __init__(self, reasons: list[str], samples: int) -> None:
        super().__init__(why_unjudged(reasons, samples))
        self.unjudged = len(reasons)


class Judge(Protocol):
    """What the controller asks of reward workers."""

    async def score(self, verifier: str, response: str, ground_truth: Any, messages: list[Message]) -> Score:
        """The judgement of one response, without error; raises `JudgementError` when there is none."""

    async def figures(self) -> dict[str, float]:
        """Counters and latencies since the run began, by verifier."""


async def judge_responses(judge: Judge, prompt: Prompt, completions: Sequence[Completion]) -> list[Score]:
    """The judgement of each response, in their order.

    A response that cannot be judged has `Score.error` set, and its group goes on without it: at least `MIN_JUDGED` of
    the scores are without error.

    Raises:
        TooFewJudgedError: so many judgements failed that fewer would be left; those under way are cancelled.
    """
    reasons: list[str] = []

    async def judged(completion: Completion) -> Score:
        try:
            return await judge.score(prompt.verifier, completion.text, prompt.ground_truth, prompt.messages)
        except JudgementError as error:
            reasons.append(str(error))
            if len(completions) - len(reasons) < MIN_JUDGED:
                raise
            return Score.unjudged(str(error))

    try:
        async with asyncio.TaskGroup() as judging:
            scores = [judging.create_task(judged(completion)) for completion in completions]
    except* JudgementError:
        raise TooFewJudgedError(reasons, len(completions)) from None
    return [score.result() for score in scores]


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
        self._retries = config.retries
        self._retried: Counter[str] = Counter()

    async def score(self, verifier: str, response: str, ground_truth: Any, messages: list[Message]) -> Score:
        """See `Judge`."""
        import ray

        problem = ""
        for attempt in range(self._retries + 1):
            self._retried[verifier] += attempt > 0
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
        """See `Judge`; only the retries while the reward process is being replaced."""
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
