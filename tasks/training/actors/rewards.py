"""Runs a pool of verifier processes in a Ray process, and provides the controller's client for it.

A response that cannot be scored is dropped from its group, which continues with the others.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, Protocol

from tasks.failures import InfrastructureError, MistakeError, one_line
from tasks.generation.interface import Completion
from tasks.machine.ray_memory import RayMemory
from tasks.machine.resources import process_cores
from tasks.recipe.run import RewardsConfig
from tasks.tables.schemas import Message
from tasks.training.groups.group import Prompt
from tasks.training.runtime.ray_calls import result_of
from tasks.verifiers import Score, VerifierPool, VerifiersConfig, open_pool
from tasks.verifiers.calls import Response
from tasks.verifiers.code.running import Execution
from tasks.verifiers.grouped import Scorer, score_group
from tasks.verifiers.scores import CannotJudge, FunctionFailure

logger = logging.getLogger(__name__)

MIN_JUDGED = 2
"""Smallest number of scored responses in a group: an advantage compares a response with others of its group."""

LONGEST_PAUSE = 30.0
"""Longest pause between two attempts to score a response, seconds; pauses begin with 1 second and double."""


class JudgementError(RuntimeError):
    """A response could not be scored, after all retries. This is different from a score of 0.

    Attributes:
        failure: the failure of a user's reward function that caused the error, or None if the cause is another.
    """

    def __init__(self, reason: str, failure: FunctionFailure | None = None) -> None:
        super().__init__(reason)
        self.failure = failure


class RewardClient(Protocol):
    """The interface of the reward workers that the controller calls."""

    async def score(self, verifier: str, response: Response, ground_truth: Any, messages: list[Message]) -> Score:
        """Return the score of one response to `messages`; `ground_truth` is the parsed value of the prompt.

        For a group reward function, `response` is a list of all responses to the prompt.

        Raises:
            JudgementError: the response could not be scored.
        """

    async def run_program(self, program: str, output_chars: int) -> Execution:
        """Run a program in the sandbox of `code`, and return at most `output_chars` characters of its output.

        Raises:
            CannotJudge: the program cannot be run.
        """

    async def figures(self) -> dict[str, float]:
        """Return counters and latencies since the run began, by verifier, as metrics."""


async def judge_response(judge: RewardClient, prompt: Prompt, completion: Completion) -> Score:
    """Return the score of a response. If it could not be scored, `Score.error` is the reason.

    For an episode, the verifier gets the last turn as the response and the earlier turns as messages, unless the
    environment itself gave a reward.
    """
    if completion.end is not None:
        return completion.end.score
    return await judge_text(judge, prompt, completion.text, completion.earlier)


async def judge_text(judge: RewardClient, prompt: Prompt, text: str, earlier: list[Message]) -> Score:
    """Return the score of a text, given the messages between the prompt and the text."""
    try:
        return await judge.score(prompt.verifier, text, prompt.ground_truth, [*prompt.messages, *earlier])
    except JudgementError as error:
        return Score.from_error(str(error), error.failure)


async def judge_group(judge: RewardClient, prompt: Prompt, completions: Sequence[Completion]) -> list[Score]:
    """Return the scores of all responses to a prompt with a group reward function, as `judge_response` does for one."""
    texts = [completion.text for completion in completions]
    return await score_group(make_scorer(judge, prompt), prompt.verifier, texts, prompt.ground_truth)


def make_scorer(judge: RewardClient, prompt: Prompt) -> Scorer:
    """Return a function that scores a response to the prompt by a verifier and a ground truth, and raises nothing."""

    async def score(verifier: str, response: Response, ground_truth: Any) -> Score:
        try:
            return await judge.score(verifier, response, ground_truth, prompt.messages)
        except JudgementError as error:
            return Score.from_error(str(error), error.failure)

    return score


class RewardProcess:
    """A pool of verifier processes, inside a Ray process.

    If the pool could not be opened, every call raises the error, since Ray keeps only the text of a constructor's
    error.
    """

    def __init__(
        self, config: RewardsConfig, verifiers: VerifiersConfig, names: list[str], reserved: float = 0.0
    ) -> None:
        """Open the pool.

        Args:
            config: the number of verifier processes.
            verifiers: options of the verifiers.
            names: the verifiers that the prompts use.
            reserved: cores of this machine that other processes of the run reserve. If `config` gives no number, there
                is a verifier process on each of the remaining cores.
        """
        self._names = names
        self._open = ExitStack()
        self._error: Exception | None = None
        workers = config.workers or max(1, int(process_cores().cores - reserved))
        try:
            self._opened = self._open.enter_context(open_pool(workers, verifiers, names))
        except Exception as error:
            self._error = error

    @property
    def _pool(self) -> VerifierPool:
        if self._error is not None:
            raise self._error
        return self._opened

    def wait_ready(self) -> None:
        """Wait until every verifier process has loaded its verifiers."""
        self._pool.wait_ready(self._names)

    async def score(self, verifier: str, response: Response, ground_truth: Any, messages: list[Message]) -> Score:
        """Return the score of one response, computed in a verifier process with a hard time limit."""
        return await self._pool.score(verifier, response, ground_truth, messages)

    async def run_program(self, program: str, output_chars: int) -> Execution:
        """Run a program in the sandbox (`VerifierPool.run_program`)."""
        return await self._pool.run_program(program, output_chars)

    def figures(self) -> dict[str, float]:
        """Return counters and latencies by verifier, as metrics."""
        return self._pool.figures()

    def stop(self) -> None:
        """End the verifier processes."""
        self._open.close()


class RayJudge:
    """The controller's client of a `RewardProcess`, which retries failed calls."""

    def __init__(self, handle: Any, config: RewardsConfig, memory: RayMemory | None = None) -> None:
        self._handle = handle
        self._config = config
        self._memory = memory or RayMemory()
        self._retried: Counter[str] = Counter()
        self._succeeded: Counter[str] = Counter()
        self._away: set[str] = set()

    async def score(self, verifier: str, response: Response, ground_truth: Any, messages: list[Message]) -> Score:
        """Return the score of one response, after as many attempts as `RewardsConfig` allows.

        A failure of a user's function that would occur again is final. Any other failure counts as a retry if the
        verifier has scored another response since the last attempt: then the response is the cause, and at most
        `retries` attempts are repeated. Otherwise the verifier itself may be unreachable, and the response waits for
        it, at most `patience_seconds`.

        Raises:
            JudgementError: the response could not be scored.
            MistakeError, InfrastructureError: the reward process does not start, and a new one would not start either.
        """
        clock = asyncio.get_running_loop().time
        gives_up_at = clock() + self._config.patience_seconds
        succeeded, failures, counted = self._succeeded[verifier], 0, 0
        while True:
            score = await self._try(verifier, response, ground_truth, messages)
            if score.error is None:
                self._succeeded[verifier] += 1
                self._away.discard(verifier)
                return score
            if score.failure is not None and not score.failure.may_pass:
                raise JudgementError(score.error, score.failure)
            failures += 1
            counted += self._succeeded[verifier] > succeeded
            succeeded = self._succeeded[verifier]
            if counted > self._config.retries or clock() >= gives_up_at:
                raise JudgementError(f"{verifier}: {score.error} (tried {failures} times)", score.failure)
            self._log_once(verifier, score.error)
            self._retried[verifier] += 1
            await asyncio.sleep(min(2.0 ** (failures - 1), LONGEST_PAUSE))

    async def run_program(self, program: str, output_chars: int) -> Execution:
        """Run a program in the sandbox.

        Raises:
            CannotJudge: the program cannot be run, or the reward process was lost.
        """
        import ray

        try:
            execution: Execution = await result_of(self._handle.run_program.remote(program, output_chars))
        except ray.exceptions.RayTaskError as error:
            raise CannotJudge(one_line(error.cause)) from error
        except ray.exceptions.RayError as error:
            raise CannotJudge(await self._memory.find_reason(error)) from error
        return execution

    def _log_once(self, verifier: str, error: str) -> None:
        """Log that responses wait for a verifier, only once until it has scored another response."""
        if verifier not in self._away:
            self._away.add(verifier)
            logger.warning(
                "verifier %r could not judge a response, which is tried again for at most %g s "
                "(rewards.patience_seconds): %s",
                *(verifier, self._config.patience_seconds, error),
            )

    async def _try(self, *arguments: Any) -> Score:
        import ray

        try:
            score: Score = await result_of(self._handle.score.remote(*arguments))
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, MistakeError | InfrastructureError):
                raise error.cause from error
            return Score.from_error(one_line(error.cause))
        except ray.exceptions.RayError as error:
            return Score.from_error(await self._memory.find_reason(error))
        return score

    async def figures(self) -> dict[str, float]:
        """Return the metrics of the pool and the retries, or only the retries while the reward process is replaced."""
        import ray

        retried = {f"{verifier}/retried": float(count) for verifier, count in sorted(self._retried.items())}
        try:
            return {**await result_of(self._handle.figures.remote()), **retried}
        except ray.exceptions.RayError:
            return retried
