"""Manages all actors of a run, which start, generate, take new weights and are replaced independently.

    window ──► dispatch ──► slot 0: actor ──► response ──► receiver
                       └──► slot 1: actor ──► response ──► receiver
                                ▲
    weight store ── update ─────┘  each slot takes new weights separately, as `actors.updates` allows

Samples that wait in the window go to the least loaded actor with free capacity. So a slow actor is given fewer samples,
and an actor that starts late is given its share at once. A lost actor costs only its unfinished samples.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

from tasks.environments.episode import EpisodePlayer, EpisodeRequest
from tasks.generation.config import SamplingConfig
from tasks.generation.interface import (
    Completion,
    EngineOptionsError,
    RequestRefusedError,
    sample_seed,
)
from tasks.machine.memory_limit import MemoryLimitError, find_shortage
from tasks.recipe.run import TrainingConfig
from tasks.training.actors.episodes import RunServices, SlotObserver
from tasks.training.actors.process import Actor, ActorLostError
from tasks.training.actors.receiver import Receiver
from tasks.training.actors.rewards import RewardClient
from tasks.training.actors.slot import ActorSlot, SlotState
from tasks.training.actors.updates import WeightUpdates
from tasks.training.actors.weights import Weights
from tasks.training.groups.group import Group, Prompt, Sample, Stage
from tasks.training.groups.window import Window
from tasks.training.runtime.gpu_time_sharing import Turns
from tasks.training.runtime.timeouts import Limit, run_until_first_ends, wait_within

logger = logging.getLogger(__name__)

STATISTICS_SECONDS = 10.0
"""Longest time between two readings of an engine's statistics, in seconds. Its KV cache can fill within seconds."""


@dataclass
class FleetCollaborators:
    """The collaborators of a `Fleet`, in addition to options and samples.

    Attributes:
        make_actor: creates an actor. Its arguments are the index of the slot, and the number of actors that the slot
            has had before.
        judge: client that scores responses, also for environments.
        weights: the weights that actors take.
        turns: time sharing of the GPUs between engines and learner. By default they share no GPUs by time.
        episodes: plays the episodes of prompts with an environment. Optional. If None, no prompt has an environment.
    """

    make_actor: Callable[[int, int], Actor]
    judge: RewardClient
    weights: Weights
    turns: Turns = field(default_factory=Turns, kw_only=True)
    episodes: EpisodePlayer | None = field(default=None, kw_only=True)


