"""Reward workers: a Ray process that holds a pool of verifier processes, and the controller's client of it.

A response that cannot be judged leaves its group, which continues with the others.
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
from tasks.tables.schemas import Message
from tasks.training.config import RewardsConfig
from tasks.training.groups.group import Prompt
from tasks.verifiers import Score, VerifierPool, VerifiersConfig, open_pool
from tasks.verifiers.calls import Response
from tasks.verifiers.code.running import Execution
from tasks.verifiers.grouped import Scorer, score_group
from tasks.verifiers.scores import CannotJudge, FunctionFailure

logger = logging.getLogger(__name__)

MIN_JUDGED = 2
"""Smallest number of judged responses of a group: an advantage compares a response with others of its group."""

LONGEST_PAUSE = 30.0
"""Longest pause between two attempts to judge a response, seconds; pauses begin with 1 second and double."""


class JudgementError(RuntimeError):
    """A response could not be judged, after all retries. This is never the same as a score of 0.

    Attributes:
        failure: the failure of a user's reward function that is the reason; None where another reason is.
    """

    def __init__(self, reason: str, failure: FunctionFailure | None = None) -> None:
        super().__init__(reason)
        self.failure = failure


class RewardClient(Protocol):
    """The reward workers as the controller calls them."""

    async def score(self, verifier: str, response: Response, ground_truth: Any, messages: list[Message]) -> Score:
        """Return the judgement of one response to `messages`; `ground_truth` is the parsed value of the prompt.

        For a reward function of a group `response` is a list of all responses to the prompt.

        Raises:
            JudgementError: the response could not be judged.
        """

    async def run_program(self, program: str, output_chars: int) -> Execution:
        """Run a program in the sandbox of `code`, and return at most so many characters of its output.

        Raises:
            CannotJudge: it cannot be run.
        """

    async def figures(self) -> dict[str, float]:
        """Return counters and latencies since the run began, by verifier, as metrics."""


async def judge_response(judge: RewardClient, prompt: Prompt, completion: Completion) -> Score:
    """Return the judgement of a response; one that could not be judged has the reason in `Score.error`.

    Of an episode the verifier is given the last turn, and those before it as messages, unless the environment gave a
    reward itself.
    """
    if completion.end is not None:
        return completion.end.score
    return await judge_text(judge, prompt, completion.text, completion.earlier)


async def judge_text(judge: RewardClient, prompt: Prompt, text: str, earlier: list[Message]) -> Score:
    """Return the judgement of a text, given the messages between the prompt and it."""
    try:
        return await judge.score(prompt.verifier, text, prompt.ground_truth, [*prompt.messages, *earlier])
    except JudgementError as error:
        return Score.unjudged(str(error), error.failure)


async def judge_group(judge: RewardClient, prompt: Prompt, completions: Sequence[Completion]) -> list[Score]:
    """Return the judgements of all responses to a prompt with a reward for the group, as `judge_response` of one."""
    texts = [completion.text for completion in completions]
    return await score_group(scorer_of(judge, prompt), prompt.verifier, texts, prompt.ground_truth)


def scorer_of(judge: RewardClient, prompt: Prompt) -> Scorer:
    """Return a function that judges by a verifier, a response to the prompt and a ground truth, and raises nothing."""

    async def score(verifier: str, response: Response, ground_truth: Any) -> Score:
        try:
            return await judge.score(verifier, response, ground_truth, prompt.messages)
        except JudgementError as error:
            return Score.unjudged(str(error), error.failure)

    return score


class RewardProcess:
    """The part of the reward workers that runs inside a Ray process: a pool of verifier processes.

    Every call raises the error with which the pool did not open, as Ray keeps only the text of a constructor's error.
    """

    def __init__(
        self, config: RewardsConfig, verifiers: VerifiersConfig, names: list[str], reserved: float = 0.0
    ) -> None:
        """Open the pool.

        Args:
            config: the number of verifier processes.
            verifiers: options of the verifiers.
            names: the verifiers that the prompts ask for.
            reserved: cores of this machine that other processes of the run reserve; where `config` gives no number,
                there is a verifier process on each of the others.
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
        """Return the judgement of one response, computed in a verifier process with a hard time limit."""
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
    """The controller's client of a `RewardProcess`: repeats judgements that failed."""

    def __init__(self, handle: Any, config: RewardsConfig, memory: RayMemory | None = None) -> None:
        self._handle = handle
        self._config = config
        self._memory = memory or RayMemory()
        self._retried: Counter[str] = Counter()
        self._succeeded: Counter[str] = Counter()
        self._away: set[str] = set()

    async def score(self, verifier: str, response: Response, ground_truth: Any, messages: list[Message]) -> Score:
        """Return the judgement of one response, after as many attempts as `RewardsConfig` allows.

        A failure of a user's function that would come back is final. Any other counts if the verifier has judged
        another response since the last attempt: then the response is the cause, and `retries` such failures are
        repeated. Otherwise the verifier itself may be unreachable, and the response waits for it, `patience_seconds` at
        most.

        Raises:
            JudgementError: the response could not be judged.
            MistakeError, InfrastructureError: the reward process does not start, nor would another one.
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
            self._name_once(verifier, score.error)
            self._retried[verifier] += 1
            await asyncio.sleep(min(2.0 ** (failures - 1), LONGEST_PAUSE))

    async def run_program(self, program: str, output_chars: int) -> Execution:
        """Run a program in the sandbox.

        Raises:
            CannotJudge: it cannot be run; a reward process that was lost is such a reason.
        """
        import ray

        try:
            execution: Execution = await _awaited(self._handle.run_program.remote(program, output_chars))
        except ray.exceptions.RayTaskError as error:
            raise CannotJudge(one_line(error.cause)) from error
        except ray.exceptions.RayError as error:
            raise CannotJudge(await self._memory.reason_of(error)) from error
        return execution

    def _name_once(self, verifier: str, error: str) -> None:
        """Log that responses wait for a verifier, once until it has judged another."""
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
            score: Score = await _awaited(self._handle.score.remote(*arguments))
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, MistakeError | InfrastructureError):
                raise error.cause from error
            return Score.unjudged(one_line(error.cause))
        except ray.exceptions.RayError as error:
            return Score.unjudged(await self._memory.reason_of(error))
        return score

    async def figures(self) -> dict[str, float]:
        """Return the figures of the pool, and the retries; the retries alone while the reward process is replaced."""
        import ray

        retried = {f"{verifier}/retried": float(count) for verifier, count in sorted(self._retried.items())}
        try:
            return {**await _awaited(self._handle.figures.remote()), **retried}
        except ray.exceptions.RayError:
            return retried


async def _awaited(call: Any) -> Any:
    """Return the result of a Ray call; cancel the call with this task, since Ray would repeat it and log that."""
    import ray

    try:
        return await call
    except asyncio.CancelledError:
        ray.cancel(call)
        raise
