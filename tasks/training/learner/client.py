"""Implements the controller's client of the learner: one object whose methods call all ranks together."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from tasks.failures import InfrastructureError, MistakeError, one_line
from tasks.machine.memory_limit import MemoryLimitError
from tasks.machine.ray_memory import RayMemory
from tasks.objective.own_functions import OwnFunctionError
from tasks.recipe.run import TrainingConfig
from tasks.sizing.roofline import Architecture, compute_flops_utilization, compute_tokens_before, find_gpu
from tasks.storage.stored_files import DamagedError, StoreError
from tasks.storage.tensor_digest import Contents
from tasks.training.learner.checkpoint_shards import ShardUploadError
from tasks.training.learner.packing import Floats, MicroBatch, RowOptions, collect_by_number, pack
from tasks.training.learner.packing import Sequence as TokenSequence
from tasks.training.learner.rank_errors import is_of_communication, is_of_device, is_of_main_memory, is_of_memory
from tasks.training.learner.rank_files import RankFiles, Source
from tasks.training.learner.ranks_start import RanksStart
from tasks.training.learner.row_cost import TOKENS
from tasks.training.runtime.timeouts import Limit, wait_within

if TYPE_CHECKING:
    from ray import ObjectRef
    from ray.actor import ActorHandle

LESS_MEMORY = "lower learner.micro_batch_tokens, or raise memory_gib of the pod"
"""Advice for a rank that has too little main memory."""
NEWS_SECONDS = 10.0
"""Seconds after the error of one rank within which another rank's death counts as its cause."""
WRITTEN_SECONDS = 0.2
"""Seconds between two polls of the ranks for whether a checkpoint is written."""

_SUMS = frozenset({"num_tokens", "num_sequences", "learn_seconds"})


class LearnerLostError(InfrastructureError):
    """A learner rank died or hangs, or the ranks could not start; `RestartingLearner` then starts new ranks."""


class GpuMemoryError(MistakeError):
    """The GPU memory of a learner rank is too small for the recipe; every new rank would fail in the same way."""


@dataclass(frozen=True)
class RankReport:
    """One rank's report of an optimizer step: metric sums of its micro-batches, and values that are equal on all ranks.

    Attributes:
        parts: `LossOutput.metrics` of each micro-batch.
        entropy_sum: entropy in nats, summed over the rank's trained tokens.
        grad_norm: global gradient norm before clipping.
        seconds: wall time of the step on this rank.
        gpu: name of the rank's GPU, as torch reports it, or empty if it computes on a CPU or in float32.
        logprobs: log-probabilities of the `returned` tokens, nats, one array for each micro-batch that has any.
    """

    parts: list[dict[str, float]]
    entropy_sum: float
    grad_norm: float
    seconds: float
    gpu: str = ""
    logprobs: Sequence[Floats] = ()


@dataclass(frozen=True)
class StepReport:
    """Result of an optimizer step over all ranks and micro-batches.

    Attributes:
        metrics: its metrics (`objective.metrics`).
        logprobs: log-probabilities of responses under the policy before the step, nats, 0 outside the mask, by
            `Sequence.kept_as`. Only of sequences that have a number and no `old_logprobs`.
    """

    metrics: dict[str, float]
    logprobs: dict[int, Floats] = field(default_factory=dict)

    @classmethod
    def merge(cls, updates: list[StepReport]) -> StepReport:
        """Combine the metrics of several updates on one batch.

        Counts and seconds are summed, and maxima are taken over all updates. Losses and gradient norms are averaged
        over updates, and the MFU over time. Every other metric is a mean over tokens, and is weighted by the tokens of
        each update.
        """
        from tasks.objective.metrics import MAXIMA, TOTALS

        joined = {name: [update.metrics[name] for update in updates] for name in updates[0].metrics}
        tokens = joined["num_tokens"] if any(joined["num_tokens"]) else [1.0] * len(updates)

        def join(name: str, values: list[float]) -> float:
            if name in MAXIMA:
                return max(values)
            if name in _SUMS:
                return sum(values)
            if name in TOTALS or name == "grad_norm":
                return sum(values) / len(values)
            weights = joined["learn_seconds"] if name == "learner_mfu" else tokens
            return sum(map(operator.mul, values, weights)) / sum(weights)

        return cls({name: join(name, values) for name, values in joined.items()})


class WrittenWeights(NamedTuple):
    """Describes weights that the learner wrote for actors."""

    node: str
    """Id of the node that has the file."""
    contents: Contents
    """Contents of the weights, computed in the learner's memory."""


