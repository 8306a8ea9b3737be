"""Replaces lost learner ranks: reloads the newest checkpoint and repeats the steps since then.

    rank lost, hangs, or step not finite ──► new ranks ──► load the checkpoint ──► steps since then ──► the call again

The same steps on the same sequences lead to the same policy, up to the rounding of kernels that are not deterministic.
So actors keep their weights, their samples and their version, and the controller only sees a slow call.

With time sharing of GPUs, a call begins the learner's turn, and `leave_gpus` ends it. Lost ranks are replaced during
the learner's turn, while nothing else is on the GPUs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from tasks.failures import MistakeError
from tasks.recipe.run import TrainingConfig
from tasks.training.learner.checkpoint_shards import ShardUploadError
from tasks.training.learner.client import Learner, LearnerLostError, StepReport, WrittenWeights
from tasks.training.learner.packing import Floats
from tasks.training.learner.packing import Sequence as TokenSequence
from tasks.training.runtime.gpu_time_sharing import Turns
from tasks.training.runtime.restart_budget import RestartBudget
from tasks.training.runtime.timeouts import Limit, wait_with_status, wait_within

logger = logging.getLogger(__name__)

T = TypeVar("T")


class NotFiniteError(MistakeError):
    """The loss or gradient of a step is NaN or infinite; the learner has been restored to the state before the step."""


class DivergedError(MistakeError):
    """Steps keep ending in a loss or a gradient that is NaN or infinite."""


class RestartingLearner:
    """Makes the calls of a `Learner` for the controller; restores it if ranks are lost or a step is not finite.

    It keeps the sequences of all steps since the newest checkpoint in memory, to repeat the steps.

    Args:
        learner: the learner whose ranks are replaced, not started.
        config: the run's options. It uses `learner.max_restarts`, `learner.restart_window_seconds` and `stall_seconds`,
            after which a call counts as hanging.
        turns: time sharing of GPUs between engines and learner. Optional. If None, time sharing is off.
    """

    def __init__(self, learner: Learner, config: TrainingConfig, turns: Turns | None = None) -> None:
        self._learner = learner
        self._turns = turns or Turns()
        self._budget = RestartBudget(config.learner.max_restarts, config.learner.restart_window_seconds)
        self._limit = Limit.from_config(config, "stall_seconds")
        self._checkpoint: Path | None = None
        self._steps: list[Callable[[], Awaitable[StepReport]]] = []  # those since `_checkpoint`, to be taken again
        self._saved_steps = 0  # number of `_steps` in the checkpoint that is being written
        self._generation = self._saving_generation = 0  # counts replacements of the ranks
        self._restarts_without_progress = 0  # since the last step that was new
        self._restarts = 0  # since the last `take_figures`
        self._computed = 0.0  # seconds, since the last `take_figures`

    async def start(self) -> None:
        await self._learner.start()

    async def step(self, sequences: list[TokenSequence], denominator: float, learning_rate: float) -> StepReport:
        """Take an optimizer step, as `Learner.step` does.

        Raises:
            NotFiniteError: the loss or the gradient is NaN or infinite. The learner is in the state before the step.
            DivergedError: this has happened `max_restarts` times.
        """
        take = partial(self._learner.step, sequences, denominator, learning_rate)
        while True:
            async with self._attempt():
                report = await self._watch("updates", take(), computes=True)
                break
        wrong = [f"{name} = {value}" for name, value in report.metrics.items() if not math.isfinite(value)]
        if wrong:
            error = NotFiniteError(f"the learner's step is not finite: {', '.join(wrong)}")
            await self._restore(error)
            raise error
        self._steps.append(take)
        self._restarts_without_progress = 0
        return report

    async def logprobs(self, sequences: list[TokenSequence]) -> list[Floats]:
        call = partial(self._learner.logprobs, sequences)
        return await self._retry_until_success("takes log-probabilities", call, computes=True)

    async def reference_logprobs(self, sequences: list[TokenSequence]) -> list[Floats]:
        call = partial(self._learner.reference_logprobs, sequences)
        return await self._retry_until_success("takes reference log-probabilities", call, computes=True)

    async def write_weights(self, path: Path) -> WrittenWeights:
        return await self._retry_until_success("writes its weights", partial(self._learner.write_weights, path))

    async def export(self, folder: Path) -> None:
        await self._retry_until_success("writes its policy", partial(self._learner.export, folder))

    async def save(self, folder: Path) -> None:
        async def save() -> None:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)  # the files of a lost rank
            await self._learner.save(folder)

        await self._retry_until_success("saves its checkpoint", save)
        self._saved_steps, self._saving_generation = len(self._steps), self._generation

    async def wait_until_written(self) -> bool:
        """Wait until the checkpoint is written and, if ranks upload their files, uploaded.

        Return False if ranks were lost or replaced before that. This call does not replace ranks; concurrent calls do.

        Raises:
            StalledError: writing takes longer than `stall_seconds`, and files that are still being written prevent a
                retry.
            ShardUploadError: the upload fails.
        """
        writing = "the learner writes its checkpoint"
        try:
            written = await wait_within(self._learner.wait_until_written(), writing, self._limit)
            if written:
                written = await wait_with_status(
                    self._learner.wait_until_uploaded(), "the learner's ranks upload their checkpoint"
                )
        except LearnerLostError as error:
            logger.warning("the learner did not write its checkpoint: %s", error)
            return False
        except ShardUploadError as error:
            logger.warning(
                "a checkpoint is lost: %s. Training continues until another is due; killed before, it resumes from an "
                "older one",
                error,
            )
            raise
        return written and self._saving_generation == self._generation

    def saved(self, folder: Path) -> None:
        """Record that the last `save` is complete in `folder`: a restart loads it, and only repeats the steps after it.

        The folder must exist until the next call of this method.
        """
        self._checkpoint = folder
        del self._steps[: self._saved_steps]
        self._saved_steps = 0

    async def load(self, folder: Path) -> None:
        self.saved(folder)
        await self._retry_until_success("loads its checkpoint", partial(self._learner.load, folder))

    async def leave_gpus(self) -> None:
        """With time sharing, give the GPUs to the engines until the next call that needs them."""
        if self._turns.taken and self._turns.are_learners:
            await self._retry_until_success("moves its states to main memory", self._learner.offload_states)
            self._turns.give()

    def take_figures(self, seconds: float) -> dict[str, float]:
        """Return the metrics of the `seconds` since the last call, and reset the counts.

        `learner_restarts` is the number of restarts; `learner_idle` is the share of time during which the learner did
        not compute. Publishing, saving and restarting are not computing.
        """
        figures = {"learner_restarts": float(self._restarts), "learner_idle": 1 - self._computed / seconds}
        self._restarts, self._computed = 0, 0.0
        return figures

    @contextlib.asynccontextmanager
    async def _attempt(self) -> AsyncIterator[None]:
        """Begin the learner's turn, unless it has begun already; restore the learner if ranks are lost in the block."""
        if self._turns.taken and not self._turns.are_learners:
            await wait_with_status(self._turns.take(), "the learner waits until all engines have left its GPUs")
            async with self._attempt():  # new ranks have their states on the GPUs
                await self._watch("brings its states to its GPUs", self._learner.reload_states())
        try:
            yield
        except LearnerLostError as error:
            await self._restore(error)

    async def _retry_until_success(self, doing: str, call: Callable[[], Awaitable[T]], *, computes: bool = False) -> T:
        """Make a call, and repeat it after each loss of ranks. `step` contains this loop itself, to be easy to read."""
        while True:
            async with self._attempt():
                return await self._watch(doing, call(), computes=computes)

    async def _watch(self, doing: str, call: Awaitable[T], *, computes: bool = False) -> T:
        """Await a call; `doing` completes "the learner ..." in a log line. With `computes`, its time is counted."""
        started, waiting = asyncio.get_running_loop().time(), f"the controller waits while the learner {doing}"
        result = await wait_within(call, waiting, self._limit, error=LearnerLostError)
        if computes:
            self._computed += asyncio.get_running_loop().time() - started
        return result

    async def _restore(self, reason: LearnerLostError | NotFiniteError) -> None:
        """Replace the ranks by new ranks, with the state of the old ranks before `reason`.

        Raises:
            LearnerLostError, DivergedError: no restarts are left. LearnerLostError is also raised if the cluster has no
                resources for new ranks.
        """
        while True:
            self._count_restart(reason)
            self._generation += 1  # the checkpoint that the old ranks were writing is lost
            folder, steps = self._checkpoint, list(self._steps)
            logger.warning(
                "%s. Actors continue; the learner goes back to %s and repeats %d steps",
                reason,
                folder.parent.name if folder else "the initial checkpoint",
                len(steps),
            )
            try:
                await self._learner.restart()
                if folder:
                    await self._watch("loads its checkpoint", self._learner.load(folder))
                for number, take in enumerate(steps, 1):
                    await self._watch(f"takes step {number} of {len(steps)} again", take())
            except LearnerLostError as error:
                reason = error
            else:
                return

    def _count_restart(self, reason: LearnerLostError | NotFiniteError) -> None:
        """Count one restart; raise `reason`, with the limit, if none is left."""
        now, budget = asyncio.get_running_loop().time(), self._budget
        # A hanging rank is detected after `stall_seconds`, so that only few restarts fall into the window, no matter
        # how often it happens. So restarts without a new step between them are limited as well.
        if max(budget.used(now), self._restarts_without_progress) >= budget.limit:
            often = budget.used(now) >= budget.limit
            since = f"in {budget.window_seconds:g} s" if often else "without a new step between them"
            limit = f"learner.max_restarts = {budget.limit} {since}"
            if isinstance(reason, NotFiniteError):
                raise DivergedError(
                    f"{reason}, after {limit}. The newest checkpoint is intact; a lower optimizer.learning_rate or "
                    "optimizer.max_grad_norm may get past this"
                )
            raise LearnerLostError(f"{reason}, after {limit}")
        budget.record(now)
        self._restarts_without_progress += 1
        self._restarts += 1
