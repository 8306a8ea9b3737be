"""The fleet: the actors, each of which starts, generates, takes new weights and is replaced on its own.

Whoever has room is given what waits in the window, the least loaded actor first, so that a slow one gets little and a
late one gets its share at once. A lost actor costs what it had not finished.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Protocol

from tasks.generation.config import SamplingConfig
from tasks.generation.interface import (
    Completion,
    EngineOptionsError,
    EngineStatistics,
    RequestRefusedError,
    UpdateTiming,
    sample_seed,
)
from tasks.training.actors.process import Actor, ActorLostError
from tasks.training.actors.slot import ActorSlot
from tasks.training.actors.weights import WeightStore
from tasks.training.config import TrainingConfig
from tasks.training.groups.group import Group, Sample, Stage
from tasks.training.groups.window import Window
from tasks.training.metric import Metric
from tasks.training.timeouts import awaited, until_the_first, within

logger = logging.getLogger(__name__)

LOOK_SECONDS = 10.0
"""From one look at an engine's figures to the next, at most: how full its KV cache is changes within seconds."""


class Receiver(Protocol):
    """Who is told what the actors do."""

    def on_generated(self, sample: Sample, completion: Completion) -> None:
        """A response is there."""

    def on_impossible(self, group: Group, reason: str) -> None:
        """No engine can answer the group's prompt."""

    def on_actor_lost(self) -> None:
        """An actor's place is empty."""

    def on_update(self, timing: UpdateTiming) -> None:
        """An actor has taken new weights."""


ENGINES = (
    Metric("actors_idle", "share of the time", "time in which an actor had nothing to generate, mean over actors"),
    Metric("kv_cache_usage", "share", "newest share of an engine's KV cache that is in use, mean over actors"),
    Metric("preemptions", "requests", "requests that lost their KV cache to others"),
    Metric("sequences_limit", "sequences", "sequences that an engine is given at a time, mean over actors"),
)
"""Metrics of the engines, from their own statistics (`Fleet.take_figures`)."""