class Learner(Protocol):
    """The interface of all ranks together. Every method raises `LearnerLostError` if a rank is lost."""

    async def start(self) -> None:
        """Return when every rank has loaded the model."""

    async def step(self, sequences: list[TokenSequence], denominator: float, learning_rate: float) -> StepReport:
        """Take one optimizer step on a batch of sequences; `denominator` is the objective's, for the whole batch."""

    async def logprobs(self, sequences: list[TokenSequence]) -> list[Floats]:
        """Return log-probabilities of each response's tokens under the current policy, nats.

        A token that is not trained has 0.
        """

    async def reference_logprobs(self, sequences: list[TokenSequence]) -> list[Floats]:
        """Return log-probabilities under the reference policy, which exists if `objective.kl.beta > 0`."""

    async def write_weights(self, path: Path) -> WrittenWeights:
        """Write the weights that actors load at `path`, which appears when they are complete.

        They are one safetensors file or, with `lora`, an adapter's folder.
        """

    async def export(self, folder: Path) -> None:
        """Write the current policy as a Hugging Face model folder."""

    async def save(self, folder: Path) -> None:
        """Start writing the checkpoint from which `load` resumes; the next step need not wait for it."""

    async def wait_until_written(self) -> bool:
        """Wait until everything that `save` started is on the disk, and return True, or False if it never will be."""

    async def load(self, folder: Path) -> None:
        """Resume from what `save` wrote."""

    async def restart(self) -> None:
        """Kill every rank, and return when new ranks have loaded the initial checkpoint."""

    async def offload_states(self) -> None:
        """Move the ranks' states from GPUs to main memory; `reload_states` must precede any other call."""

    async def reload_states(self) -> None:
        """Move back to the GPUs what `offload_states` moved; do nothing if it moved nothing."""

    async def wait_until_uploaded(self) -> bool:
        """Wait until every rank has uploaded what it wrote, and return True, or False if a rank never will.

        Without an upload it returns immediately.

        Raises:
            ShardUploadError: the upload fails.
        """


