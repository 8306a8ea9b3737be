"""Runs the training loop: decides which groups are trained on, when the learner steps, and what a checkpoint contains.

    prompts ──► in flight ──► scored ──► ready ──► batch ──► learner step ──► new weights ──► each actor separately
       ▲                        │          │
       │                        │          └ stale: dropped, prompt put back
       │                        └ zero variance or no valid score: dropped
       └ replaced, as `resampling` says: by the next prompt at once, or by a prompt of the next round

Owners of the state:

    GroupLifecycle   groups up to `ready`, actors, replay buffer, counters of the step
    PromptStream     position in the mixture, prompts that are retired, excluded or retried
    Validation       scores of the validated versions
    learner          weights and optimizer; `version` here counts its batches
    Ledger, Journal  files of outcomes and metrics; a checkpoint records their lengths

The controller handles token ids and scores, never a tensor of the model. A response that cannot be scored is removed
from its group, so groups of a batch may differ in size.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Iterable, Mapping
from pathlib import Path
from typing import TypeVar

from tasks.failures import InfrastructureError, MistakeError
from tasks.recipe.learner import learning_rate
from tasks.recipe.prompts import ActiveResampling, DynamicResampling, NoResampling
from tasks.recipe.run import TrainingConfig
from tasks.storage.durable import write_whole_in_threads
from tasks.training.control.batch import train_batch
from tasks.training.control.collaborators import Collaborators
from tasks.training.control.group_lifecycle import GroupLifecycle
from tasks.training.control.prompt_stream import PromptStream
from tasks.training.control.validation import Validation, find_superseded_policies, find_validated_policy
from tasks.training.groups.group import JudgedGroup
from tasks.training.learner.checkpoint_shards import ShardUploadError
from tasks.training.learner.restartable import NotFiniteError
from tasks.training.records.checkpoint import Checkpoints, is_due
from tasks.training.records.identity import run_setup
from tasks.training.records.response_files import print_responses
from tasks.training.records.run_state import RunState
from tasks.training.records.saved_groups import load_groups, make_groups_table
from tasks.training.runtime.timeouts import Limit, cancel, wait_with_status, wait_within
from tasks.training.telemetry.alarms import Watch
from tasks.training.telemetry.step_metrics import compute_batch_metrics

logger = logging.getLogger(__name__)

T = TypeVar("T")


class NoSignalError(MistakeError):
    """The prompts give the policy nothing to learn from, because in almost every group all scores are equal."""


class NoPromptsLeftError(MistakeError):
    """No prompt is left to sample. All are retired as solved, or excluded because engines cannot answer them."""


class LostGroupsError(InfrastructureError):
    """Too many groups of one batch failed or became stale."""


class Controller:
    """One training run.

    Attributes:
        version: number of steps taken, which is the version of the learner's policy.
        lifecycle: all groups of the run, and the actors.
        validation: validates policies on prompts that are never trained on.
    """

    def __init__(self, config: TrainingConfig, prompts: PromptStream, collaborators: Collaborators) -> None:
        self._config = config
        self._prompts = prompts
        self._judge, self._learner, self._weights = collaborators.judge, collaborators.learner, collaborators.weights
        self._advantages, self._machine_use = collaborators.advantages, collaborators.machine_use
        self._ledger, self._journal = collaborators.ledger, collaborators.journal
        self._checkpoints, self._policies = collaborators.checkpoints, collaborators.policies
        self._on_step, self._on_phase = collaborators.on_step, collaborators.on_phase
        self._loop = asyncio.get_running_loop()
        self._started = self._loop.time()
        self._elapsed_before = self._recorded_at = 0.0
        self.lifecycle = GroupLifecycle(config, prompts, collaborators, clock=self._compute_elapsed)
        self.validation = Validation(config, collaborators, self.lifecycle.fleet)
        self._stall_limit = Limit.from_config(config, "stall_seconds")
        self._watch = Watch(config.alarms)
        self._setup = run_setup(config)  # reads all source files, which would block a running event loop
        self._saving: asyncio.Task[None] | None = None
        self._begun: int | None = None  # version of the newest checkpoint
        self._lacks_checkpoint, self.version = False, 0
        self._steps_taken = 0  # in this attempt

    async def resume(self, checkpoint: Path, earlier: Iterable[Mapping[str, float]]) -> None:
        """Restore learner, prompts and groups from `checkpoint`. Called before `run`.

        Args:
            checkpoint: folder of the checkpoint.
            earlier: the metrics of the steps before the checkpoint. Alarms compare later steps with them.

        Raises:
            ValueError: the checkpoint is incomplete or belongs to another mixture.
        """
        state = RunState.read(checkpoint)
        self._prompts.restore(state.prompts)
        groups = load_groups(
            Checkpoints.find_groups_file(checkpoint), self._prompts.by_id, self._config.objective.shaping
        )
        self.lifecycle.restore(*groups, state.next_group, state.replays)
        self.lifecycle.counters.restore(state.unrecorded)
        rows = list(earlier)
        self.validation.restore(state.validated, state.version, rows[-1] if rows else {})
        self._watch.recall(rows)
        self._elapsed_before = self._recorded_at = state.elapsed
        self.version = self._begun = state.version
        await self._learner.load(Checkpoints.find_learner_folder(checkpoint))

    async def run(self) -> None:
        """Train up to the last step.

        Raises:
            NoSignalError: the prompts give no signal.
            NoPromptsLeftError: all prompts are retired or excluded.
            LostGroupsError: too many groups of a batch failed or became stale.
            StalledError: no group was decided for `stall_seconds`, or a file system does not respond.
            DivergedError: loss or gradient are repeatedly not finite.
            ActorLostError: more actors were lost than `actors.max_restarts` allows.
            LearnerLostError: a learner rank was lost.
            ModelCheckError, WeightsNotTakenError: an engine does not have the learner's policy after its first update.
        """
        await self._publish()
        if self.version:  # after a resume, a version may be due whose validation was skipped
            await self._export()
        sampling = asyncio.create_task(self.lifecycle.run())
        learning = asyncio.create_task(self._learn())
        try:
            await asyncio.wait([learning, sampling], return_when=asyncio.FIRST_COMPLETED)
            for task in (sampling, learning):  # sampling never returns: if it ended, it has failed
                if task.done():
                    task.result()
        finally:
            await cancel([learning, sampling])
            # A checkpoint that is being written is always completed.
            await asyncio.gather(self._wait_until_saved(), return_exceptions=True)
            await self.validation.close()
        self.lifecycle.close()
        await self._ledger.rollouts.flush()

    async def _learn(self) -> None:
        if self.version >= self._config.steps:
            await self._make_up_validation()
        waited = 0.0  # seconds without a batch, since the last step
        while (step := self.version) < self._config.steps:
            started = self._loop.time()
            batch = await self._wait_for_batch()
            if batch is None:
                break
            waited += self._loop.time() - started
            # The next groups are sampled while the learner works on these, unless the run is synchronous.
            self.lifecycle.keep_full(self._config.groups_per_step * self._config.async_steps)
            try:
                learned = await self._train(step, batch)
            except NotFiniteError as error:
                for group in batch:
                    self.lifecycle.fail(group, str(error))
                continue
            self.version = step + 1
            self._steps_taken += 1
            if self.version % self._config.actors.sync_every == 0 or self.version == self._config.steps:
                await self._publish()
            if self.version >= self._config.steps - 1:  # a row has one validation, the last row the last policy's
                await self._wait_for_validation(self.validation.finish())
            figures = await self._wait_within(
                "the controller waits for the metrics of the reward workers", self._judge.figures()
            )
            judges = {f"verifiers/{name}": value for name, value in figures.items()}
            await self._record(
                step, batch, {**learned, **judges, **self.validation.take_metrics(), "wait_seconds": waited}
            )
            waited = 0.0
            await self._export()
            await self._save_if_due()
        await self._wait_until_saved()
        while self._begun != self.version or self._lacks_checkpoint:
            await self._save()
            await self._wait_until_saved()

    async def _wait_for_batch(self) -> list[JudgedGroup] | None:
        """Return `groups_per_step` groups, none of them stale, in the order in which their prompts were sampled.

        Returns None if the run ends here, because its prompts are solved.
        """
        lifecycle, window, wanted = self.lifecycle, self.lifecycle.window, self._config.groups_per_step
        before = dict(self._ledger.fates)
        self._prompts.history.begin(self.version)
        lifecycle.drop_stale(self.version)
        while True:
            lifecycle.decided.clear()
            over = self._prompts.is_exhausted and not window.in_flight
            complete = over or not self._config.samples_in_rounds or window.undecided == 0
            if complete and len(window.ready) >= wanted:
                return lifecycle.take_batch(wanted, self.version)
            if over:
                self._end_without_prompts()
                return None
            self._ask({fate: count - before.get(fate, 0) for fate, count in self._ledger.fates.items()})
            await self._learner.leave_gpus()
            await wait_within(lifecycle.decided.wait(), self._describe_missing, self._stall_limit)
            if not self._steps_taken:
                self._on_phase(f"{len(window.ready)} of {wanted} groups of step {self.version} are sampled")

    def _ask(self, dropped: dict[str, int]) -> None:
        """Request the groups that the batch lacks.

        Raises:
            NoSignalError, LostGroupsError: more groups were dropped for this batch than `resampling` allows.
        """
        lifecycle, resampling, wanted = self.lifecycle, self._config.resampling, self._config.groups_per_step
        match resampling:
            case DynamicResampling():
                if lifecycle.window.undecided > 0:
                    return
                rounds = lifecycle.counters.rounds or 0
                if rounds == resampling.max_rounds:
                    lost = dropped.get("failed", 0) + dropped.get("stale", 0)
                    if lost > dropped.get("zero_variance", 0):
                        raise self._make_lost_groups_error(dropped, f"in {rounds} rounds (resampling.max_rounds)")
                    raise self._make_no_signal_error(dropped, f"in {rounds} rounds (resampling.max_rounds)")
                lifecycle.counters.rounds = rounds + 1
                lifecycle.ask(math.ceil(resampling.batch_multiplier * wanted))
            case ActiveResampling() | NoResampling():
                limit = f"(resampling.max_dropped_groups = {resampling.max_dropped_groups})"
                if dropped.get("zero_variance", 0) > resampling.max_dropped_groups:
                    raise self._make_no_signal_error(dropped, limit)
                if dropped.get("failed", 0) + dropped.get("stale", 0) > resampling.max_dropped_groups:
                    raise self._make_lost_groups_error(dropped, limit)
                lifecycle.keep_full(wanted * max(self._config.async_steps, 1))

    def _make_lost_groups_error(self, dropped: dict[str, int], limit: str) -> LostGroupsError:
        return LostGroupsError(f"step {self.version}: too many groups failed or became stale {limit}: {dropped}")

    def _end_without_prompts(self) -> None:
        retired, total = len(self._prompts.history.retired), len(self._prompts.by_id)
        what = (
            f"step {self.version} of {self._config.steps}: no prompt is left to sample; {retired} of {total} are "
            f"solved (prompts.retirement), {total - retired} were left out because no engine can answer them"
        )
        retirement = self._config.prompts.retirement
        if not retired or not retirement or retirement.when_all_solved == "fail":
            raise NoPromptsLeftError(
                f"{what}. Way out: other prompts, fewer steps, or prompts.retirement.when_all_solved = stop"
            )
        logger.warning("%s: the run ends here", what)

    def _make_no_signal_error(self, dropped: dict[str, int], limit: str) -> NoSignalError:
        return NoSignalError(
            f"step {self.version}: {dropped.get('zero_variance', 0)} groups were dropped while "
            f"{len(self.lifecycle.window.ready)} of {self._config.groups_per_step} were ready {limit}; fates so far: "
            f"{dict(self._ledger.fates)}. The prompts are too hard or too easy for this policy, or its responses "
            "are cut off (sampling.max_tokens)"
        )

    def _describe_missing(self) -> str:
        window = self.lifecycle.window
        actors = ", ".join(f"actor {slot.index} {slot.description}" for slot in self.lifecycle.fleet.slots)
        return (
            f"step {self.version}: the learner has {len(window.ready)} of {self._config.groups_per_step} groups and "
            f"waits for {len(window.in_flight)} in flight (groups {sorted(window.in_flight)[:8]}); {actors}"
        )

    async def _wait_within(self, what: str, awaitable: Awaitable[T]) -> T:
        return await wait_within(awaitable, f"step {self.version}: {what}", self._stall_limit)

    async def _train(self, step: int, batch: list[JudgedGroup]) -> dict[str, float]:
        config = self._config
        rate = learning_rate(step, config.optimizer, config.steps)
        trained = await train_batch(batch, step, rate, self._learner, config, self._advantages)
        for group, spread in zip(batch, trained.spreads, strict=True):
            self.lifecycle.trained(group, step, spread, trained.tokens.get(group.number))
        return trained.metrics

    async def _publish(self) -> None:
        await self._wait_within("no actor takes the policy that is to be validated", self.validation.begun())
        has_file = self.version > 0 or bool(self._config.lora)
        if has_file:
            written = await self._learner.write_weights(self._weights.path(self.version))
            await self._weights.publish(self.version, written.node, written.contents)
        else:
            await self._weights.publish(self.version, "")
        if self.validation.is_due(self.version):
            await self._wait_for_validation(self.validation.begin(self.version))

    async def _wait_for_validation(self, awaitable: Awaitable[None]) -> None:
        await wait_within(
            awaitable,
            f"step {self.version}: the controller waits for the validation of a policy",
            self._stall_limit,
            progress=lambda: self.validation.responses,
        )

    async def _make_up_validation(self) -> None:
        """Validate the last version, if the run has nothing left to train and that validation is missing.

        This happens if the checkpoint was written by a run of more steps. The checkpoint is not changed: a retry reads
        the results from the metrics.
        """
        await self._wait_for_validation(self.validation.finish())
        if figures := self.validation.take_metrics():
            await asyncio.to_thread(self._journal.add_validation, figures)

    async def _export(self) -> None:
        """Export the policy if it is due, or if it is or may become the best validated policy."""
        every = self._config.export_every
        if every and self.version % every == 0:
            await self._export_policy(self._policies / f"step_{self.version:08d}")
        if self.version in self.validation.needed:
            await self._export_policy(find_validated_policy(self._policies, self.version))

    async def _export_policy(self, folder: Path) -> None:
        async with write_whole_in_threads(folder) as partial:
            await self._learner.export(partial)

    async def _save_if_due(self) -> None:
        if self._saving and self._saving.done():
            self._saving.result()  # a full disk ends the run here
        if self._lacks_checkpoint or is_due(self._config, self.version, self._begun or 0):
            await self._save()
        elif self._ledger.rollouts.is_due:
            await self._ledger.rollouts.flush()

    async def _save(self) -> None:
        """Begin a checkpoint of the current state. It is written while training continues, one at a time."""
        await self._wait_until_saved()
        self._lacks_checkpoint, self._begun = False, self.version
        window, replayable = self.lifecycle.window, self.lifecycle.replay.groups
        state = RunState(
            **self._setup.model_dump(),
            version=self.version,
            elapsed=self._compute_elapsed(),
            next_group=self.lifecycle.next_group,
            prompts=self._prompts.state(),
            replays={str(number): group.replays for number, group in replayable.items()},
            unrecorded=self.lifecycle.counters.unrecorded(),
            validated=self.validation.state(),
            policies=[find_validated_policy(self._policies, best).name] if (best := self.validation.best) else [],
            ledger_bytes=self._ledger.sync(),
            rollout_files=0,
            journal_bytes=self._journal.sync(),
        )
        # a snapshot, as all of the state
        groups = make_groups_table([*window.ready, *window.in_flight.values(), *replayable.values()])
        superseded = find_superseded_policies(self._policies, self.validation.needed)
        state = state.model_copy(update={"rollout_files": await self._ledger.rollouts.flush()})
        partial = await self._checkpoints.begin(state, groups, self._learner)
        self._saving = asyncio.create_task(self._complete(partial, self.version, superseded))

    async def _complete(self, partial: Path, version: int, superseded: list[Path]) -> None:
        try:
            self._lacks_checkpoint = not await self._learner.wait_until_written()
        except ShardUploadError:  # not tried again at every step while the storage is unavailable
            return
        if self._lacks_checkpoint:
            return
        completing = self._checkpoints.complete(partial)
        checkpoint = await self._wait_within(f"the checkpoint of version {version} is put on the disk", completing)
        self._learner.saved(Checkpoints.find_learner_folder(checkpoint))
        settling = self._checkpoints.settle(checkpoint, superseded)
        await wait_with_status(settling, f"checkpoints older than {version} are being uploaded")

    async def _wait_until_saved(self) -> None:
        """Wait until the checkpoint in progress is complete or its ranks were lost. Raise the error that ended it."""
        if self._saving:
            await asyncio.shield(self._saving)  # it has its own time limits

    async def _record(self, step: int, batch: list[JudgedGroup], learned: dict[str, float]) -> None:
        seconds = (now := self._compute_elapsed()) - self._recorded_at
        self._recorded_at = now
        trained = learned.pop("num_tokens")
        metrics = {
            "step": step,
            "seconds": now,
            "step_seconds": seconds,
            "epoch": self._prompts.epoch,
            **self.lifecycle.take_counters().metrics(seconds),
            **self._prompts.history.take_figures(),
            **compute_batch_metrics(batch, version=step),
            "trained_tokens": trained,
            "trained_tokens_per_second": trained / seconds,
            **self._learner.take_figures(seconds),
            **self.lifecycle.fleet.take_figures(seconds),
            **learned,
        }
        metrics |= self._machine_use.metrics(self._config, batch, metrics, self.lifecycle.fleet.slots)
        metrics |= self._watch.observe(metrics)
        self._journal.record(metrics)
        print_responses(batch, step, self._config.log_completions)
        await asyncio.to_thread(self._on_step, metrics)

    def _compute_elapsed(self) -> float:
        """Return the seconds of work on this run, summed over all its attempts."""
        return self._elapsed_before + self._loop.time() - self._started
