"""Takes every group from its prompt to its outcome: actors generate, a verifier scores, a step is taken on it or not.

    PromptStream ──► in flight: Fleet, RewardClient ──► ready ──► batch ──► trained
         ▲                 │                              │         └─────► failed: the step was not finite
         │                 ├─► failed, zero_variance      ├─► stale
         │                 └─► stale (`abort`)            └─► unused: the run has ended
         └─ a stale group's prompt is sampled again; for a dropped group, the window is filled with another

A response is scored as soon as it is generated, independently of its actor and of the other responses of its group. A
reward that compares a whole group is computed as soon as all of the group is generated.
Every decision is recorded in the ledger, and counted for the metrics of the step.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from tasks.generation.interface import Completion, WeightUpdate
from tasks.objective.rounding import are_equal
from tasks.recipe.prompts import DynamicResampling
from tasks.recipe.run import TrainingConfig
from tasks.training.actors.fleet import Fleet
from tasks.training.actors.rewards import MIN_JUDGED, judge_response
from tasks.training.control.collaborators import Collaborators
from tasks.training.control.group_judgements import GroupJudgements
from tasks.training.control.prompt_stream import PromptStream
from tasks.training.groups.group import Group, JudgedGroup, Sample, describe_unjudged
from tasks.training.groups.replay_buffer import ReplayBuffer
from tasks.training.groups.window import Window
from tasks.training.records.kept_tokens import TrainedTokens
from tasks.training.records.ledger import Fate
from tasks.training.runtime.timeouts import cancel, run_until_first_ends
from tasks.training.telemetry.step_metrics import StepCounters
from tasks.verifiers.function_watch import FunctionWatch
from tasks.verifiers.grouped import has_group_reward

logger = logging.getLogger(__name__)


class GroupLifecycle:
    """All groups of a run. Each enters once and leaves once: trained on, or dropped with a reason.

    Attributes:
        window: the groups that have entered and not left, with the stages of their samples.
        fleet: the actors that generate.
        replay: groups that were trained on and may be trained on again.
        decided: an event that is set whenever a group becomes ready or is dropped.
        counters: counts since the last call of `take_counters`.
        next_group: number of the next group.
    """

    def __init__(
        self, config: TrainingConfig, prompts: PromptStream, collaborators: Collaborators, clock: Callable[[], float]
    ) -> None:
        """Create an empty life cycle. `run` starts actors and scoring.

        Args:
            config: the options of the run.
            prompts: the order in which prompts are sampled.
            collaborators: the actors, the reward workers, the weights and the ledger of the run.
            clock: returns the seconds since the run began.
        """
        self._config = config
        self._prompts = prompts
        self._judge = collaborators.judge
        self._weights = collaborators.weights
        self._ledger = collaborators.ledger
        self._clock = clock
        self.window = Window(self._open)
        self.fleet = Fleet(config, self.window, collaborators, self)
        self.replay = ReplayBuffer(config.replay)
        self._judging: dict[Sample, asyncio.Task[None]] = {}
        self._groups = GroupJudgements(collaborators.judge)
        self._functions = FunctionWatch()
        self._defect: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._size = 0
        self._learner_version = 0
        self.next_group = 0
        self.decided = asyncio.Event()
        self.counters = self._make_counters()

    def restore(
        self, ready: Iterable[JudgedGroup], in_flight: Iterable[Group], next_group: int, replays: Mapping[str, int]
    ) -> None:
        """Continue with the groups of a checkpoint.

        `replays` maps the numbers of the groups in the replay buffer to how often they were trained on again. These
        groups are among `ready`, but do not wait for a batch.
        """
        self.next_group = next_group
        counts = {int(number): count for number, count in replays.items()}
        waiting = []
        for group in ready:
            if group.number in counts:
                self.replay.add(replace(group, replays=counts[group.number]))
            else:
                waiting.append(group)
        for sample in self.window.restore(waiting, in_flight):
            self._start_judging(sample)

    def take_counters(self) -> StepCounters:
        """Return the counts so far, and reset them to 0."""
        counters, self.counters = self.counters, self._make_counters()
        return counters

    def _make_counters(self) -> StepCounters:
        return StepCounters(
            rounds=0 if self._config.samples_in_rounds else None, replayed_groups=0 if self._config.replay else None
        )

    def ask(self, groups: int) -> None:
        """Sample this many more groups. Groups that are dropped are not replaced."""
        self.window.ask(groups)
        self.fleet.dispatch()

    def keep_full(self, size: int) -> None:
        """Fill the window to `size` groups, now and whenever a group leaves it."""
        self._size = size
        self.window.fill(size)
        self.fleet.dispatch()

    def take_batch(self, groups: int, version: int) -> list[JudgedGroup]:
        """Return the oldest ready groups for the step from policy `version`.

        Replayed groups take the place of zero-variance groups.
        """
        self.replay.drop(lambda group: self._compute_staleness(group, version) > self._config.max_staleness)
        return [self._replace_zero_variance(group) for group in self.window.pop(groups)]

    def _replace_zero_variance(self, group: JudgedGroup) -> JudgedGroup:
        if not self._config.replay or not (reason := self._describe_zero_variance(group)):
            return group
        substitute = self.replay.take()
        if substitute is None:
            return group
        self._ledger.close_group(group, "zero_variance", detail=f"{reason}; group {substitute.number} is replayed")
        self.counters.dropped["zero_variance"] += 1
        self.counters.replayed_groups = (self.counters.replayed_groups or 0) + 1
        return substitute

    def trained(
        self, group: JudgedGroup, step: int, spread: float, tokens: Sequence[TrainedTokens] | None = None
    ) -> None:
        """Record that `step` was taken on a group of its batch.

        `spread` is the standard deviation of the group's advantages. `tokens` are from its scored responses, if
        they are kept.
        """
        if group.replays:
            self._ledger.add_replay(group, step=step, spread=spread)
        else:
            self._ledger.close_group(group, "trained", step=step, spread=spread, tokens=tokens)
        if self._config.replay and not self._describe_zero_variance(group):
            self.replay.add(group)

    def fail(self, group: JudgedGroup, detail: str) -> None:
        """Record that no step could be taken on a group of a batch, because of `detail`."""
        if group.replays:
            return  # its outcome was decided before
        self._ledger.close_group(group, "failed", detail=detail)
        self.counters.dropped["failed"] += 1

    def drop(self, group: Group | JudgedGroup, fate: Fate, detail: str) -> None:
        """Remove a group from the window with outcome `fate`, because of `detail`. Another is sampled instead."""
        self.window.drop(group)
        if isinstance(group, Group):  # all samples of a `JudgedGroup` are scored
            self.fleet.abort(group)
            for sample in group.samples:
                if judging := self._judging.pop(sample, None):
                    judging.cancel()
            self._groups.leave(group)
        self._ledger.close_group(group, fate, detail=detail)
        self.counters.dropped[fate] += 1
        self.decided.set()
        self.keep_full(self._size)

    def drop_stale(self, version: int) -> None:
        """Drop the groups that are too old for a step from `version`, the learner's new version.

        Ready groups are dropped, and with `beyond_staleness = abort` also groups in flight. Their prompts are sampled
        again. A group that is too old when it becomes ready is dropped at that time.
        """
        self._learner_version = version
        in_flight = self.window.in_flight.values() if self._config.beyond_staleness == "abort" else ()
        for group in [*self.window.ready, *in_flight]:
            self._drop_if_stale(group)

    def _drop_if_stale(self, group: Group | JudgedGroup) -> None:
        if (staleness := self._compute_staleness(group, self._learner_version)) > self._config.max_staleness:
            self._prompts.put_back(group.prompt)
            self.drop(group, "stale", f"{staleness} versions old")

    def _compute_staleness(self, group: Group | JudgedGroup, version: int) -> int:
        # If older tokens are masked, a group is stale once all of its tokens are masked.
        masks = self._config.beyond_staleness == "mask"
        return version - (group.last_version if masks else group.first_version)

    async def run(self) -> None:
        """Run actors and scoring until cancelled.

        Raises:
            ActorLostError: more actors were lost than `actors.max_restarts` allows.
            RewardFunctionError, RewardServiceError: a custom reward function fails on every response.
            Exception: a bug in the scoring of a response.
        """
        try:
            await run_until_first_ends([self.fleet.run(), self._wait_for_defect()])
        finally:
            await cancel(self._judging.values())
            await self._groups.close()

    def close(self) -> None:
        """Record the remaining groups as unused, after the last step."""
        groups: list[Group | JudgedGroup] = [*self.window.in_flight.values(), *self.window.ready]
        for group in groups:
            self._ledger.close_group(group, "unused", detail="the last step was taken")

    async def _wait_for_defect(self) -> None:
        await self._defect

    def _open(self) -> Group | None:
        if self._prompts.is_exhausted:
            return None
        group = Group.create(
            self.next_group,
            self._prompts.next(),
            self._config.sampling.samples,
            sampled_at=self._clock(),
            policy_version=self._weights.version,
        )
        self.next_group += 1
        return group

    # Notifications of the fleet

    def on_generated(self, sample: Sample, completion: Completion) -> None:
        """Count the response, and begin to score it."""
        self.counters.generated(completion, sample.environment_seconds)
        self.window.generated(sample, completion)
        self._start_judging(sample)

    def on_impossible(self, group: Group, reason: str) -> None:
        """Drop the group, and never sample its prompt again."""
        logger.warning("prompt %s is left out of the run: %s", group.prompt.prompt_id, reason)
        self._prompts.exclude(group.prompt)
        self.drop(group, "failed", reason)

    def on_actor_lost(self) -> None:
        """Count the lost actor."""
        self.counters.actors_lost += 1

    def on_update(self, timing: WeightUpdate) -> None:
        """Count the update for the step during which it ends, which may not be the step during which it began."""
        self.counters.updates.append(timing)

    # Scoring

    def _start_judging(self, sample: Sample) -> None:
        task = asyncio.create_task(self._judge_sample(sample))
        self._judging[sample] = task
        task.add_done_callback(self._handle_judging_end)

    def _handle_judging_end(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (defect := task.exception()) and not self._defect.done():
            self._defect.set_exception(defect)

    async def _judge_sample(self, sample: Sample) -> None:
        group = sample.group
        assert sample.completion is not None
        if has_group_reward(group.prompt.verifier, group.prompt.ground_truth):
            score = await self._groups.score(sample)
        else:
            score = await judge_response(self._judge, group.prompt, sample.completion)
        del self._judging[sample]
        environment = group.prompt.environment
        self._functions.judged(group.prompt.prompt_id, score, environment.path if environment else None)
        self.window.judged(sample, score)
        errors = group.errors
        if len(group.samples) - len(errors) < MIN_JUDGED:
            self.counters.unjudged_samples += len(errors)
            self.drop(group, "failed", describe_unjudged(errors, len(group.samples)))
        elif group.all_judged:
            self._groups.leave(group)
            self._decide(JudgedGroup.from_group(group, self._config.objective.shaping, finished_at=self._clock()))

    def _decide(self, group: JudgedGroup) -> None:
        """Let a group wait for a batch, or drop it if it carries no gradient or is too old."""
        self.counters.judged(group)
        outlook = self._prompts.history.judged(group.prompt.prompt_id, group.passed, group.unshaped_scores)
        if reason := self._describe_zero_variance(group):
            self.counters.zero_variance_groups += 1
            if self._config.resampling.kind != "none":
                self.drop(group, "zero_variance", "; ".join(filter(None, (reason, outlook))))
                return
        self.window.finish(group)
        self._drop_if_stale(group)
        self.decided.set()

    def _describe_zero_variance(self, group: JudgedGroup) -> str:
        resampling, metric = self._config.resampling, "reward"
        if isinstance(resampling, DynamicResampling) and not self._config.objective.keeps_equal_rewards:
            metric = resampling.metric
        if metric == "score":
            scores = group.unshaped_scores
            return f"every score before shaping is {scores[0]:g}" if are_equal(scores) else ""
        if metric == "passed" and len(set(group.passed)) == 1:
            return "every response passes" if group.passed[0] else "no response passes"
        return group.describe_zero_variance(self._config.objective)
