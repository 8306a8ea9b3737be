"""A learner that replaces lost ranks: it reloads the newest checkpoint and takes the steps since then again.

    rank lost, hangs, or step not finite ──► new ranks ──► load the checkpoint ──► steps since then ──► the call again

The same steps on the same sequences lead to the same policy, up to the rounding of kernels that are not deterministic.
So actors keep their weights, their samples and their version, and the controller sees a slow call and nothing else.

Where learner and engines take turns on their GPUs, a call begins the learner's turn, and `leave_gpus` ends it. Lost
ranks are replaced in the learner's turn, in which the GPUs hold nothing else.
"""

from __future__ import annotations

import asyncio
import logging
import math
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from operator import methodcaller
from pathlib import Path
from typing import TypeVar

from tasks.failures import MistakeError
from tasks.training.config import TrainingConfig
from tasks.training.gpu_time_sharing import Turns
from tasks.training.learner.checkpoint_shards import PartsError
from tasks.training.learner.client import Learner, LearnerLostError, RestartableLearner, StepReport, WrittenWeights
from tasks.training.learner.packing import Floats
from tasks.training.learner.packing import Sequence as TokenSequence
from tasks.training.restart_budget import RestartBudget
from tasks.training.timeouts import Limit, watched, within

logger = logging.getLogger(__name__)

T = TypeVar("T")


class NotFiniteError(MistakeError):
    """The loss or gradient of a step is NaN or infinite; the learner has been restored to the step before it."""


class DivergedError(MistakeError):
    """Steps keep ending in a loss or a gradient that is NaN or infinite."""


@dataclass(frozen=True)
class _Step:
    """The arguments of one `Learner.step`."""

    sequences: list[TokenSequence]
    denominator: float
    learning_rate: float

    async def take(self, learner: Learner) -> StepReport:
        return await learner.step(self.sequences, self.denominator, self.learning_rate)


