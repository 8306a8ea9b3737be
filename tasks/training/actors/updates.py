"""Decides when each actor takes the newest weights, and when it sleeps because the learner uses its GPU."""

from __future__ import annotations

from collections.abc import Sequence

from tasks.recipe.run import TrainingConfig
from tasks.training.actors.process import Actor, ActorLostError
from tasks.training.actors.receiver import Receiver
from tasks.training.actors.slot import ActorSlot
from tasks.training.actors.weights import Weights
from tasks.training.runtime.gpu_time_sharing import Turns
from tasks.training.runtime.timeouts import Limit, run_until_first_ends, wait_within


class WeightUpdates:
    """Updates the actors of a fleet. Each takes new weights separately, as `actors.updates` allows.

    Attributes:
        mode: `actors.updates`. In a synchronous run `in_flight` becomes `barrier`, because all actors are idle when
            new weights arrive, and the first actor that has them must not take all samples.
        limit: time limit of an update, and of falling asleep and waking.
    """

    def __init__(
        self,
        config: TrainingConfig,
        slots: Sequence[ActorSlot],
        weights: Weights,
        receiver: Receiver,
        turns: Turns,
    ) -> None:
        """Keep the weights of the actors in `slots` current.

        Args:
            config: the options of the run.
            slots: all actor slots of the fleet.
            weights: the weights that actors take.
            receiver: is notified of updates.
            turns: time sharing of the GPUs between engines and learner.
        """
        actors = config.actors
        self._keep_cache = actors.keep_cache
        self._slots = slots
        self._weights = weights
        self._receiver = receiver
        self._turns = turns
        self.mode = "barrier" if config.is_synchronous and actors.updates == "in_flight" else actors.updates
        self.limit = Limit.from_config(config, "actors.update_timeout_seconds")

    def is_behind(self, slot: ActorSlot) -> bool:
        """Return whether the actor of `slot` has older weights than the newest published ones."""
        return slot.version is not None and slot.version < self._weights.version

    async def begin(self, slot: ActorSlot, actor: Actor, node: str, *, needs_weights: bool) -> None:
        """Let the started engine of `actor` serve. If it `needs_weights`, it takes the newest weights first."""
        if needs_weights:
            slot.start(actor, None)
            await self._weights.wait_for_newer(-1, node, self.limit)
            slot.serve(await self._update(slot, actor, node))
        else:
            if self._turns.taken:  # the first engines have been asleep since they were loaded
                await self._wake(slot, actor)
            slot.start(actor, 0)

    async def next(self, slot: ActorSlot, actor: Actor, node: str) -> None:
        """Wait for the actor's next update or sleep, and return when the actor generates again."""
        if self._turns.taken:
            await run_until_first_ends([self._wait_until_update_allowed(slot, node), self._turns.wait_until_wanted()])
            # not which of the two waits has ended: if both have, the learner goes first
            if self._turns.are_learners:
                await self._sleep(slot, actor, node)
                return
        else:
            await self._wait_until_update_allowed(slot, node)
        slot.update()
        slot.serve(await self._update(slot, actor, node))

    async def _sleep(self, slot: ActorSlot, actor: Actor, node: str) -> None:
        """Let the engine sleep while the learner uses the GPU. Wake it with newer weights if it may take them now."""
        # before the engine, so that the fleet does not take its silence for a hang
        slot.sleep()
        falling_asleep = f"actor {slot.index} falls asleep"
        await wait_within(actor.sleep(), falling_asleep, self.limit, error=ActorLostError)
        # only now: when the last engine has left, the learner moves its states to the GPUs
        self._turns.leave(slot.index)
        await self._turns.enter(slot.index)
        assert slot.version is not None
        # the conditions of `_wait_until_update_allowed`, but without waiting: the engine wakes now in any case
        free = slot.unpinned.is_set() and all(other.idle.is_set() for other in self._list_blocking_slots(slot))
        if free and self._weights.find_newest_version(node) > slot.version:
            slot.update()
            slot.serve(await self._update(slot, actor, node))
        else:
            # the slot last: until the engine answers, it generates nothing and must not count as hung
            await self._wake(slot, actor)
            slot.wake()

    async def _wake(self, slot: ActorSlot, actor: Actor) -> None:
        await wait_within(actor.wake(), f"actor {slot.index} wakes", self.limit, error=ActorLostError)

    def _list_blocking_slots(self, slot: ActorSlot) -> Sequence[ActorSlot]:
        """Return the slots that have to be idle before the actor of `slot` may take new weights."""
        # `in_flight` waits for nobody: an engine continues its responses under the new weights
        return {"barrier": self._slots, "static": self._slots, "drained": [slot]}.get(self.mode, [])

    async def _wait_until_update_allowed(self, slot: ActorSlot, node: str) -> None:
        """Wait until there are newer weights and the actor may take them, given `mode` and the pins of validations."""
        assert slot.version is not None
        await self._weights.wait_for_newer(slot.version, node, self.limit)
        while True:
            await slot.unpinned.wait()
            # one after the other is enough: an idle slot gets no samples while its weights are old (`Fleet._can_take`)
            for other in self._list_blocking_slots(slot):
                await other.idle.wait()
            if slot.unpinned.is_set():  # it may have been pinned during the wait for idle actors
                return

    async def _update(self, slot: ActorSlot, actor: Actor, node: str) -> int:
        """Let the actor of `slot` take the newest weights on its node, and return their version.

        Raises:
            ActorLostError: it does not respond, or loaded other weights than the learner wrote.
        """
        with self._weights.open(node) as (version, path):
            update = await wait_within(
                actor.update(str(path), version, keep_cache=self._keep_cache),
                f"an actor takes the weights of version {version}",
                self.limit,
                error=ActorLostError,
            )
        if update.contents != (expected := self._weights.contents(version)):
            raise ActorLostError(
                f"actor {slot.index} loaded other weights than version {version} of the policy: "
                f"{update.contents.differs_from(expected)}"
            )
        self._receiver.on_update(update)
        return version
