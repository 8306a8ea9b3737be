"""The controller's end of the learner: all ranks as one object."""

from __future__ import annotations

import asyncio
import itertools
import operator
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from tasks.failures import InfrastructureError
from tasks.machine.resources import free_resources
from tasks.training.config import TrainingConfig
from tasks.training.learner.packing import Floats, MicroBatch, pack
from tasks.training.learner.packing import Sequence as TokenSequence
from tasks.training.timeouts import Limit, within

NEWS_SECONDS = 10.0
"""So long after an error of one rank another's death is waited for."""
WRITTEN_SECONDS = 0.2
"""From one question whether a checkpoint is written to the next."""

_SUMS = frozenset({"num_tokens", "num_sequences", "learn_seconds"})


class LearnerLostError(InfrastructureError):
    """A learner rank died or hangs, or the ranks could not start; see `tasks.training.learner.restartable`."""


@dataclass(frozen=True)
class StepReport:
    """What an optimizer step measured, over all ranks and micro-batches; see `objective.metrics` for definitions."""

    metrics: dict[str, float]

    @classmethod
    def of(cls, updates: list[StepReport]) -> StepReport:
        """Of several updates on one batch.

        What counts and seconds are summed, maxima are those of all; losses and gradient norms are means over updates,
        and what is a mean over tokens stays one.
        """
        from tasks.training.objective.metrics import MAXIMA, TOTALS

        joined = {name: [update.metrics[name] for update in updates] for name in updates[0].metrics}
        tokens = joined["num_tokens"] if any(joined["num_tokens"]) else [1.0] * len(updates)

        def join(name: str, values: list[float]) -> float:
            if name in MAXIMA:
                return max(values)
            if name in _SUMS:
                return sum(values)
            if name in TOTALS or name == "grad_norm":
                return sum(values) / len(values)
            return sum(map(operator.mul, values, tokens)) / sum(tokens)

        return cls({name: join(name, values) for name, values in joined.items()})


class Learner(Protocol):
    """What the controller asks of the learner. Every method raises `LearnerLostError` when a rank is lost."""

    async def start(self) -> None:
        """Return when every rank holds the model."""

    async def step(self, sequences: list[TokenSequence], denominator: float, learning_rate: float) -> StepReport:
        """One optimizer step on a batch of sequences; `denominator` is the objective's, of the whole batch."""

    async def logprobs(self, sequences: list[TokenSequence]) -> list[Floats]:
        """Log-probabilities of each response's tokens under the current policy, nats; 0 where it is not trained."""

    async def reference_logprobs(self, sequences: list[TokenSequence]) -> list[Floats]:
        """The same under the reference policy, which there is where `objective.kl.beta > 0`."""

    async def write_weights(self, path: Path) -> None:
        """What actors load, at `path`, complete when it appears: one safetensors file, or with `lora` a folder."""

    async def export(self, folder: Path) -> None:
        """The current policy as a Hugging Face model folder."""

    async def save(self, folder: Path) -> None:
        """Begin to write everything that the learner needs to go on from here; the next step need not wait for it."""

    async def written(self) -> bool:
        """Whether all that `save` began is on the disk, once it is or never will be."""

    async def load(self, folder: Path) -> None:
        """Go on from what `save` wrote."""


class RestartableLearner(Learner, Protocol):
    """A learner whose ranks can be replaced."""

    async def restart(self) -> None:
        """End every rank, whatever it does, and return when new ones hold the initial checkpoint."""


