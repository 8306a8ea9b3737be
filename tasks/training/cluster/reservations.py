"""Reserves GPUs and CPUs of a cluster by Ray's placement groups, which `placement` plans."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tasks.machine.groups import ACTORS, LEARNER
from tasks.recipe.run import TrainingConfig
from tasks.training.cluster.placement import (
    Bundle,
    judge_bundle,
    limit_to_group,
    list_cluster_nodes,
    make_engine_bundle,
    make_rank_bundle,
    make_shared_bundle,
    plan,
    plan_of_shared,
)

if TYPE_CHECKING:
    from ray.util.placement_group import PlacementGroup


class PlacementGroups:
    """The placement groups of one run. Ray waits for the resources of each."""

    def __init__(self, config: TrainingConfig) -> None:
        self._config = config
        self._nodes = list_cluster_nodes()
        self._groups: set[PlacementGroup] = set()

    def reserve(self, bundles: list[Bundle], strategy: str) -> PlacementGroup:
        """Create a placement group, and return it at once. Ray reserves its resources when they are free."""
        from ray.util import placement_group

        group = placement_group(bundles, strategy)
        self._groups.add(group)
        return group

    def release(self, group: PlacementGroup) -> None:
        """Remove a placement group and free its resources."""
        from ray.util import remove_placement_group

        self._groups.discard(group)
        remove_placement_group(group)

    def shutdown(self) -> None:
        """Remove all placement groups."""
        # a copy, because `release` changes the set
        for group in list(self._groups):
            self.release(group)

    def _reserve_for_judge(self, gpus: int, group: str | None) -> Any:
        """Return Ray's scheduling strategy for a judge on machines of a group, or of the actors' if it is None."""
        bundle = limit_to_group(judge_bundle(gpus), group or ACTORS, self._nodes)
        return make_strategy(self.reserve([bundle], "STRICT_PACK"))


def make_strategy(group: PlacementGroup, bundle: int = 0) -> Any:
    """Return Ray's scheduling strategy for a process in a bundle of a placement group."""
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    return PlacementGroupSchedulingStrategy(group, bundle)


class SharedPlacement(PlacementGroups):
    """The placement group of one run whose ranks and engines share GPUs, on one node or several.

    Attributes:
        gpus: the fraction of a GPU that a rank or an engine requests from Ray.
    """

    gpus = 0.5

    def __init__(self, config: TrainingConfig) -> None:
        super().__init__(config)
        bundle = limit_to_group(make_shared_bundle(config), LEARNER, self._nodes)
        # PACK prefers few nodes, but takes several if no node has room for all
        self._group = self.reserve([bundle] * config.learner.ranks, "PACK")

    def of(self, index: int) -> Any:
        """Return Ray's scheduling strategy for engine `index` and for the rank that is created after `index` others."""
        return make_strategy(self._group, index)

    def choose_judge_strategy(self, gpus: int) -> Any:
        """Return Ray's scheduling strategy for the process of a judge on several nodes, with GPUs that are not shared.

        These GPUs are requested after the ranks' GPUs. The cluster was checked to have both.
        """
        return self._reserve_for_judge(gpus, plan_of_shared(self._config, self._nodes, gpus).judge)


class Placement(PlacementGroups):
    """The placement groups of one run on a cluster of several nodes with GPUs."""

    def __init__(self, config: TrainingConfig) -> None:
        super().__init__(config)
        self._ranks = plan(config, self._nodes).ranks
        self._learner: PlacementGroup | None = None
        self.learner_runs = asyncio.Event()
        self.learner_waits = asyncio.Event()

    def choose_rank_strategy(self, created: int) -> Any:
        """Return Ray's scheduling strategy for the rank that is created after `created` others."""
        # all bundles except the last have as many ranks as the first
        return make_strategy(self._ensure_learner_group(), created // self._ranks[0])

    def _ensure_learner_group(self) -> PlacementGroup:
        if self._learner is None:
            learner = self._config.learner
            bundles = [limit_to_group(make_rank_bundle(learner, ranks), LEARNER, self._nodes) for ranks in self._ranks]
            self._learner = self.reserve(bundles, "STRICT_SPREAD")
        return self._learner

    def choose_judge_strategy(self, gpus: int) -> Any:
        """Return Ray's scheduling strategy for the process of a judge, which gets its GPUs after the learner."""
        # Ray gets the request of the learner first, so that the judge takes no GPUs that ranks need
        self._ensure_learner_group()
        return self._reserve_for_judge(gpus, plan(self._config, self._nodes, gpus).judge)

    @contextlib.contextmanager
    def keep_gpus_for_learner(self) -> Iterator[None]:
        """Keep GPUs from waiting engines within the block, in which all ranks get their GPUs.

        If the block raises, engines have to wait until the block is entered again for the next ranks.
        """
        self.learner_runs.clear()
        self.learner_waits.set()
        # no `finally`: after an error the ranks still wait, and engines may not take the GPUs meanwhile
        yield
        self.learner_waits.clear()
        self.learner_runs.set()

    def engine(self) -> EngineReservation:
        """Return a reservation of GPUs and CPUs for a new engine. They are requested by its `wait_until_granted`."""
        return EngineReservation(self, limit_to_group(make_engine_bundle(self._config.actors), ACTORS, self._nodes))


class EngineReservation:
    """The GPUs and CPUs of one engine, as a placement group that is requested when `wait_until_granted` is called."""

    def __init__(self, placement: Placement, bundle: Bundle) -> None:
        self._placement = placement
        self._bundle = bundle
        self._group: PlacementGroup | None = None

    async def wait_until_granted(self) -> None:
        """Wait until the resources are reserved. While the learner waits for resources, the request is withdrawn."""
        while True:
            await self._placement.learner_runs.wait()
            self._group = self._placement.reserve([self._bundle], "STRICT_PACK")
            ready = asyncio.ensure_future(self._group.ready())
            learner_waits = asyncio.ensure_future(self._placement.learner_waits.wait())
            try:
                await asyncio.wait([ready, learner_waits], return_when=asyncio.FIRST_COMPLETED)
            finally:
                ready.cancel()
                learner_waits.cancel()
            # both may have happened: then the learner goes first, and the engine returns what it got
            if not self._placement.learner_waits.is_set():
                ready.result()
                return
            self.release()

    @property
    def strategy(self) -> Any:
        """Ray's scheduling strategy for the actor of the engine."""
        assert self._group is not None, "wait_until_granted() has returned"
        return make_strategy(self._group)

    def release(self) -> None:
        """Free the resources, or withdraw the request for them."""
        if self._group is not None:
            self._placement.release(self._group)
            self._group = None
