"""A learner that outlives its ranks: it goes back to the newest checkpoint, and takes the steps since then again.

    rank lost, hangs, or step not finite ──► new ranks ──► load the checkpoint ──► steps since then ──► the call again

The same steps on the same sequences lead to the same policy, up to the rounding of kernels that do not repeat
themselves. So actors keep their weights, their samples and the count of versions, and nobody else notices but by the
time that it takes.
"""

from __future__ import annotations

import asyncio
import logging
import math
import shutil
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from operator import methodcaller
from pathlib import Path
from typing import TypeVar

from tasks.failures import MistakeError
from tasks.training.config import TrainingConfig
from tasks.training.learner.client import Learner, LearnerLostError, RestartableLearner, StepReport
from tasks.training.learner.packing import Floats
from tasks.training.learner.packing import Sequence as TokenSequence
from tasks.training.timeouts import Limit, within

logger = logging.getLogger(__name__)

T = TypeVar("T")


class NotFiniteError(MistakeError):
    """A step whose loss or gradient is no number: the learner has gone back to before it, and can go on."""


class DivergedError(MistakeError):
    """Steps keep ending in a loss or a gradient that is no number."""


@dataclass(frozen=True)
class _Step:
    sequences: list[TokenSequence]
    denominator: float
    learning_rate: float

    async def take(self, learner: Learner) -> StepReport:
        return await learner.step(self.sequences, self.denominator, self.learning_rate)


class RestartingLearner:
    """The controller's learner; see `Learner`. It holds the sequences of all steps since the newest checkpoint.

    Args:
        learner: whose ranks it is, not started.
    """

    def __init__(self, learner: RestartableLearner, config: TrainingConfig) -> None:
        self._learner = learner
        self._options = config.learner
        self._limit = Limit.of(config, "stall_seconds")
        self._checkpoint: Path | None = None
        self._steps: list[_Step] = []
        self._in_writing = 0  # so many of them are in the checkpoint that is being written
        self._generation = self._written_by = 0  # of ranks
        self._losses: deque[float] = deque()
        self._in_vain = 0  # so many of them since the last step that was new
        self._restarts = 0
        self._computed = 0.0

    async def start(self) -> None:
        """See `Learner`."""
        await self._learner.start()

    async def step(self, sequences: list[TokenSequence], denominator: float, learning_rate: float) -> StepReport:
        """See `Learner`.

        Raises:
            NotFiniteError: the loss or the gradient is no number. The learner is what it was before the step.
            DivergedError: that happens again and again.
        """
        step = _Step(sequences, denominator, learning_rate)
        report = await self._computing("updates", step.take)
        wrong = [f"{name} = {value}" for name, value in report.metrics.items() if not math.isfinite(value)]
        if wrong:
            error = NotFiniteError(f"the learner's step is not finite: {', '.join(wrong)}")
            await self._go_back(error)
            raise error
        self._steps.append(step)
        self._in_vain = 0
        return report

    async def logprobs(self, sequences: list[TokenSequence]) -> list[Floats]:
        """See `Learner`."""
        return await self._computing("takes log-probabilities", methodcaller("logprobs", sequences))

    async def reference_logprobs(self, sequences: list[TokenSequence]) -> list[Floats]:
        """See `Learner`."""
        return await self._computing("asks the reference", methodcaller("reference_logprobs", sequences))

    async def write_weights(self, path: Path) -> None:
        """See `Learner`."""
        await self._lasting("writes its weights", methodcaller("write_weights", path))

    async def export(self, folder: Path) -> None:
        """See `Learner`."""
        await self._lasting("writes its policy", methodcaller("export", folder))

    async def save(self, folder: Path) -> None:
        """See `Learner`."""

        async def anew(learner: Learner) -> None:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)  # what a lost rank left
            await learner.save(folder)

        await self._lasting("saves its checkpoint", anew)
        self._in_writing, self._written_by = len(self._steps), self._generation

    async def written(self) -> bool:
        """See `Learner`; False also where ranks were lost or replaced before.

        New ranks are the other calls' part, beside which this one waits.

        Raises:
            StalledError: it takes too long. Files that are still being written are in the way of another try.
        """
        writing = "the learner writes its checkpoint"
        try:
            written = await within(self._learner.written(), writing, self._limit)
        except LearnerLostError as error:
            logger.warning("the learner did not write its checkpoint: %s", error)
            return False
        return written and self._written_by == self._generation

    def saved(self, folder: Path) -> None:
        """What `save` began last is complete, and stays in `folder` until this is called again."""
        self._checkpoint = folder
        del self._steps[: self._in_writing]
        self._in_writing = 0

    async def load(self, folder: Path) -> None:
        """See `Learner`."""
        self.saved(folder)
        await self._lasting("loads its checkpoint", methodcaller("load", folder))

    def take_figures(self, seconds: float) -> dict[str, float]:
        """Since the last call, `seconds` ago: `learner_restarts`, and `learner_idle`, one less computing over all time.

        Publishing, saving and going back are not computing.
        """
        figures = {"learner_restarts": float(self._restarts), "learner_idle": 1 - self._computed / seconds}
        self._restarts, self._computed = 0, 0.0
        return figures

    async def _computing(self, doing: str, call: Callable[[Learner], Awaitable[T]]) -> T:
        async def timed(learner: Learner) -> T:
            started = asyncio.get_running_loop().time()
            result = await call(learner)
            self._computed += asyncio.get_running_loop().time() - started
            return result

        return await self._lasting(doing, timed)

    async def _lasting(self, doing: str, call: Callable[[Learner], Awaitable[T]]) -> T:
        while True:
            try:
                return await self._watched(doing, call)
            except LearnerLostError as error:
                await self._go_back(error)

    async def _watched(self, doing: str, call: Callable[[Learner], Awaitable[T]]) -> T:
        return await within(
            call(self._learner),
            f"the controller waits while the learner {doing}",
            self._limit,
            error=LearnerLostError,
        )

    async def _go_back(self, reason: LearnerLostError | NotFiniteError) -> None:
        """New ranks that hold what the old ones held before `reason`.

        Raises:
            LearnerLostError, DivergedError: it has gone back too often; the first also when there is no room for new
                ranks.
        """
        while True:
            self._count(reason)
            self._generation += 1  # what the old ranks were writing is lost
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

    def _count(self, reason: LearnerLostError | NotFiniteError) -> None:
        now, options = asyncio.get_running_loop().time(), self._options
        while self._losses and now - self._losses[0] > options.restart_window_seconds:
            self._losses.popleft()
        # What is found late, a rank that hangs say, is rare however often it comes: it must not go on for ever.
        if max(len(self._losses), self._in_vain) >= options.max_restarts:
            often = len(self._losses) >= options.max_restarts
            since = f"in {options.restart_window_seconds:g} s" if often else "without a new step between them"
            limit = f"learner.max_restarts = {options.max_restarts} {since}"
            if isinstance(reason, NotFiniteError):
                raise DivergedError(
                    f"{reason}, after {limit}. The newest checkpoint is sound; a lower optimizer.learning_rate or "
                    "optimizer.max_grad_norm may get past this"
                )
            raise LearnerLostError(f"{reason}, after {limit}")
        self._losses.append(now)
        self._in_vain += 1
        self._restarts += 1
