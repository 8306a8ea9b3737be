"""Keeping the actors busy and current: the groups in flight or ready, and the life of each actor.

The controller asks for groups. In an asynchronous run it asks for a window once and keeps it full (active sampling
needs no rounds): a dropped group is replaced at once, and a group that carries a gradient keeps its place until the
learner takes it. Actors run apart from each other: each starts, generates and takes new weights on its own, and a lost
one is replaced while the others go on.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from tasks.generation.config import SamplingConfig
from tasks.generation.engine import sample_seed
from tasks.training.actors import Actor, ActorLostError
from tasks.training.config import DynamicSampling, TrainingConfig
from tasks.training.ledger import Fate, Ledger
from tasks.training.rewards import Judge, TooFewJudgedError, judge_responses
from tasks.training.rollouts import Group
from tasks.training.stream import PromptStream
from tasks.training.tally import Tally
from tasks.training.weights import WeightStore


class Sampling:
    """Groups from prompts. Every group that enters leaves exactly once: to `ready`, or dropped with a reason.

    Attributes:
        ready: groups that carry a gradient, oldest first.
        in_flight: groups being generated or judged, by number.
        undecided: groups that were asked for, and are neither ready nor dropped yet.
        decided: set whenever a group became ready or was dropped.
        tally: what happened since the last `take_tally`.
    """

    def __init__(
        self,
        config: TrainingConfig,
        prompts: PromptStream,
        make_actor: Callable[[int], Actor],
        judge: Judge,
        weights: WeightStore,
        ledger: Ledger,
        clock: Callable[[], float],
    ) -> None:
        self._config = config
        self._prompts = prompts
        self._make_actor = make_actor
        self._judge = judge
        self._weights = weights
        self._ledger = ledger
        self._clock = clock
        self._places = asyncio.Semaphore(0)
        self.undecided = 0
        self._restarts = 0
        self.next_group = 0
        self.ready: deque[Group] = deque()
        self.in_flight: dict[int, Group] = {}
        self.decided = asyncio.Event()
        self.tally = self._empty_tally()

    def restore(self, ready: Iterable[Group], next_group: int) -> None:
        """Continue with groups that were ready when a checkpoint was taken."""
        self.ready = deque(ready)
        self.next_group = next_group

    def take_tally(self) -> Tally:
        """The counts so far; counting starts anew."""
        tally, self.tally = self.tally, self._empty_tally()
        return tally

    def _empty_tally(self) -> Tally:
        return Tally(rounds=0 if self._config.samples_in_rounds else None)

    def ask(self, groups: int) -> None:
        """Sample this many more groups."""
        self.undecided += groups
        for _ in range(groups):
            self._places.release()

    def drop(self, group: Group, fate: Fate, detail: str) -> None:
        """`group` will not be trained on; but for dynamic sampling, whose rounds end, another is sampled."""
        if self.in_flight.pop(group.number, None):
            self.undecided -= 1
        self._ledger.close_group(group, fate, detail=detail)
        self.tally.dropped[fate] += 1
        if not self._config.samples_in_rounds:
            self.ask(1)
        self.decided.set()

    def put_back(self, group: Group) -> None:
        """Sample the group's prompt again."""
        self._prompts.put_back(group.prompt)

    async def run(self) -> None:
        """Keep every actor running until cancelled; raises when no more replacements are allowed."""
        try:
            await _first_failure(self._keep_actor(index) for index in range(self._config.actors.count))
        finally:
            for index in range(self._config.actors.count):
                self._give_up(index, "unused", "the run ended")

    async def _keep_actor(self, index: int) -> None:
        while True:
            actor = self._make_actor(index)
            try:
                await self._run_actor(index, actor)
            except ActorLostError as error:
                self._give_up(index, "failed", f"its actor was lost: {error}")
                self._restarts += 1
                allowed = self._config.actors.max_restarts
                if self._restarts > allowed:
                    raise ActorLostError(
                        f"actor {index} was lost ({error}); actors.max_restarts = {allowed}"
                    ) from error
                self.tally.actors_lost += 1
            finally:
                actor.kill()

    async def _run_actor(self, index: int, actor: Actor) -> None:
        await actor.start()
        # Nothing is generated before the learner's weights are in: after a resume or a replacement the engine starts
        # with the initial checkpoint, and without an adapter.
        held = await self._update(actor) if self._weights.version > 0 or self._config.lora else 0
        if self._config.takes_turns:
            await self._keep_busy(index, actor, held)
        else:
            await _first_failure([self._keep_current(actor, held), self._keep_busy(index, actor)])

    async def _keep_current(self, actor: Actor, held: int) -> None:
        while True:
            await self._weights.newer_than(held)
            held = await self._update(actor)

    async def _update(self, actor: Actor) -> int:
        with self._weights.open() as (version, path):
            timing = await actor.update(str(path), version)
        self.tally.updates.append(timing)  # that of now: a step may have ended meanwhile
        return version

    async def _keep_busy(self, index: int, actor: Actor, held: int | None = None) -> None:
        """Sample what is asked for; with the version that the actor holds given, take newer ones in between."""
        groups: set[asyncio.Task[None]] = set()
        place = asyncio.ensure_future(self._places.acquire())
        try:
            while True:
                await asyncio.wait([place, *groups], return_when=asyncio.FIRST_COMPLETED)
                for task in [task for task in groups if task.done()]:
                    groups.remove(task)
                    task.result()
                if place.done():
                    if held is not None and held < self._weights.version:
                        held = await self._update(actor)
                    groups.add(asyncio.create_task(self._sample(self._open(index), actor)))
                    place = asyncio.ensure_future(self._places.acquire())
        finally:
            if not place.cancel():
                self._places.release()
            for task in groups:
                task.cancel()
            await asyncio.gather(*groups, return_exceptions=True)

    def _give_up(self, index: int, fate: Fate, detail: str) -> None:
        for group in [group for group in self.in_flight.values() if group.actor == index]:
            self.put_back(group)
            self.drop(group, fate, detail)

    def _open(self, index: int) -> Group:
        group = Group(
            number=self.next_group,
            prompt=self._prompts.next(),
            actor=index,
            sampled_at=self._clock(),
            policy_version=self._weights.version,
        )
        self.next_group += 1
        self.in_flight[group.number] = group
        return group

    async def _sample(self, group: Group, actor: Actor) -> None:
        group.completions = await actor.generate(group.prompt.token_ids, self._drawn_by(group))
        self.tally.generated_tokens += sum(len(completion.token_ids) for completion in group.completions)
        try:
            scores = await judge_responses(self._judge, group.prompt, group.completions)
        except TooFewJudgedError as error:
            self.tally.unjudged_samples += error.unjudged
            self.drop(group, "failed", str(error))
            return
        group.judged(scores, self._config.objective.shaping)
        group.finished_at = self._clock()
        self.tally.judged(group)
        if reason := self._nothing_to_learn(group):
            self.tally.zero_variance_groups += 1
            if self._config.resampling.kind != "none":
                self.drop(group, "zero_variance", reason)
                return
        del self.in_flight[group.number]
        self.undecided -= 1
        self.ready.append(group)
        self.decided.set()

    def _nothing_to_learn(self, group: Group) -> str:
        resampling = self._config.resampling
        if isinstance(resampling, DynamicSampling) and resampling.metric == "passed" and len(set(group.passed)) == 1:
            return "every response passes" if group.passed[0] else "no response passes"
        return group.teaches_nothing(self._config.objective)

    def _drawn_by(self, group: Group) -> SamplingConfig:
        sampling = self._config.sampling
        if not self._config.deterministic:
            return sampling
        return sampling.model_copy(update={"seed": sample_seed(self._config.seed, "group", group.number)})


async def _first_failure(jobs: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run jobs that never end by themselves; when one fails, cancel the others and raise its error."""
    tasks = [asyncio.create_task(job) for job in jobs]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