class RestartingLearner:
    """A `Learner` that restores itself when ranks are lost or a step is not finite.

    It holds the sequences of all steps since the newest checkpoint in memory, in order to take them again.

    Args:
        learner: the learner whose ranks are replaced, not started.
        config: the run's; read are `learner.max_restarts`, `learner.restart_window_seconds` and `stall_seconds`, after
            which a call counts as hanging.
        turns: the turns of engines and learner on their GPUs; None: they take none.
    """

    def __init__(self, learner: RestartableLearner, config: TrainingConfig, turns: Turns | None = None) -> None:
        self._learner = learner
        self._turns = turns or Turns()
        self._budget = RestartBudget(config.learner.max_restarts, config.learner.restart_window_seconds)
        self._limit = Limit.of(config, "stall_seconds")
        self._checkpoint: Path | None = None
        self._steps: list[_Step] = []  # since `_checkpoint`
        self._saved_steps = 0  # the number of `_steps` that are in the checkpoint that is being written
        self._generation = self._saving_generation = 0  # of ranks: counts their replacements
        self._restarts_without_progress = 0  # since the last step that was new
        self._restarts = 0  # since the last `take_figures`
        self._computed = 0.0  # seconds, since the last `take_figures`

    async def start(self) -> None:
        await self._learner.start()

    async def step(self, sequences: list[TokenSequence], denominator: float, learning_rate: float) -> StepReport:
        """Take an optimizer step, as `Learner.step` does.

        Raises:
            NotFiniteError: the loss or the gradient is NaN or infinite. The learner is what it was before the step.
            DivergedError: that has happened `max_restarts` times.
        """
        step = _Step(sequences, denominator, learning_rate)
        report = await self._computing("updates", step.take)
        wrong = [f"{name} = {value}" for name, value in report.metrics.items() if not math.isfinite(value)]
        if wrong:
            error = NotFiniteError(f"the learner's step is not finite: {', '.join(wrong)}")
            await self._restore(error)
            raise error
        self._steps.append(step)
        self._restarts_without_progress = 0
        return report

    async def logprobs(self, sequences: list[TokenSequence]) -> list[Floats]:
        return await self._computing("takes log-probabilities", methodcaller("logprobs", sequences))

    async def reference_logprobs(self, sequences: list[TokenSequence]) -> list[Floats]:
        return await self._computing("takes reference log-probabilities", methodcaller("reference_logprobs", sequences))

    async def write_weights(self, path: Path) -> WrittenWeights:
        return await self._until_it_succeeds("writes its weights", methodcaller("write_weights", path))

    async def export(self, folder: Path) -> None:
        await self._until_it_succeeds("writes its policy", methodcaller("export", folder))

    async def save(self, folder: Path) -> None:
        async def save_anew(learner: Learner) -> None:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)  # the files of a lost rank
            await learner.save(folder)

        await self._until_it_succeeds("saves its checkpoint", save_anew)
        self._saved_steps, self._saving_generation = len(self._steps), self._generation

    async def wait_until_written(self) -> bool:
        """Wait until the checkpoint is written, and uploaded where ranks do that themselves.

        Return False where ranks were lost or replaced before it was. This call does not replace ranks: others, which
        run beside it, do.

        Raises:
            StalledError: writing takes longer than `stall_seconds`, and files that are still being written forbid a
                retry.
            PartsError: the storage does not take it.
        """
        writing = "the learner writes its checkpoint"
        try:
            written = await within(self._learner.wait_until_written(), writing, self._limit)
            if written:
                written = await watched(
                    self._learner.wait_until_uploaded(), "the learner's ranks upload their checkpoint"
                )
        except LearnerLostError as error:
            logger.warning("the learner did not write its checkpoint: %s", error)
            return False
        except PartsError as error:
            logger.warning(
                "a checkpoint is lost: %s. Training goes on until another is due; killed before, it resumes from an "
                "older one",
                error,
            )
            raise
        return written and self._saving_generation == self._generation

    def saved(self, folder: Path) -> None:
        """Record that the last `save` is complete, and stays in `folder` until the next call of this method."""
        self._checkpoint = folder
        del self._steps[: self._saved_steps]
        self._saved_steps = 0

    async def load(self, folder: Path) -> None:
        self.saved(folder)
        await self._until_it_succeeds("loads its checkpoint", methodcaller("load", folder))

    async def leave_gpus(self) -> None:
        """Let engines have the GPUs until the next call that needs them, where learner and engines take turns."""
        if self._turns.taken and self._turns.are_learners:
            await self._until_it_succeeds("moves its states to main memory", methodcaller("offload_states"))
            self._turns.give()

    async def _take_gpus(self) -> None:
        """Begin the learner's turn, unless it is that already."""
        if self._turns.taken and not self._turns.are_learners:
            await watched(self._turns.take(), "the learner waits until all engines have left its GPUs")
            await self._watched("brings its states to its GPUs", methodcaller("reload_states"))

    def take_figures(self, seconds: float) -> dict[str, float]:
        """Return the metrics of the `seconds` since the last call, and begin to count anew.

        `learner_restarts` is the number of restarts; `learner_idle` is the share of the time in which the learner did
        not compute. Publishing, saving and restarting are not computing.
        """
        figures = {"learner_restarts": float(self._restarts), "learner_idle": 1 - self._computed / seconds}
        self._restarts, self._computed = 0, 0.0
        return figures

    async def _computing(self, doing: str, call: Callable[[Learner], Awaitable[T]]) -> T:
        """Make a call whose time counts as computing; `doing` completes "the learner ..." in a log line."""

        async def timed(learner: Learner) -> T:
            started = asyncio.get_running_loop().time()
            result = await call(learner)
            self._computed += asyncio.get_running_loop().time() - started
            return result

        return await self._until_it_succeeds(doing, timed)

    async def _until_it_succeeds(self, doing: str, call: Callable[[Learner], Awaitable[T]]) -> T:
        """Make a call, and after each loss of ranks restore the learner and make it again."""
        while True:
            try:
                await self._take_gpus()
                return await self._watched(doing, call)
            except LearnerLostError as error:
                await self._restore(error)

    async def _watched(self, doing: str, call: Callable[[Learner], Awaitable[T]]) -> T:
        return await within(
            call(self._learner),
            f"the controller waits while the learner {doing}",
            self._limit,
            error=LearnerLostError,
        )

    async def _restore(self, reason: LearnerLostError | NotFiniteError) -> None:
        """Replace the ranks by new ones in the state that the old ones had before `reason`.

        Raises:
            LearnerLostError, DivergedError: the restarts are used up; the first also where the cluster has no room for
                new ranks.
        """
        while True:
            self._use_a_restart(reason)
            self._generation += 1  # the checkpoint that the old ranks were writing is lost
            folder, steps = self._checkpoint, list(self._steps)
            logger.warning(
                "%s. Actors go on; the learner goes back to %s, and takes %d steps again",
                reason,
                folder.parent.name if folder else "the initial checkpoint",
                len(steps),
            )
            try:
                await self._learner.restart()
                if folder:
                    await self._watched("loads its checkpoint", methodcaller("load", folder))
                for number, step in enumerate(steps, 1):
                    await self._watched(f"takes step {number} of {len(steps)} again", step.take)
            except LearnerLostError as error:
                reason = error
            else:
                return

    def _use_a_restart(self, reason: LearnerLostError | NotFiniteError) -> None:
        """Count one restart; raises `reason`, with the limit, where none is left."""
        now, budget = asyncio.get_running_loop().time(), self._budget
        # A rank that hangs is noticed after `stall_seconds`, so that few restarts fall into the window however often it
        # happens: restarts without a new step between them are limited as well.
        if max(budget.used(now), self._restarts_without_progress) >= budget.limit:
            often = budget.used(now) >= budget.limit
            since = f"in {budget.window_seconds:g} s" if often else "without a new step between them"
            limit = f"learner.max_restarts = {budget.limit} {since}"
            if isinstance(reason, NotFiniteError):
                raise DivergedError(
                    f"{reason}, after {limit}. The newest checkpoint is sound; a lower optimizer.learning_rate or "
                    "optimizer.max_grad_norm may get past this"
                )
            raise LearnerLostError(f"{reason}, after {limit}")
        budget.record(now)
        self._restarts_without_progress += 1
        self._restarts += 1