class RayLearner:
    """Learner ranks as Ray actors, called together because their methods are collective."""

    def __init__(self, create: Callable[[int], Any], config: TrainingConfig) -> None:
        """`create(rank)` returns the handle of a new Ray actor of `LearnerRank`."""
        self._create = create
        self._ranks = [create(rank) for rank in range(config.learner.ranks)]
        self._config = config
        self._numbers = itertools.count()
        self._share_prompts = False

    async def start(self) -> None:
        """See `Learner`."""

        async def waits_for() -> str:
            each = f"{self._config.learner.cpus:g} CPUs and, where there are any, a GPU each"
            return (
                f"{len(self._ranks)} learner ranks wait for a place in the cluster ({each}), load the model and find "
                f"each other; {await free_resources()}"
            )

        self._share_prompts = await within(
            self._set_up(),
            waits_for,
            Limit.of(self._config, "learner.init_timeout_seconds"),
            error=LearnerLostError,
        )

    async def _set_up(self) -> bool:
        address = await self._await(self._ranks[0].address.remote())
        world = len(self._ranks)
        return all(await self._once("setup", lambda rank: (rank, world, address)))

    async def restart(self) -> None:
        """See `Learner`."""
        import ray

        for handle in self._ranks:
            await asyncio.to_thread(ray.kill, handle)
        self._ranks = [self._create(rank) for rank in range(len(self._ranks))]
        await self.start()

    async def step(self, sequences: list[TokenSequence], denominator: float, learning_rate: float) -> StepReport:
        """See `Learner`."""
        from tasks.training.objective import summarize

        micro_batches = self._packed(sequences)
        reports = await self._once("step", lambda rank: (micro_batches[rank], denominator, learning_rate))
        metrics = summarize(itertools.chain.from_iterable(report.parts for report in reports))
        entropy = sum(report.entropy_sum for report in reports) / max(metrics["num_tokens"], 1)
        seconds = max(report.seconds for report in reports)
        return StepReport({**metrics, "entropy": entropy, "grad_norm": reports[0].grad_norm, "learn_seconds": seconds})

    async def logprobs(self, sequences: list[TokenSequence]) -> list[Floats]:
        """See `Learner`."""
        return await self._by_sequence(sequences, "logprobs")

    async def reference_logprobs(self, sequences: list[TokenSequence]) -> list[Floats]:
        """See `Learner`."""
        return await self._by_sequence(sequences, "reference_logprobs")

    async def _by_sequence(self, sequences: list[TokenSequence], method: str) -> list[Floats]:
        micro_batches = self._packed(sequences)
        found = await self._once(method, lambda rank: (micro_batches[rank],))
        result: list[Floats] = [np.zeros(0, np.float32) for _ in sequences]
        for batch, values in zip(itertools.chain(*micro_batches), itertools.chain(*found), strict=True):
            for index in set(batch.sequence_ids[0].tolist()) - {-1}:
                result[index] = values[batch.sequence_ids[0] == index]
        return result

    def _packed(self, sequences: list[TokenSequence]) -> list[list[MicroBatch]]:
        return pack(
            sequences,
            self._config.learner.micro_batch_tokens,
            ranks=len(self._ranks),
            share_prompts=self._share_prompts,
        )

    async def write_weights(self, path: Path) -> None:
        """See `Learner`."""
        await self._once("write_weights", lambda _: (str(path),))

    async def export(self, folder: Path) -> None:
        """See `Learner`."""
        await self._once("export", lambda _: (str(folder),))

    async def save(self, folder: Path) -> None:
        """See `Learner`."""
        await self._once("save", lambda _: (str(folder),))

    async def written(self) -> bool:
        """See `Learner`. A rank that takes a step answers after it."""
        asked = self._ranks
        while self._ranks is asked:  # new ones know nothing of it
            if all(await self._all(lambda handle, _: handle.is_written.remote())):
                return True
            await asyncio.sleep(WRITTEN_SECONDS)
        return False

    async def load(self, folder: Path) -> None:
        """See `Learner`."""
        await self._once("load", lambda _: (str(folder),))

    async def _once(self, method: str, arguments: Callable[[int], tuple[Any, ...]]) -> list[Any]:
        """What the ranks answer, by rank, to `LearnerRank.once`; `arguments(rank)` are the method's."""
        number = next(self._numbers)
        return await self._all(lambda handle, rank: handle.once.remote(number, method, *arguments(rank)))

    async def _all(self, call: Callable[[Any, int], Any]) -> list[Any]:
        calls = [asyncio.ensure_future(self._await(call(handle, rank))) for rank, handle in enumerate(self._ranks)]
        try:
            return list(await asyncio.gather(*calls))
        except LearnerLostError:
            raise
        except Exception as error:
            # A rank that dies leaves the others with an error of NCCL or gloo, which may come before the news.
            await asyncio.wait(calls, timeout=NEWS_SECONDS)
            for each in calls:
                if each.done() and isinstance(lost := each.exception(), LearnerLostError):
                    raise lost from error
            if is_of_communication(error):
                raise LearnerLostError(f"a learner rank lost the others: {_first_line(error)}") from error
            if is_of_device(error):
                raise LearnerLostError(f"a learner rank lost its GPU: {_first_line(error)}") from error
            raise
        finally:
            for each in calls:
                each.cancel()

    async def _await(self, reference: Any) -> Any:
        import ray

        try:
            return await reference
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, LearnerLostError):
                raise error.cause from error
            raise  # the rank's own exception, with its traceback
        except ray.exceptions.RayError as error:
            raise LearnerLostError(f"a learner rank was lost: {_first_line(error)}") from error


def is_of_communication(error: BaseException) -> bool:
    """Whether a rank's exception says that it did not reach another rank, and nothing of its own."""
    cause = getattr(error, "cause", None) or error
    kinds = {kind.__name__ for kind in type(cause).__mro__}
    return "DistError" in kinds or any(name in str(cause) for name in ("gloo/transport", "NCCL", "c10d"))


def is_of_device(error: BaseException) -> bool:
    """Whether a rank's exception says that its GPU failed (an uncorrectable ECC error, a launch that failed).

    A kernel's own assertion, and memory that does not suffice, would come again with every new rank.
    """
    cause = str(getattr(error, "cause", None) or error)
    return "CUDA error" in cause and not any(name in cause for name in ("device-side assert", "out of memory"))


def _first_line(error: BaseException) -> str:
    return " ".join(str(getattr(error, "cause", None) or error).split())[:300]
