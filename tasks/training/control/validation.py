"""Validation: the policy answers prompts that it is never trained on, while training continues.

    version n is published ──► an actor takes it, and is pinned to it for all responses ──► judged ──► metrics of a step

All responses of a validation come from one version, whose policy the controller exports; the best one stays.
"""

from __future__ import annotations

import asyncio
import logging
import math
import statistics
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.failures import MistakeError
from tasks.generation.interface import Completion, RequestRefusedError, sample_seed
from tasks.training.actors.fleet import Fleet
from tasks.training.actors.process import ActorLostError
from tasks.training.actors.slot import ActorSlot
from tasks.training.config import TrainingConfig, ValidationConfig
from tasks.training.groups.group import Prompt
from tasks.training.metric import Metric
from tasks.training.rewards import RewardClient, judge_response
from tasks.verifiers import Score

logger = logging.getLogger(__name__)


def split_validation(prompts: Sequence[Prompt], config: TrainingConfig) -> tuple[list[Prompt], list[Prompt]]:
    """Return the prompts to train on, with their repetitions, and the distinct prompts that validation uses instead.

    Raises:
        MistakeError: none would be left to train on.
    """
    if config.validation is None:
        return list(prompts), []
    by_id = {prompt.prompt_id: prompt for prompt in prompts}
    count = config.validation.prompts
    if count >= len(by_id):
        raise MistakeError(
            f"validation.prompts = {count}: the mixture has {len(by_id)} prompts, and none would be left to train on"
        )
    chosen = sorted(by_id, key=lambda prompt_id: (sample_seed(config.seed, f"validation {prompt_id}", 0), prompt_id))
    validated = set(chosen[:count])
    return [prompt for prompt in prompts if prompt.prompt_id not in validated], [
        by_id[prompt_id] for prompt_id in chosen[:count]
    ]


@dataclass(frozen=True)
class _Answer:
    prompt_id: str
    completion: Completion
    score: Score


VALIDATION = (
    Metric("validation/score", "", "mean over prompts of the mean score of their responses"),
    Metric("validation/error", "", "standard error of that score over prompts"),
    Metric("validation/pass_rate", "share", "mean over prompts of the share of their responses that pass"),
    Metric("validation/rewards/<name>/mean", "", "mean of one of several rewards over responses, before its weight"),
    Metric("validation/truncated", "share of responses", "responses that were cut off at `sampling.max_tokens`"),
    Metric("validation/unanswered", "responses", "responses that could not be generated or judged"),
    Metric("validation/version", "steps", "optimizer steps that the validated policy has taken"),
    Metric("validation/seconds", "s", "time from the beginning to the end of the validation"),
)
"""Metrics of the prompts that are not trained on (`validation`), at the steps after which one has ended."""