class Fleet:
    """All actors of a run.

    Args:
        make_actor: makes the actor for a place; the second argument counts those that the place has had.
    """

    def __init__(
        self,
        config: TrainingConfig,
        window: Window,
        make_actor: Callable[[int, int], Actor],
        weights: WeightStore,
        receiver: Receiver,
    ) -> None:
        self._config = config
        self._window = window
        self._make_actor = make_actor
        self._weights = weights
        self._receiver = receiver
        self._closing = False
        self._options_work = False  # an engine has started with them
        self._changed = asyncio.Event()
        actors = config.actors
        # Taking turns, actors are idle when new weights come: who has them first must not take the whole batch.
        self._updates = "barrier" if config.takes_turns and actors.updates == "in_flight" else actors.updates
        # A group that is spread over actors is as slow as the slowest of them; it goes to one that has room for all of
        # it, as far as what the actor has in stock lets it wait for that.
        self._least_room = min(max(actors.prefetch, 1), config.sampling.samples)
        self.places = [ActorSlot(index, actors) for index in range(actors.count)]

    def take_figures(self, seconds: float) -> dict[str, float]:
        """Return the metrics of `ENGINES` since the last call, `seconds` ago."""
        for place in self.places:
            place.count_idle()
        count = len(self.places)
        figures = {
            "actors_idle": sum(place.idle_seconds for place in self.places) / seconds / count,
            "kv_cache_usage": sum(place.statistics.kv_cache_usage for place in self.places) / count,
            "preemptions": float(sum(place.preemptions for place in self.places)),
            "sequences_limit": sum(place.concurrency.limit for place in self.places) / count,
        }
        for place in self.places:
            place.idle_seconds, place.preemptions = 0.0, 0
        return figures

    # Handing out

    def dispatch(self) -> None:
        """Hand out what waits, as far as there is room; called whenever that may have changed."""
        self._dispatch_among(self.places)

    def _dispatch_among(self, places: Sequence[ActorSlot]) -> None:
        """Hand out what waits to those of `places` that have room; the others have none, or nothing waits."""
        self._changed.set()
        fresh = {place for place in places if not place.running}
        while not self._closing:
            takers = [place for place in places if self._takes(place, fresh)]
            if not takers:
                return
            place = min(takers, key=lambda place: (not place.reserved, place.load, place.index))
            if self._window.has_suspects and not any(place.reserved for place in self.places):
                place.reserved = True  # it takes nothing more, and once it is empty, it is the suspect's turn
                continue
            samples = self._window.take_suspects(place.room) if place.reserved else self._window.take(place.room)
            if place.reserved:
                place.reserved = bool(samples)
                place.suspect = samples[0].group if samples else None
            elif not samples:
                return
            for sample in samples:
                self._start(place, sample)

    def _takes(self, place: ActorSlot, fresh: set[ActorSlot]) -> bool:
        if place.room < self._least_room or (place.reserved and place.running):
            return False
        match self._updates:
            case "in_flight":
                return True
            case "drained":
                return not self._behind(place)
            case "barrier":
                return not any(self._behind(other) for other in self.places)
            case "static":  # a chunk for each at a time: its longest response ends it
                return place in fresh and not any(self._behind(other) or other.starts for other in self.places)

    def _behind(self, place: ActorSlot) -> bool:
        return place.held is not None and place.held < self._weights.version

    def _start(self, place: ActorSlot, sample: Sample) -> None:
        sample.actor, sample.began_under = place.index, place.held
        place.begin()
        place.running[sample] = asyncio.create_task(self._generate(place, sample))

    async def _generate(self, place: ActorSlot, sample: Sample) -> None:
        assert place.actor is not None
        try:
            completion = await place.actor.generate(
                sample.group.prompt.token_ids, self._config.sampling, self._seed(sample)
            )
        except RequestRefusedError as refusal:
            self._end(place, sample)
            self._receiver.on_impossible(sample.group, str(refusal))
        except Exception as error:  # lost, or a defect: what serves the place says which
            if not place.broken.done():
                place.broken.set_exception(error)
            return
        else:
            self._end(place, sample)
            self._receiver.on_generated(sample, completion)
        self._dispatch_among([place])

    def _seed(self, sample: Sample) -> int | None:
        if not self._config.deterministic:
            return None
        group = sample_seed(self._config.seed, "group", sample.group.number)
        return sample_seed(group, "", sample.index)

    def abort(self, group: Group) -> None:
        """Generate nothing more for a group."""
        for sample in group.samples:
            if sample.stage is Stage.GENERATING:
                place = self.places[sample.actor]
                if generating := place.running.get(sample):
                    generating.cancel()
                    self._end(place, sample)

    def _end(self, place: ActorSlot, sample: Sample) -> None:
        del place.running[sample]
        if not place.running:
            place.is_idle()

    # Beside training

    def is_beyond(self, version: int) -> bool:
        """Whether there is a newer version of the policy."""
        return self._weights.version > version

    @contextlib.asynccontextmanager
    async def held(self, version: int) -> AsyncIterator[ActorSlot]:
        """The least loaded actor that has this version of the policy; it keeps it for the length of the block.

        It goes on with samples of training, as far as it may under weights that are not the newest.

        Raises:
            ActorLostError: none has it, nor will have it: there is a newer one.
        """
        while not (places := [place for place in self.places if place.held == version and not place.keeps_out]):
            if self.is_beyond(version):
                raise ActorLostError(f"no actor has version {version} of the policy any more")
            self._changed.clear()
            await self._changed.wait()
        place = min(places, key=lambda place: (place.load, place.index))
        place.free.clear()
        try:
            yield place
        finally:
            place.free.set()

    async def generate_apart(
        self, place: ActorSlot, prompt_ids: list[int], sampling: SamplingConfig, seed: int
    ) -> Completion:
        """A response that belongs to no sample of training; samples of training wait until there is room beside it.

        Raises:
            ActorLostError: the actor was lost.
            RequestRefusedError: the engine takes no such request.
        """
        actor = place.actor
        if actor is None:
            raise ActorLostError(f"actor {place.index} {place.state}")
        place.begin()
        call = asyncio.create_task(actor.generate(prompt_ids, sampling, seed))
        place.apart.add(call)
        try:
            return await call
        except asyncio.CancelledError:
            if place.actor is not actor:
                raise ActorLostError(f"actor {place.index} was lost") from None
            raise
        except RequestRefusedError:
            raise
        except Exception as error:  # as of a sample of training
            if place.actor is actor and not place.broken.done():
                place.broken.set_exception(error)
            raise
        finally:
            call.cancel()
            place.apart.discard(call)
            if not place.running:
                place.is_idle()
            self.dispatch()

    # The life of an actor

    async def run(self) -> None:
        """Keep every place filled until cancelled.

        Raises:
            ActorLostError: every place has lost more actors than `actors.max_restarts` allows for the time.
        """
        await until_the_first(self._keep(place) for place in self.places)

    async def _keep(self, place: ActorSlot) -> None:
        while True:
            await self._rest(place)
            actor = self._make_actor(place.index, place.attempts)
            place.attempts += 1
            lost: Exception | None = None
            try:
                await self._serve(place, actor)
            except ActorLostError as error:
                lost = error
            except EngineOptionsError as error:
                if not self._options_work:
                    raise
                lost = error  # they are not at fault: a disk, or storage that is away
            except asyncio.CancelledError:
                self._closing = True  # the run ends: nobody is given anything more
                raise
            finally:
                suspect = place.suspect
                self._empty(place)
                if lost:
                    self._lose(place, str(lost), suspect)
                self.dispatch()
                await actor.kill()

    async def _rest(self, place: ActorSlot) -> None:
        """Back-off; where every place is over its budget, the run ends."""
        if place.is_over_budget:
            actors = self._config.actors
            limit = f"actors.max_restarts = {actors.max_restarts} in {actors.restart_window_seconds:g} s"
            place.resting = f"{place.resting}; it stays empty: {limit}"
            if all(other.is_over_budget for other in self.places):
                raise ActorLostError("; ".join(f"actor {other.index} {other.resting}" for other in self.places))
        await asyncio.sleep(place.back_off)

    async def _serve(self, place: ActorSlot, actor: Actor) -> None:
        await actor.placed()
        place.placed = True
        await actor.start()
        self._options_work = True
        place.resting = ""
        place.actor = actor
        place.broken = asyncio.get_running_loop().create_future()
        # Nothing is generated before the learner's weights are in: after a resume or a replacement the engine starts
        # with the initial checkpoint, and without an adapter.
        held = 0
        if self._weights.version > 0 or self._config.lora:
            held = await self._update(actor)
        place.held = held
        self.dispatch()
        await until_the_first([self._keep_current(place, actor), self._watch(place, actor), awaited(place.broken)])

    async def _keep_current(self, place: ActorSlot, actor: Actor) -> None:
        while True:
            assert place.held is not None
            await self._weights.newer_than(place.held)
            await self._until_it_may(place)
            place.updating = True
            place.held = await self._update(actor)
            place.updating = False
            self.dispatch()

    async def _until_it_may(self, place: ActorSlot) -> None:
        """Wait until the actor in `place` may take new weights."""
        while True:
            await place.free.wait()
            if self._updates in ("barrier", "static"):
                for other in self.places:
                    await other.idle.wait()
            elif self._updates == "drained":
                await place.idle.wait()
            if place.free.is_set():  # still
                return

    async def _update(self, actor: Actor) -> int:
        limit = self._config.actors.update_timeout_seconds
        with self._weights.open() as (version, path):
            update = actor.update(str(path), version, keep_cache=self._config.actors.keep_cache)
            timing = await within(
                update,
                f"an actor takes the weights of version {version}",
                limit=limit,
                option="actors.update_timeout_seconds",
                error=ActorLostError,
            )
        self._receiver.on_update(timing)
        return version

    async def _watch(self, place: ActorSlot, actor: Actor) -> None:
        """Ends when the engine is asked for tokens and makes none; how many it has waiting does not matter.

        While it takes new weights it makes none, and is asked for none.
        """
        loop, limit = asyncio.get_running_loop(), self._config.actors.hang_seconds
        since = loop.time()
        while True:
            await asyncio.sleep(min(limit / 10, LOOK_SECONDS))
            before = place.statistics
            place.observe(
                await within(
                    actor.statistics(),
                    f"actor {place.index} is asked how far it is",
                    limit=limit,
                    option="actors.hang_seconds",
                    error=ActorLostError,
                )
            )
            progress = place.statistics.generated_tokens != before.generated_tokens
            if progress or place.idle.is_set() or place.updating:  # an update has a limit of its own
                since = loop.time()
            elif loop.time() - since >= limit:
                raise ActorLostError(
                    f"it hangs: no token for actors.hang_seconds = {limit:g}, with {len(place.running)} samples to "
                    "generate"
                )

    def _lose(self, place: ActorSlot, reason: str, suspect: Group | None) -> None:
        logger.warning("actor %d was lost: %s", place.index, reason)
        place.lose(reason)
        self._receiver.on_actor_lost()
        if suspect:
            self._receiver.on_impossible(suspect, f"its prompt ends engines: {reason}")

    def _empty(self, place: ActorSlot) -> None:
        """Nobody is in `place` any more; what it had not finished waits again."""
        places = sum(other.actor is not None for other in self.places)
        place.actor, place.held, place.statistics = None, None, EngineStatistics()
        place.placed = place.updating = place.reserved = False
        unfinished = list(place.running)
        for task in (*place.running.values(), *place.apart):
            task.cancel()
        place.running.clear()
        place.apart.clear()
        place.is_idle()
        self._window.lost(unfinished, places)
