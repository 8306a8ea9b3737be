"""Validates the policy on prompts that it is never trained on, while training continues.

    version n is published ──► an actor takes it, and is pinned to it for all responses ──► scored ──► metrics of a step

The prompts are held-out prompts of the mixture and the questions of benchmarks. All responses of a validation come from
one version of the policy. The controller exports that policy, and keeps the best one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from tasks.failures import MistakeError
from tasks.generation.interface import Completion, RequestRefusedError, sample_seed
from tasks.recipe.run import TrainingConfig, ValidationConfig
from tasks.training.actors.fleet import Fleet
from tasks.training.actors.process import ActorLostError
from tasks.training.actors.rewards import judge_group, judge_response, make_scorer
from tasks.training.actors.slot import ActorSlot
from tasks.training.control.collaborators import Collaborators
from tasks.training.control.validation_figures import Answer, Question, summary
from tasks.training.groups.group import Prompt
from tasks.training.runtime.timeouts import cancel
from tasks.verifiers import stated_answer
from tasks.verifiers.equal_answers import group_equal_answers
from tasks.verifiers.grouped import has_group_reward

logger = logging.getLogger(__name__)


def split_validation(prompts: Sequence[Prompt], config: TrainingConfig) -> tuple[list[Prompt], list[Prompt]]:
    """Return the prompts to train on, with their repetitions, and the distinct held-out prompts for validation.

    The choice depends on the ids of the prompts alone, so that runs with other seeds are validated on the same ones.

    Raises:
        MistakeError: no prompt would be left to train on.
    """
    if config.validation is None:
        return list(prompts), []
    by_id = {prompt.prompt_id: prompt for prompt in prompts}
    count = config.validation.prompts
    if count >= len(by_id):
        raise MistakeError(
            f"validation.prompts = {count}: the mixture has {len(by_id)} prompts, and none would be left to train on"
        )
    chosen = sorted(by_id, key=lambda prompt_id: (sample_seed(0, f"validation {prompt_id}", 0), prompt_id))
    validated = set(chosen[:count])
    return [prompt for prompt in prompts if prompt.prompt_id not in validated], [
        by_id[prompt_id] for prompt_id in chosen[:count]
    ]


class Validation:
    """Runs the validations of a run, at most one at a time.

    Attributes:
        responses: number of responses generated so far, over all validations.
    """

    def __init__(self, config: TrainingConfig, collaborators: Collaborators, fleet: Fleet) -> None:
        """Prepare the validation of prompts and questions. Without any of them, no version is validated.

        Args:
            config: the options of the run.
            collaborators: the prompts, which are sampled with the options of training; the questions, which are sampled
                with the options of their benchmarks; the client that scores; and the learner, which leaves engines the
                GPUs.
            fleet: the actors that answer them.
        """
        self._config = config
        self._options = config.validation or ValidationConfig()
        sampling = config.sampling.model_copy(update={"samples": self._options.samples, "seed": config.seed})
        held_out = (Question(prompt, sampling) for prompt in collaborators.validation_prompts)
        self._questions = [*held_out, *collaborators.questions]
        self._fleet = fleet
        self._judge = collaborators.judge
        self._learner = collaborators.learner
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

    def restore(self, state: Mapping[str, float], version: int, last: Mapping[str, float]) -> None:
        """Continue with the scores that `state` returned.

        The last version of the run counts as validated only if the metrics contain the results.

        Args:
            state: the scores.
            version: the version that the run continues from.
            last: the metrics of the step that produced this version.
        """
        self._scores = {int(validated): score for validated, score in state.items()}
        if version >= self._config.steps:
            self._scores.pop(version, None)
            if last.get("validation/version") == version:
                self._scores[version] = last["validation/score"]

    @property
    def best(self) -> int | None:
        """Version with the highest score, the earliest of equals, or None before any is validated."""
        return max(self._scores, key=lambda version: (self._scores[version], -version), default=None)

    def is_due(self, version: int) -> bool:
        """Return whether `version` of the policy should be validated now."""
        due = version % self._options.every == 0 or version == self._config.steps
        return bool(self._questions) and due and version not in self._scores

    @property
    def needed(self) -> set[int]:
        """Versions whose policy is or may become the best: the best so far, and the version that is being validated."""
        return self._under_way | ({self.best} if self.best is not None else set())

    @property
    def _under_way(self) -> set[int]:
        return {self._version} if self._task and not self._task.done() else set()

    async def begin(self, version: int) -> None:
        """Begin the validation of `version`, which has just been published.

        The version is skipped if another validation is still running, so that the learner never waits. The last version
        of the run is not skipped: it waits for the other validation to end.

        Raises:
            Exception: the error that ended the previous validation.
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
        """Wait until an actor is pinned to the version to validate, so that a newer version may be published."""
        if self._task and self._under_way:
            if not self._begun.is_set():
                await self._learner.leave_gpus()
            waiting = asyncio.create_task(self._begun.wait())
            await asyncio.wait([waiting, self._task], return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()

    async def finish(self) -> None:
        """Wait until no validation is running. Raise the error that ended the last one."""
        if self._task:
            if self._under_way:
                await self._learner.leave_gpus()
            await self._task

    def take_metrics(self) -> dict[str, float]:
        """Return the metrics of the newest validation that ended since the last call, if any.

        Raises:
            Exception: the error that ended a validation.
        """
        if self._task and self._task.done():
            self._task.result()
        metrics, self._new_metrics = self._new_metrics, {}
        return {f"validation/{name}": value for name, value in metrics.items()}

    async def close(self) -> None:
        """Cancel the validation that is running."""
        if self._task:
            await cancel([self._task])

    async def _validate(self, version: int) -> None:
        clock = asyncio.get_running_loop().time
        started, asked = clock(), list(self._questions)
        judging: list[asyncio.Task[list[Answer]]] = []
        try:
            if not await self._generate(version, judging):
                logger.warning(
                    "version %d is not validated: its actor was lost, and all others have newer weights",
                    version,
                )
                return
            answers = [answer for answered in await asyncio.gather(*judging) for answer in answered]
            judged = [answer for answer in answers if answer.score.error is None]
        finally:
            await cancel(judging)
        figures = summary(asked, judged)
        if figures is None:
            logger.warning("version %d is not validated: no response could be scored", version)
            return
        self._scores[version] = figures["score"]
        logger.info(
            "version %d: validation score %.3f (%.3f to %.3f)",
            version,
            *(figures[name] for name in ("score", "low", "high")),
        )
        self._new_metrics = {
            "version": float(version),
            **figures,
            "unanswered": float(sum(question.sampling.samples for question in asked) - len(judged)),
            "seconds": clock() - started,
        }

    async def _generate(self, version: int, judging: list[asyncio.Task[list[Answer]]]) -> bool:
        """Generate all responses and begin to score them. Return False if no actor has `version` any more.

        After the loss of an actor, prompts are answered one at a time, because one of them may have caused the loss.
        """
        waiting = list(self._questions)
        while waiting:
            answering = False
            try:
                async with self._fleet.pin(version) as slot:
                    self._begun.set()
                    answering = True
                    while waiting:
                        questions = waiting[:1] if self._one_by_one else list(waiting)
                        await self._answer(slot, questions, waiting, judging)
            except ActorLostError as error:
                logger.warning("validation of version %d: %s", version, error)
                if self._one_by_one and answering:
                    question = waiting.pop(0)
                    self._questions.remove(question)
                    logger.warning(
                        "prompt %s is not validated any more: an actor was lost while it answered this prompt",
                        question.prompt.prompt_id,
                    )
                self._one_by_one = True
                if self._fleet.has_newer_than(version):
                    return False
        self._one_by_one = False
        return True

    async def _answer(
        self,
        slot: ActorSlot,
        questions: list[Question],
        waiting: list[Question],
        judging: list[asyncio.Task[list[Answer]]],
    ) -> None:
        """Generate all responses to `questions`. A question leaves `waiting` when scoring of its responses begins."""

        async def answer(question: Question) -> None:
            try:
                completions = await asyncio.gather(*(sample(question, i) for i in range(question.sampling.samples)))
            except RequestRefusedError as error:
                logger.warning("prompt %s is not validated: %s", question.prompt.prompt_id, error)
                completions = []
            waiting.remove(question)
            if completions:
                judging.append(asyncio.create_task(self._judged(question, completions)))

        async def sample(question: Question, index: int) -> Completion:
            prompt, sampling = question.prompt, question.sampling
            seed = sample_seed(sampling.seed or 0, f"validation {prompt.prompt_id}", index)
            completion = await self._fleet.generate_for_validation(slot, prompt, sampling, seed, index)
            self.responses += 1
            return completion

        answering = [asyncio.create_task(answer(question)) for question in questions]
        try:
            await asyncio.gather(*answering)
        finally:
            await cancel(answering)

    async def _judged(self, question: Question, completions: Sequence[Completion]) -> list[Answer]:
        judge, prompt = self._judge, question.prompt
        if has_group_reward(prompt.verifier, prompt.ground_truth):
            scores = await judge_group(judge, prompt, completions)
        else:
            scores = await asyncio.gather(*(judge_response(judge, prompt, completion) for completion in completions))
        classes: list[int | None] = [None] * len(scores)
        if question.has_majority:
            classes = await self._classes(prompt, completions)
        return [Answer(question, *answered) for answered in zip(completions, scores, classes, strict=True)]

    async def _classes(self, prompt: Prompt, completions: Sequence[Completion]) -> list[int | None]:
        """Return a number for each response, the same for equal answers, or None if it states no answer."""
        answers = [stated_answer(prompt.verifier, completion.text, prompt.ground_truth) for completion in completions]
        return await group_equal_answers(answers, prompt.ground_truth, make_scorer(self._judge, prompt))


_VALIDATED = "validated_"
"""Prefix of the folder names of validated policies."""


def find_validated_policy(policies: Path, version: int) -> Path:
    """Return the folder of the validated policy `version`, below the folder of all policies of a run."""
    return policies / f"{_VALIDATED}{version:08d}"


def find_superseded_policies(policies: Path, needed: Collection[int]) -> list[Path]:
    """Return the folders of validated policies whose versions are not among `needed`."""
    folders = policies.glob(f"{_VALIDATED}*")
    return [folder for folder in folders if int(folder.stem.removeprefix(_VALIDATED)) not in needed]