class Validation:
    """All validations of a run, of which at most one is under way.

    Attributes:
        responses: number of responses generated so far, of all validations.
    """

    def __init__(
        self,
        config: TrainingConfig,
        prompts: Sequence[Prompt],
        fleet: Fleet,
        judge: RewardClient,
        let_engines_work: Callable[[], Awaitable[None]],
    ) -> None:
        """Make the validation of prompts.

        Args:
            config: the options of the run.
            prompts: those that are never trained on; without any, no version is validated.
            fleet: the actors that answer them.
            judge: judges their responses.
            let_engines_work: is called before a wait for engines; they have their GPUs when it returns.
        """
        self._config = config
        self._options = config.validation or ValidationConfig()
        self._prompts = list(prompts)
        self._fleet = fleet
        self._judge = judge
        self._let_engines_work = let_engines_work
        self._scores: dict[int, float] = {}
        self._task: asyncio.Task[None] | None = None
        self._version = 0
        self._begun = asyncio.Event()
        self._one_by_one = False
        self._new_metrics: dict[str, float] = {}
        self.responses = 0

    def state(self) -> dict[str, float]:
        """Return the mean scores by version, for a checkpoint."""
        return {str(version): score for version, score in self._scores.items()}

    def restore(self, state: Mapping[str, float]) -> None:
        """Continue with the scores that `state` returned."""
        self._scores = {int(version): score for version, score in state.items()}

    @property
    def best(self) -> int | None:
        """Version with the highest score, the first of equals; None before any is validated."""
        return max(self._scores, key=lambda version: (self._scores[version], -version), default=None)

    def is_due(self, version: int) -> bool:
        """Return whether `version` of the policy should be validated now."""
        due = version % self._options.every == 0 or version == self._config.steps
        return bool(self._prompts) and due and version not in self._scores

    @property
    def needed(self) -> set[int]:
        """Versions whose policy is the best so far, or may turn out to be: the best one and the one under way."""
        return self._under_way | ({self.best} if self.best is not None else set())

    @property
    def _under_way(self) -> set[int]:
        return {self._version} if self._task and not self._task.done() else set()

    async def begin(self, version: int) -> None:
        """Begin the validation of `version`, which has just been published.

        While another validation is under way it is skipped, so that the learner never waits. The last version of the
        run is not skipped: it waits for the other to end.

        Raises:
            Exception: the defect that ended the validation before.
        """
        if self._under_way and version < self._config.steps:
            logger.warning(
                "version %d is not validated, as version %d still is: raise validation.every = %d, or lower "
                "validation.prompts = %d or validation.samples = %d",
                version,
                self._version,
                self._options.every,
                self._options.prompts,
                self._options.samples,
            )
            return
        await self.finish()
        self._version = version
        self._begun.clear()
        self._task = asyncio.create_task(self._validate(version))

    async def begun(self) -> None:
        """Wait until an actor is pinned to the version to validate, so that a newer one may be published."""
        if self._task and self._under_way:
            if not self._begun.is_set():
                await self._let_engines_work()
            waiting = asyncio.create_task(self._begun.wait())
            await asyncio.wait([waiting, self._task], return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()

    async def finish(self) -> None:
        """Wait until no validation is under way; raise the defect that ended the last one."""
        if self._task:
            if self._under_way:
                await self._let_engines_work()
            await self._task

    def take_metrics(self) -> dict[str, float]:
        """Return the metrics of `VALIDATION` of the newest validation that ended since the last call, if any.

        Raises:
            Exception: the error that ended a validation.
        """
        if self._task and self._task.done():
            self._task.result()
        metrics, self._new_metrics = self._new_metrics, {}
        return {f"validation/{name}": value for name, value in metrics.items()}

    async def close(self) -> None:
        """Cancel the validation that is under way."""
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _validate(self, version: int) -> None:
        clock = asyncio.get_running_loop().time
        started, total = clock(), len(self._prompts) * self._options.samples
        judging: list[asyncio.Task[_Answer]] = []
        try:
            if not await self._generate(version, judging):
                logger.warning(
                    "version %d is not validated: its actor was lost, and all others have newer weights",
                    version,
                )
                return
            judged = [answer for answer in await asyncio.gather(*judging) if answer.score.error is None]
        finally:
            await _cancel(judging)
        if not judged:
            logger.warning("version %d is not validated: no response could be judged", version)
            return
        figures = summary(judged)
        self._scores[version] = figures["score"]
        logger.info("version %d: validation score %.3f +- %.3f", version, figures["score"], figures["error"])
        self._new_metrics = {
            "version": float(version),
            **figures,
            "unanswered": float(total - len(judged)),
            "seconds": clock() - started,
        }

    async def _generate(self, version: int, judging: list[asyncio.Task[_Answer]]) -> bool:
        """Generate all responses and begin to judge them; return False where no actor has `version` any more.

        After the loss of an actor, prompts are answered one by one, because one of them may be the cause of the loss.
        """
        waiting = list(self._prompts)
        while waiting:
            answering = False
            try:
                async with self._fleet.pinned(version) as slot:
                    self._begun.set()
                    answering = True
                    while waiting:
                        prompts = waiting[:1] if self._one_by_one else list(waiting)
                        await self._answer(slot, prompts, waiting, judging)
            except ActorLostError as error:
                logger.warning("validation of version %d: %s", version, error)
                if self._one_by_one and answering:
                    prompt = waiting.pop(0)
                    self._prompts.remove(prompt)
                    logger.warning(
                        "prompt %s is not validated any more: an actor was lost while it answered this prompt",
                        prompt.prompt_id,
                    )
                self._one_by_one = True
                if self._fleet.has_newer_than(version):
                    return False
        self._one_by_one = False
        return True

    async def _answer(
        self, slot: ActorSlot, prompts: list[Prompt], waiting: list[Prompt], judging: list[asyncio.Task[_Answer]]
    ) -> None:
        """Generate all responses to `prompts`; remove a prompt from `waiting` when its responses are being judged."""

        async def answer(prompt: Prompt) -> None:
            try:
                completions = await asyncio.gather(*(sample(prompt, index) for index in range(self._options.samples)))
            except RequestRefusedError as error:
                logger.warning("prompt %s is not validated: %s", prompt.prompt_id, error)
                completions = []
            waiting.remove(prompt)
            judging.extend(asyncio.create_task(self._judged(prompt, completion)) for completion in completions)

        async def sample(prompt: Prompt, index: int) -> Completion:
            seed = sample_seed(self._config.seed, f"validation {prompt.prompt_id}", index)
            completion = await self._fleet.generate_for_validation(slot, prompt.token_ids, self._config.sampling, seed)
            self.responses += 1
            return completion

        answering = [asyncio.create_task(answer(prompt)) for prompt in prompts]
        try:
            await asyncio.gather(*answering)
        finally:
            await _cancel(answering)

    async def _judged(self, prompt: Prompt, completion: Completion) -> _Answer:
        return _Answer(prompt.prompt_id, completion, await judge_response(self._judge, prompt, completion))


async def _cancel(tasks: Sequence[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def summary(answers: Sequence[_Answer]) -> dict[str, float]:
    """Return score, standard error, pass rate, share of truncated responses and rewards by name, as in `VALIDATION`.

    There is at least one answer, and all are judged.
    """
    by_prompt: dict[str, list[_Answer]] = {}
    for answer in answers:
        by_prompt.setdefault(answer.prompt_id, []).append(answer)
    scores = [statistics.fmean(answer.score.value for answer in group) for group in by_prompt.values()]
    passed = [statistics.fmean(answer.score.passed for answer in group) for group in by_prompt.values()]
    rewards: dict[str, list[float]] = {}
    for part in (part for answer in answers for part in answer.score.rewards):
        if part.value is not None:
            rewards.setdefault(part.name, []).append(part.value)
    return {
        "score": statistics.fmean(scores),
        "error": statistics.stdev(scores) / math.sqrt(len(scores)) if len(scores) > 1 else 0.0,
        "pass_rate": statistics.fmean(passed),
        "truncated": statistics.fmean(answer.completion.truncated for answer in answers),
        **{f"rewards/{name}/mean": statistics.fmean(values) for name, values in sorted(rewards.items())},
    }


_VALIDATED = "validated_"
"""Beginning of the names of folders of validated policies."""


def validated_policy(policies: Path, version: int) -> Path:
    """Return the folder of the validated policy `version`, below the folder of all policies of a run."""
    return policies / f"{_VALIDATED}{version:08d}"


def superseded_policies(policies: Path, needed: Collection[int]) -> list[Path]:
    """Return the folders of validated policies whose versions are not among `needed`."""
    folders = policies.glob(f"{_VALIDATED}*")
    return [folder for folder in folders if int(folder.stem.removeprefix(_VALIDATED)) not in needed]