class RayLearner:
    """A `Learner` of Ray actors, one `LearnerRank` each, whose collective methods are called together."""

    def __init__(
        self,
        create: Callable[[int], ActorHandle],
        config: TrainingConfig,
        first: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
        files: RankFiles | None = None,
        shape: Architecture | None = None,
        memory: RayMemory | None = None,
    ) -> None:
        """Create the ranks' actors.

        Args:
            create: returns the handle of a new `LearnerRank`; its argument is the number of ranks created before it.
            config: the run's options.
            first: returns a context manager. Within it the ranks wait for resources, and no engine gets any.
            files: storage of the ranks' checkpoint files; it also copies the model to the ranks' nodes before they load
                it. Optional. If None, the files are in the run folder, and every node has the model.
            shape: shape of the model, for the MFU. Optional. If None, it is not known.
            memory: memory of the cluster's nodes, to explain lost ranks. Optional. If None, only this node's.
        """
        self._create = create
        self._shape = shape
        self._memory = memory or RayMemory()
        self._first = first
        self._files = files or RankFiles()
        self._node = ""  # the node of rank 0
        self._ranks = [create(rank) for rank in range(config.learner.ranks)]
        self._config = config
        self._calls = itertools.count()  # numbers of calls that must not have an effect twice
        self._rows = RowOptions(share_prompts=False, alone=False, cost=TOKENS)

    async def start(self) -> None:
        limit = Limit.from_config(self._config, "learner.init_timeout_seconds")
        wait = RanksStart(self._config.learner, limit.seconds)
        self._rows = await wait_within(self._set_up(wait), wait.describe, limit, error=LearnerLostError)

    async def _set_up(self, wait: RanksStart) -> RowOptions:
        with self._first():
            locations = await self._all([rank.location.remote() for rank in self._ranks])
        wait.placed = True
        # Ranks of one node have consecutive numbers, so that NCCL's rings go through one node after the other.
        order = sorted(range(len(locations)), key=lambda rank: _make_sort_key(*locations[rank]))
        self._ranks = [self._ranks[rank] for rank in order]
        self._node = locations[order[0]][0]
        with _losing_a_rank("the node of a learner rank cannot be prepared"):
            await self._files.prepare([locations[rank][0] for rank in order])
        address, ranks = await self._await(self._ranks[0].address.remote()), len(self._ranks)
        calls = [rank.setup.remote(next(self._calls), i, ranks, address) for i, rank in enumerate(self._ranks)]
        rows: list[RowOptions] = await self._all(calls)
        return rows[0]  # all have the same model

    async def restart(self) -> None:
        import ray

        for handle in self._ranks:
            await asyncio.to_thread(ray.kill, handle)
        self._ranks = [self._create(rank) for rank in range(len(self._ranks))]
        await self.start()

    async def step(self, sequences: list[TokenSequence], denominator: float, learning_rate: float) -> StepReport:
        from tasks.objective.metrics import summarize

        micro_batches = await self._pack(sequences)
        shares = zip(self._ranks, micro_batches, strict=True)
        calls = [rank.step.remote(next(self._calls), rows, denominator, learning_rate) for rank, rows in shares]
        reports = await self._all(calls)
        metrics = summarize(itertools.chain.from_iterable(report.parts for report in reports))
        entropy = sum(report.entropy_sum for report in reports) / max(metrics["num_tokens"], 1)
        seconds = max(report.seconds for report in reports)
        mfu = self._compute_mfu(sequences, metrics["num_tokens"] / seconds, {report.gpu for report in reports})
        return StepReport(
            {**metrics, "entropy": entropy, "grad_norm": reports[0].grad_norm, "learn_seconds": seconds, **mfu},
            collect_by_number(sequences, micro_batches, [report.logprobs for report in reports]),
        )

    def _compute_mfu(
        self, sequences: list[TokenSequence], tokens_per_second: float, gpus: set[str]
    ) -> dict[str, float]:
        """Return the metric `learner_mfu`, or nothing if the model's shape or the peak of the GPUs is not known."""
        gpu = find_gpu(*gpus) if len(gpus) == 1 and gpus != {""} else None
        if gpu is None or self._shape is None or not tokens_per_second:
            return {}
        context = compute_tokens_before((len(s.prompt_ids), len(s.response_ids)) for s in sequences)
        gpus_used, frozen = len(self._ranks), self._config.lora is not None
        mfu = compute_flops_utilization(
            tokens_per_second, self._shape, gpu, gpus=gpus_used, context=context, training=True, frozen=frozen
        )
        return {"learner_mfu": mfu}

    async def logprobs(self, sequences: list[TokenSequence]) -> list[Floats]:
        micro_batches = await self._pack(sequences)
        shares = zip(self._ranks, micro_batches, strict=True)
        values = await self._all([rank.logprobs.remote(next(self._calls), rows) for rank, rows in shares])
        return _by_sequence(len(sequences), micro_batches, values)

    async def reference_logprobs(self, sequences: list[TokenSequence]) -> list[Floats]:
        micro_batches = await self._pack(sequences)
        shares = zip(self._ranks, micro_batches, strict=True)
        values = await self._all([rank.reference_logprobs.remote(next(self._calls), rows) for rank, rows in shares])
        return _by_sequence(len(sequences), micro_batches, values)

    async def _pack(self, sequences: list[TokenSequence]) -> list[list[MicroBatch]]:
        # Packing 100 million tokens takes 20 seconds, during which the controller must answer engines and verifiers.
        return await asyncio.to_thread(
            pack, sequences, self._config.learner.micro_batch_tokens, ranks=len(self._ranks), **self._rows
        )

    async def offload_states(self) -> None:
        await self._all([rank.offload_states.remote(next(self._calls)) for rank in self._ranks])

    async def reload_states(self) -> None:
        await self._all([rank.reload_states.remote(next(self._calls)) for rank in self._ranks])

    async def write_weights(self, path: Path) -> WrittenWeights:
        calls = [rank.write_weights.remote(next(self._calls), str(path)) for rank in self._ranks]
        return WrittenWeights(self._node, (await self._all(calls))[0])

    async def export(self, folder: Path) -> None:
        target = str(folder.absolute())
        await self._all([rank.export.remote(next(self._calls), target) for rank in self._ranks])
        with _losing_a_rank("the policy does not arrive from the node of learner rank 0"):
            await self._files.fetch_export(folder)

    async def save(self, folder: Path) -> None:
        target, upload = self._files.begin(folder)
        await self._all([rank.save.remote(next(self._calls), target, upload) for rank in self._ranks])

    async def wait_until_written(self) -> bool:
        ranks = self._ranks
        while self._ranks is ranks:  # new ranks have started no checkpoint
            # a rank that is in a step answers after it
            if all(await self._all([rank.is_written.remote() for rank in ranks])):
                return True
            await asyncio.sleep(WRITTEN_SECONDS)
        return False

    async def wait_until_uploaded(self) -> bool:
        ranks = self._ranks
        while self._ranks is ranks and self._files.is_uploading:
            files = await self._all([rank.uploaded_files.remote() for rank in ranks])
            if None not in files and self._ranks is ranks:
                await asyncio.to_thread(self._files.complete, files)
            else:
                await asyncio.sleep(WRITTEN_SECONDS)
        return self._ranks is ranks

    async def load(self, folder: Path) -> None:
        with _losing_a_rank("the node of a learner rank did not receive its checkpoint"):
            source = await self._files.source(folder)
        if source.fetched:
            await self._fetch(folder, source)
        target = str(source.folder)
        await self._all([rank.load.remote(next(self._calls), target) for rank in self._ranks])
        await self._files.remove_copies(source)

    async def _fetch(self, folder: Path, source: Source) -> None:
        """Have the ranks fetch missing files of the checkpoint `folder`; remove the checkpoint if it is damaged."""
        upload, target = self._files.upload(source), str(source.folder)
        try:
            shares = zip(self._ranks, source.fetched, strict=True)
            await self._all([rank.fetch.remote(next(self._calls), upload, target, files) for rank, files in shares])
        except StoreError as error:
            raise LearnerLostError(f"a learner rank did not receive its part of a checkpoint: {error}") from error
        except DamagedError as error:
            await asyncio.to_thread(self._files.reject, folder, source)
            raise StoreError(f"{error}; the next attempt continues from the checkpoint before it") from error

    async def _all(self, references: Sequence[ObjectRef]) -> list[Any]:
        """Await one call of every rank and return the results by rank; raise `LearnerLostError` if a rank is lost."""
        calls = [asyncio.ensure_future(self._await(reference)) for reference in references]
        try:
            return list(await asyncio.gather(*calls))
        except LearnerLostError:
            raise
        except Exception as error:
            # When a rank dies, the others fail with an error of NCCL or gloo, which may arrive before Ray reports the
            # death.
            await asyncio.wait(calls, timeout=NEWS_SECONDS)
            for task in calls:
                if task.done() and isinstance(lost := task.exception(), LearnerLostError):
                    raise lost from error
            cause = getattr(error, "cause", None) or error  # Ray's error has the rank's error in `cause`
            text = one_line(cause)
            if is_of_communication(cause):
                raise LearnerLostError(f"a learner rank lost the others: {text}") from error
            if is_of_device(cause):
                raise LearnerLostError(f"a learner rank lost its GPU: {text}") from error
            if is_of_main_memory(cause):
                raise MemoryLimitError(f"a learner rank cannot allocate memory: {text}; {LESS_MEMORY}") from error
            if is_of_memory(cause):
                options = self._describe_memory_options()
                raise GpuMemoryError(f"a learner rank's GPU is full: {text}; {options}") from error
            raise
        finally:
            for task in calls:
                task.cancel()

    def _describe_memory_options(self) -> str:
        """Return the options that reduce the GPU memory of a rank, except the ones already set in the recipe."""
        learner, engine = self._config.learner, self._config.actors.engine
        ways = [
            *([] if learner.gradient_checkpointing else ["learner.gradient_checkpointing = true"]),
            *([] if learner.offload_activations else ["learner.offload_activations = true"]),
            f"fewer learner.micro_batch_tokens than {learner.micro_batch_tokens:,}",
            *([] if learner.zero_stage == 3 else ["learner.zero_stage = 3 with more learner.ranks"]),
            *([] if self._config.lora else ["lora"]),
        ]
        if not (self._config.lora or learner.offloads_optimizer):
            ways.append("learner.deepspeed = {zero_optimization: {offload_optimizer: {device: cpu}}}")
        if self._config.placement == "shared":
            ways.append(f"a smaller actors.engine.gpu_memory_utilization than {engine.gpu_memory_utilization}")
            ways.append("placement = time_shared")
        return f"it takes less with {', or '.join(ways)}"

    async def _await(self, reference: ObjectRef) -> Any:
        import ray

        try:
            return await reference
        except ray.exceptions.RayTaskError as error:
            if isinstance(
                error.cause, LearnerLostError | OwnFunctionError | ShardUploadError | StoreError | DamagedError
            ):
                raise error.cause from error
            raise  # the rank's exception, with its traceback
        except ray.exceptions.RayError as error:
            raise LearnerLostError(f"a learner rank was lost: {await self._memory.find_reason(error)}") from error


def _by_sequence(count: int, packed: list[list[MicroBatch]], by_rank: list[list[Floats]]) -> list[Floats]:
    """Return for each of `count` packed sequences what ranks computed, a number for each predicted token."""
    result: list[Floats] = [np.zeros(0, np.float32) for _ in range(count)]
    for batch, values in zip(itertools.chain(*packed), itertools.chain(*by_rank), strict=True):
        for index in set(batch.sequence_ids[0].tolist()) - {-1}:
            result[index] = values[batch.sequence_ids[0] == index]
    return result


@contextlib.contextmanager
def _losing_a_rank(doing: str) -> Iterator[None]:
    """Turn infrastructure errors in the block into `LearnerLostError`; `doing` says what failed."""
    try:
        yield
    except InfrastructureError as error:
        raise LearnerLostError(f"{doing}: {error}") from error


def _make_sort_key(node: str, gpu: str) -> tuple[str, int, str]:
    """Return a sort key that orders GPUs by node and then by number, 10 after 9."""
    return node, len(gpu), gpu
