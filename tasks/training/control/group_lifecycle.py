"""Sampling: what becomes of the groups in the window. Actors generate, the judge scores, and each group has one fate.

A response is judged as soon as it is there, whatever becomes of the actor that generated it and of the other responses
of its group.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping

from tasks.generation.interface import Completion, UpdateTiming
from tasks.training.actors.fleet import Fleet
from tasks.training.actors.process import Actor
from tasks.training.actors.weights import WeightStore
from tasks.training.config import TrainingConfig
from tasks.training.control.prompt_stream import PromptStream
from tasks.training.groups.group import Group, Sample, why_unjudged
from tasks.training.groups.replay_buffer import ReplayBuffer
from tasks.training.groups.window import Window
from tasks.training.prompt_options import DynamicResampling
from tasks.training.records.ledger import Fate, Ledger
from tasks.training.rewards import MIN_JUDGED, RewardClient, judge_response
from tasks.training.telemetry.step_metrics import StepCounters
from tasks.training.timeouts import until_the_first

logger = logging.getLogger(__name__)


class GroupLifecycle:
    """Groups from prompts. Every group that enters leaves exactly once: trained, or dropped with a reason.

    Attributes:
        window: where each group stands.
        fleet: who generates.
        replay: groups that were trained on, for another time.
        decided: set whenever a group became ready or was dropped.
        tally: what happened since the last `take_tally`.
    """

    def __init__(
        self,
        config: TrainingConfig,
        prompts: PromptStream,
        make_actor: Callable[[int, int], Actor],
        judge: RewardClient,
        weights: WeightStore,
        ledger: Ledger,
        clock: Callable[[], float],
    ) -> None:
        self._config = config
        self._prompts = prompts
        self._judge = judge
        self._weights = weights
        self._ledger = ledger
        self._clock = clock
        self.window = Window(self._open)
        self.fleet = Fleet(config, self.window, make_actor, weights, self)
        self.replay = ReplayBuffer(config.replay)
        self._judging: dict[Sample, asyncio.Task[None]] = {}
        self._defect: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._size = 0
        self._learner_version = 0
        self.next_group = 0
        self.decided = asyncio.Event()
        self.tally = self._empty_tally()

    def restore(
        self, ready: Iterable[Group], in_flight: Iterable[Group], next_group: int, replays: Mapping[str, int]
    ) -> None:
        """Go on with the groups of a checkpoint; those whose numbers `replays` holds were trained on so often again."""
        self.next_group = next_group
        ready, kept = list(ready), {int(number): count for number, count in replays.items()}
        for group in ready:
            if group.number in kept:
                group.replays = kept[group.number]
                self.replay.add(group)
        ready = [group for group in ready if group.number not in kept]
        for sample in self.window.restore(ready, in_flight):
            self._start_judging(sample)

    def take_tally(self) -> StepCounters:
        """The counts so far; counting starts anew."""
        tally, self.tally = self.tally, self._empty_tally()
        return tally

    def _empty_tally(self) -> StepCounters:
        return StepCounters(
            rounds=0 if self._config.samples_in_rounds else None, replayed_groups=0 if self._config.replay else None
        )

    def ask(self, groups: int) -> None:
        """Sample this many more groups; none takes the place of one that is dropped."""
        self.window.ask(groups)
        self.fleet.dispatch()

    def keep_full(self, size: int) -> None:
        """Keep `size` groups in the window from now on: another takes the place of one that leaves it."""
        self._size = size
        self.window.fill(size)
        self.fleet.dispatch()

    def take_batch(self, groups: int, version: int) -> list[Group]:
        """The oldest groups that are ready; replayed ones for those that teach nothing, for policy `version`."""
        self.replay.drop(lambda group: self._staleness(group, version) > self._config.max_staleness)
        return [self._replayed(group) for group in self.window.pop(groups)]

    def _replayed(self, group: Group) -> Group:
        if not self._config.replay or not (reason := self._nothing_to_learn(group)):
            return group
        substitute = self.replay.take()
        if substitute is None:
            return group
        self._ledger.close_group(group, "zero_variance", detail=f"{reason}; group {substitute.number} is replayed")
        self.tally.dropped["zero_variance"] += 1
        self.tally.replayed_groups = (self.tally.replayed_groups or 0) + 1
        return substitute

    def trained(self, group: Group, step: int, spread: float) -> None:
        """`group`, which `take_batch` gave out, was trained on at `step`."""
        if group.replays:
            self._ledger.add_replay(group, step=step, spread=spread)
        else:
            self._ledger.close_group(group, "trained", step=step, spread=spread)
        if self._config.replay and not self._nothing_to_learn(group):
            self.replay.add(group)

    def fail(self, group: Group, detail: str) -> None:
        """`group`, which `take_batch` gave out, was not trained on."""
        if group.replays:
            return  # its fate was decided before
        self._ledger.close_group(group, "failed", detail=detail)
        self.tally.dropped["failed"] += 1

    def drop(self, group: Group, fate: Fate, detail: str) -> None:
        """`group` will not be trained on."""
        self.window.drop(group)
        self.fleet.abort(group)
        for sample in group.samples:
            if judging := self._judging.pop(sample, None):
                judging.cancel()
        _keep_what_is_finished(group)
        self._ledger.close_group(group, fate, detail=detail)
        self.tally.dropped[fate] += 1
        self.decided.set()
        self.keep_full(self._size)

    def drop_stale(self, version: int) -> None:
        """The learner goes on from `version`: drop groups that are older than `max_staleness` allows, as configured.

        Their prompts are sampled again. From now on a group that is as old when it becomes ready is dropped at once.
        """
        self._learner_version = version
        in_flight = self.window.in_flight.values() if self._config.beyond_staleness == "abort" else ()
        for group in [*self.window.ready, *in_flight]:
            self._drop_if_stale(group)

    def _drop_if_stale(self, group: Group) -> None:
        if (staleness := self._staleness(group, self._learner_version)) > self._config.max_staleness:
            self._prompts.put_back(group.prompt)
            self.drop(group, "stale", f"{staleness} versions old")

    def _staleness(self, group: Group, version: int) -> int:
        # where older tokens are masked, a group goes when no other is left of it
        masks = self._config.beyond_staleness == "mask"
        return version - (group.last_version if masks else group.first_version)

    async def run(self) -> None:
        """Keep actors and judge at work until cancelled; raises when no more replacements are allowed."""
        try:
            await until_the_first([self.fleet.run(), self._failed()])
        finally:
            for task in self._judging.values():
                task.cancel()
            await asyncio.gather(*self._judging.values(), return_exceptions=True)

    def close(self) -> None:
        """The last step was taken: what is left is not used."""
        for group in [*self.window.in_flight.values(), *self.window.ready]:
            _keep_what_is_finished(group)
            self._ledger.close_group(group, "unused", detail="the last step was taken")

    async def _failed(self) -> None:
        await self._defect

    def _open(self) -> Group | None:
        if self._prompts.is_exhausted:
            return None
        group = Group.of(
            self.next_group,
            self._prompts.next(),
            self._config.sampling.samples,
            sampled_at=self._clock(),
            policy_version=self._weights.version,
        )
        self.next_group += 1
        return group

    # What the fleet tells

    def on_generated(self, sample: Sample, completion: Completion) -> None:
        """See `Receiver`."""
        self.tally.generated_tokens += len(completion.token_ids)
        self.tally.generated_samples += 1
        self.window.generated(sample, completion)
        self._start_judging(sample)

    def on_impossible(self, group: Group, reason: str) -> None:
        """See `Receiver`: the prompt is not sampled again."""
        logger.warning("prompt %s is left out of the run: %s", group.prompt.prompt_id, reason)
        self._prompts.exclude(group.prompt)
        self.drop(group, "failed", reason)

    def on_actor_lost(self) -> None:
        """See `Receiver`."""
        self.tally.actors_lost += 1

    def on_update(self, timing: UpdateTiming) -> None:
        """See `Receiver`."""
        self.tally.updates.append(timing)  # that of now: a step may have ended meanwhile

    # Judging

    def _start_judging(self, sample: Sample) -> None:
        task = asyncio.create_task(self._judge_sample(sample))
        self._judging[sample] = task
        task.add_done_callback(self._judging_ended)

    def _judging_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (defect := task.exception()) and not self._defect.done():
            self._defect.set_exception(defect)

    async def _judge_sample(self, sample: Sample) -> None:
        group = sample.group
        assert sample.completion is not None
        score = await judge_response(self._judge, group.prompt, sample.completion)
        del self._judging[sample]
        self.window.judged(sample, score)
        errors = group.errors
        if len(group.samples) - len(errors) < MIN_JUDGED:
            self.tally.unjudged_samples += len(errors)
            self.drop(group, "failed", why_unjudged(errors, len(group.samples)))
        elif group.all_judged:
            self._decide(group)

    def _decide(self, group: Group) -> None:
        group.take_judgements(self._config.objective.shaping)
        group.finished_at = self._clock()
        self.tally.judged(group)
        prospect = self._prompts.visits.judged(group.prompt.prompt_id, group.passed)
        if reason := self._nothing_to_learn(group):
            self.tally.zero_variance_groups += 1
            if self._config.resampling.kind != "none":
                self.drop(group, "zero_variance", "; ".join(filter(None, (reason, prospect))))
                return
        self.window.keep(group)
        self._drop_if_stale(group)
        self.decided.set()

    def _nothing_to_learn(self, group: Group) -> str:
        resampling = self._config.resampling
        if isinstance(resampling, DynamicResampling) and resampling.metric == "passed" and len(set(group.passed)) == 1:
            return "every response passes" if group.passed[0] else "no response passes"
        return group.teaches_nothing(self._config.objective)


def _keep_what_is_finished(group: Group) -> None:
    """A group that leaves before all of its samples are judged keeps those that are generated, for the ledger."""
    if group.finished_at is None:
        group.completions = [sample.completion for sample in group.samples if sample.completion]