class Fleet:
    """Manages all actors of a run: hands samples out to them, keeps their weights current, and replaces lost actors.

    Attributes:
        slots: the actor slots, by index.
    """

    def __init__(
        self, config: TrainingConfig, window: Window, collaborators: FleetCollaborators, receiver: Receiver
    ) -> None:
        """Create a fleet without actors. `run` starts them.

        Args:
            config: the options of the run.
            window: the groups whose samples are generated.
            collaborators: creates actors, and what they work with.
            receiver: is notified of responses, losses and updates.
        """
        self._config = config
        self._collaborators = collaborators
        self._window = window
        self._weights = collaborators.weights
        self._receiver = receiver
        self._turns = collaborators.turns
        self._closing = False
        self._options_work = False  # an engine has started with these options
        self._has_answered = False  # an engine has generated a response
        self._changed = asyncio.Event()
        actors = config.actors
        self._hang_limit = Limit.from_config(config, "actors.hang_seconds")
        # A group that is split over actors is as slow as the slowest of them. So it goes to an actor with capacity for
        # the whole group, as far as `prefetch` allows an actor to wait for that.
        self._min_capacity = min(max(actors.prefetch, 1), config.sampling.samples)
        self.slots = [ActorSlot(index, actors) for index in range(actors.count)]
        self._updates = WeightUpdates(config, self.slots, self._weights, receiver, self._turns)

    def take_figures(self, seconds: float) -> dict[str, float]:
        """Return the engines' metrics since the last call, `seconds` ago."""
        for slot in self.slots:
            slot.count_idle()
        count = len(self.slots)
        figures = {
            "actors_idle": sum(slot.idle_seconds for slot in self.slots) / seconds / count,
            "kv_cache_usage": sum(slot.statistics.kv_cache_usage for slot in self.slots) / count,
            "preemptions": float(sum(slot.preemptions for slot in self.slots)),
            "sequences_limit": sum(slot.concurrency.limit for slot in self.slots) / count,
        }
        for slot in self.slots:
            slot.idle_seconds, slot.preemptions = 0.0, 0
        return figures

    # Handing out

    def dispatch(self) -> None:
        """Hand waiting samples out to all actors with free capacity. Called whenever either may have changed."""
        self._dispatch_among(self.slots)

    def _dispatch_among(self, slots: Sequence[ActorSlot]) -> None:
        """Hand waiting samples out to those among `slots` with free capacity.

        No other slot has free capacity, or no sample waits.
        """
        self._changed.set()
        fresh = {slot for slot in slots if not slot.running}
        while not self._closing:
            takers = [slot for slot in slots if self._can_take(slot, fresh)]
            if not takers:
                return
            # the reserved slot first: its suspect group has waited for the slot to become empty
            slot = min(takers, key=lambda slot: (not slot.reserved, slot.num_requests, slot.index))
            if self._window.has_suspects and not any(slot.reserved for slot in self.slots):
                # only one slot at a time empties for suspect groups, and the others continue
                slot.reserve()
                continue
            if slot.reserved:
                samples = self._window.take_suspects(slot.free_capacity)
                slot.isolate(samples[0].group if samples else None)
            elif not (samples := self._window.take(slot.free_capacity)):
                return
            for sample in samples:
                self._start(slot, sample)

    def _can_take(self, slot: ActorSlot, fresh: set[ActorSlot]) -> bool:
        if slot.free_capacity < self._min_capacity or (slot.reserved and slot.running):
            return False
        match self._updates.mode:
            case "in_flight":
                return True
            case "drained":
                return not self._updates.is_behind(slot)
            case "barrier":
                return not any(self._updates.is_behind(other) for other in self.slots)
            case "static":  # every slot is given one batch at a time, which ends with its longest response
                return slot in fresh and not any(
                    self._updates.is_behind(other) or other.is_pending for other in self.slots
                )

    def _start(self, slot: ActorSlot, sample: Sample) -> None:
        sample.actor, sample.began_under = slot.index, slot.version
        slot.begin_request()
        slot.running[sample] = asyncio.create_task(self._generate(slot, sample))

    async def _generate(self, slot: ActorSlot, sample: Sample) -> None:
        actor, group, seed = slot.actor, sample.group, self._seed(sample)
        assert actor is not None
        observer = SlotObserver(slot, lambda: self._dispatch_among([slot]), sample)
        try:
            completion = await self._respond(
                actor, group.prompt, self._config.sampling, seed, group.number, sample.index, observer, sample.recorded
            )
        except RequestRefusedError as refusal:
            self._end(slot, sample)
            self._receiver.on_impossible(sample.group, str(refusal))
        except Exception as error:  # a lost actor or a bug: `_serve` raises it, and `_fill` distinguishes them
            # the sample stays in `running`: `_empty` returns it to the window
            slot.fail(actor, error)
            return
        else:
            self._has_answered = True
            self._end(slot, sample)
            self._receiver.on_generated(sample, completion)
        self._dispatch_among([slot])

    async def _respond(
        self,
        actor: Actor,
        prompt: Prompt,
        sampling: SamplingConfig,
        seed: int | None,
        group: int,
        index: int,
        observer: SlotObserver,
        recorded: Completion | None = None,
    ) -> Completion:
        """Return response `index` to a prompt, or its episode. The actor generates all turns of an episode.

        Args:
            actor: the actor.
            prompt: the prompt.
            sampling: sampling options. `max_tokens` limits all tokens of an episode together.
            seed: seed of the response. Optional. If None, the engine's random stream is used.
            group: number of the group, or -1 for a validation.
            index: number of the sample within the group.
            observer: callbacks during an episode.
            recorded: the turns before the episode was interrupted. Optional.
        """
        if prompt.environment is None:
            return await actor.generate(prompt.token_ids, sampling, seed)
        episodes, services = self._collaborators.episodes, RunServices(self._collaborators.judge, prompt)
        assert episodes is not None, "a prompt with an environment has a player of episodes"
        request = EpisodeRequest(
            prompt.environment, prompt.prompt_id, prompt.messages, prompt.token_ids, index, sampling, seed, group
        )
        return await episodes.play(request, actor.generate, services, observer, recorded)

    def _seed(self, sample: Sample) -> int | None:
        if not self._config.deterministic:
            return None
        group = sample_seed(self._config.seed, "group", sample.group.number)
        return sample_seed(group, "", sample.index)

    def abort(self, group: Group) -> None:
        """Cancel everything that is being generated for a group."""
        for sample in group.samples:
            if sample.stage is Stage.GENERATING:
                slot = self.slots[sample.actor]
                if request := slot.running.get(sample):
                    request.cancel()
                    self._end(slot, sample)

    def _end(self, slot: ActorSlot, sample: Sample) -> None:
        del slot.running[sample]
        if not slot.running:
            slot.finish_training()

    # Validation, concurrent with training

    def has_newer_than(self, version: int) -> bool:
        """Return whether a newer version of the policy than `version` is published."""
        return self._weights.version > version

    @contextlib.asynccontextmanager
    async def pin(self, version: int) -> AsyncIterator[ActorSlot]:
        """Yield the least loaded slot that serves `version` of the policy. It takes no newer weights within the block.

        Its actor also continues with training samples, as far as older weights are allowed to generate them.

        Raises:
            ActorLostError: no slot serves this version, and none will, because a newer version is published.
        """
        while not (slots := [slot for slot in self.slots if slot.version == version and slot.can_validate]):
            if self.has_newer_than(version):
                raise ActorLostError(f"no actor has version {version} of the policy any more")
            self._changed.clear()
            await self._changed.wait()
        slot = min(slots, key=lambda slot: (slot.num_requests, slot.index))
        slot.unpinned.clear()
        try:
            yield slot
        finally:
            slot.unpinned.set()

    async def generate_for_validation(
        self, slot: ActorSlot, prompt: Prompt, sampling: SamplingConfig, seed: int, index: int
    ) -> Completion:
        """Return response `index` to a validation prompt, which belongs to no training sample but is load of the slot.

        Raises:
            ActorLostError: the actor was lost.
            RequestRefusedError: the engine refuses the request.
        """
        actor = slot.actor
        if actor is None:
            raise ActorLostError(f"actor {slot.index} {slot.description}")
        slot.begin_request()
        observer = SlotObserver(slot, self.dispatch)
        call = asyncio.create_task(self._respond(actor, prompt, sampling, seed, -1, index, observer))
        slot.validation_calls.add(call)
        try:
            return await call
        except asyncio.CancelledError:
            if slot.actor is not actor:
                raise ActorLostError(f"actor {slot.index} was lost") from None
            raise
        except RequestRefusedError:
            raise
        except Exception as error:  # handled as for a training sample
            slot.fail(actor, error)
            raise
        finally:
            call.cancel()
            slot.validation_calls.discard(call)
            if not slot.running:
                slot.finish_training()
            self.dispatch()

    # Life cycle of an actor

    async def run(self) -> None:
        """Fill every slot with an actor, and replace lost actors, until cancelled.

        Raises:
            ActorLostError: every slot has lost more actors than `actors.max_restarts` allows within the window.
            EngineOptionsError: the first engines do not start because of their options, or do not serve the model.
            MemoryLimitError: an engine runs out of memory in two consecutive starts.
            ModelCheckError, WeightsNotTakenError: an engine does not have the learner's policy after its first update.
        """
        await run_until_first_ends(self._fill(slot) for slot in self.slots)

    async def _fill(self, slot: ActorSlot) -> None:
        was_short = False  # the last actor ran out of memory when it started
        while True:
            await self._back_off(slot)
            actor = self._collaborators.make_actor(slot.index, slot.create())
            lost: Exception | None = None
            try:
                await self._serve(slot, actor)
            except ActorLostError as error:
                lost, is_short = error, find_shortage(error) is not None
                if is_short and was_short:
                    raise MemoryLimitError(
                        f"actor {slot.index} was lost: {error}; this happened in two starts"
                    ) from error
                was_short = is_short
            except EngineOptionsError as error:
                if not (self._options_work if slot.actor is None else self._has_answered):
                    raise
                lost = error  # an engine has run with these options, so the cause is a disk or unavailable storage
            except asyncio.CancelledError:
                self._closing = True  # the run ends: no actor is given more samples
                raise
            finally:
                # read before `_empty`, which forgets it
                suspect = slot.suspect
                self._empty(slot)
                if lost:
                    self._record_loss(slot, str(lost), suspect)
                # before the process is ended, which may take long: other actors can have its samples now
                self.dispatch()
                try:
                    await actor.kill()
                finally:
                    # only now: an engine that has not ended still has its GPU memory
                    self._turns.leave(slot.index)

    async def _back_off(self, slot: ActorSlot) -> None:
        """Wait before the next actor of a slot. If every slot is over its restart budget, end the run."""
        if slot.is_over_budget:
            actors = self._config.actors
            slot.explain_over_budget(
                f"actors.max_restarts = {actors.max_restarts} in {actors.restart_window_seconds:g} s"
            )
            if all(other.is_over_budget for other in self.slots):
                raise ActorLostError("; ".join(f"actor {other.index} {other.description}" for other in self.slots))
        await asyncio.sleep(slot.back_off_seconds)

    async def _serve(self, slot: ActorSlot, actor: Actor) -> None:
        """Start `actor`, let it generate, and keep its weights current. This ends only with an error, which is
        `ActorLostError` if the actor is lost; `_fill` then creates another actor for the slot.
        """
        self._weights.follow(node := await actor.placed())
        # not before it has its resources: the learner's turn waits for every engine that has entered
        await self._turns.enter(slot.index)
        slot.load()
        await actor.start()
        self._options_work = True
        # Nothing is generated before the engine has the learner's weights: after a resume or a replacement it starts
        # with the initial checkpoint, and without an adapter.
        needs_weights = self._weights.version > 0 or self._config.lora is not None
        await self._updates.begin(slot, actor, node, needs_weights=needs_weights)
        self.dispatch()
        await run_until_first_ends([self._keep_current(slot, actor, node), self._watch(slot, actor), slot.failure()])

    async def _keep_current(self, slot: ActorSlot, actor: Actor, node: str) -> None:
        while True:
            await self._updates.next(slot, actor, node)
            self.dispatch()

    async def _watch(self, slot: ActorSlot, actor: Actor) -> None:
        """Read an actor's statistics periodically, and raise `ActorLostError` if the actor hangs.

        It hangs if it has something to generate and generates no token, regardless of how many samples wait for it. It
        also generates no token during a weight update, which has its own time limit, and while it sleeps.
        """
        loop, limit = asyncio.get_running_loop(), self._hang_limit.seconds
        since = loop.time()
        while True:
            await asyncio.sleep(min(limit / 10, STATISTICS_SECONDS))
            before = slot.statistics
            slot.observe(
                await wait_within(
                    actor.statistics(),
                    f"the fleet waits for the statistics of actor {slot.index}",
                    self._hang_limit,
                    error=ActorLostError,
                )
            )
            progress = slot.statistics.generated_tokens != before.generated_tokens
            if progress or not slot.num_requests or slot.state in (SlotState.UPDATING, SlotState.ASLEEP):
                since = loop.time()
            elif loop.time() - since >= limit:
                raise ActorLostError(
                    f"it hangs: no token for actors.hang_seconds = {limit:g}, with {len(slot.running)} samples to "
                    "generate"
                )

    def _record_loss(self, slot: ActorSlot, reason: str, suspect: Group | None) -> None:
        logger.warning("actor %d was lost: %s. Its unfinished samples are generated again", slot.index, reason)
        slot.back_off(reason)
        self._receiver.on_actor_lost()
        if suspect:
            self._receiver.on_impossible(suspect, f"its prompt crashes engines: {reason}")

    def _empty(self, slot: ActorSlot) -> None:
        """Remove the actor of a slot, and return its unfinished samples to the window."""
        # counted before the slot is emptied, because the lost actor counts as well
        actors = sum(other.actor is not None for other in self.slots)
        self._window.requeue(slot.empty(), actors)
