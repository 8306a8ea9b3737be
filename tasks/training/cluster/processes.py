"""Creates the Ray actors of a training run, and checks that the cluster has the cores and GPUs that they reserve."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

from tasks.failures import MistakeError
from tasks.generation.interface import sample_seed
from tasks.kubernetes.pods import CORES_A_GPU
from tasks.machine import cpu_variables
from tasks.machine.groups import ACTORS, LEARNER, are_grouped
from tasks.machine.memory_limit import find_shortage
from tasks.machine.ray_memory import RayMemory
from tasks.machine.resources import Machine, read_ray_resources
from tasks.recipe.learner import check_attention, check_dense_attention, check_liger
from tasks.recipe.routing_replay import check_routing_replay
from tasks.recipe.run import TrainingConfig
from tasks.sizing.roofline import find_architecture
from tasks.storage.uploads import Uploads
from tasks.training.actors.process import ActorLostError, ActorProcess, RayActor
from tasks.training.actors.rewards import RayJudge, RewardProcess
from tasks.training.cluster.placement import (
    Bundle,
    describe_lack,
    describe_lack_without_gpus,
    describe_shared_lack,
    limit_to_group,
    list_cluster_nodes,
)
from tasks.training.cluster.relay import RelayNodes
from tasks.training.cluster.reservations import Placement, SharedPlacement
from tasks.training.groups.group import Prompt
from tasks.training.learner.client import RayLearner
from tasks.training.learner.rank import LearnerRank
from tasks.training.learner.rank_files import RankFiles
from tasks.verifiers import VerifiersConfig, collect_verifiers

logger = logging.getLogger(__name__)


class ResourceError(MistakeError):
    """The cluster has too few resources for the configuration."""


def check_resources(config: TrainingConfig, *, resuming: bool = False, judge_gpus: int = 0) -> None:
    """Check that learner, actors, and a judge with `judge_gpus` GPUs fit on the current Ray cluster.

    With `resuming`, one actor is enough to begin with, and a warning is logged if not all fit.

    Raises:
        ResourceError: they do not fit. The message names the options and the cluster's resources, by node if several
            nodes have GPUs.
        DenseAttentionError: rows are too long for the attention that GPUs support for the learner's dtype.
        MistakeError: `learner.liger` is true, or `learner.attention` is fa4, and its kernels cannot run, or
            `routing_replay`, and no engine has a GPU.
    """
    available = read_ray_resources()
    learner, actors = config.learner, config.actors
    gpus, per_engine = available.gpus, actors.engine.gpus
    if per_engine > 1 and not gpus:
        raise ResourceError(f"actors.engine.{actors.engine.parallel_sizes}: the cluster has no GPU")
    if config.takes_turns and not gpus:
        raise ResourceError("placement = time_shared: the cluster has no GPU; placement = auto needs none")
    check_liger(learner, gpu=bool(gpus))
    check_attention(learner, gpu=bool(gpus))
    check_routing_replay(config, gpu=bool(gpus))
    if gpus and learner.dtype == "float32":
        check_dense_attention(learner)
    nodes = list_cluster_nodes()

    def describe_missing(count: int) -> str:
        if config.shares_gpus:
            return describe_shared_lack(config, nodes, judge_gpus)
        if gpus and len(nodes) > 1:
            return describe_lack(config, nodes, count, judge_gpus)
        if are_grouped(node.free for node in nodes):
            return describe_lack_without_gpus(config, nodes, count)
        return _describe_total_lack(config, available, count, judge_gpus)

    if need := describe_missing(actors.count):
        if not resuming or describe_missing(1):
            raise ResourceError(need)
        logger.warning("%s: the run continues with the actors that fit", need)


def _describe_total_lack(config: TrainingConfig, available: Machine, count: int, judge_gpus: int) -> str:
    """Return a message about the resource that learner, judge and `count` actors lack, or an empty string if none."""
    learner, actors = config.learner, config.actors
    cores = learner.ranks * learner.cpus + count * actors.cpus
    gpus = learner.ranks + count * actors.engine.gpus + judge_gpus if available.gpus else 0  # none are shared
    judge = f" and a judge that the run serves on {judge_gpus} GPUs" if judge_gpus and available.gpus else ""
    for kind, needed, total in (("CPU", cores, available.cores), ("GPU", gpus, available.gpus)):
        if needed > total:
            return (
                f"learner.ranks = {learner.ranks} (learner.cpus = {learner.cpus:g} each) and actors.count = "
                f"{actors.count} (actors.cpus = {actors.cpus:g} each){judge} need {needed:g} {kind}s, and the cluster "
                f"has {total:g}"
            )
    return ""


def verifiers_of_prompts(prompts: list[Prompt]) -> set[str]:
    """Return the names of the verifiers that score responses to these prompts."""
    return {name for prompt in prompts for name in collect_verifiers(prompt.verifier, prompt.ground_truth)}


class RunProcesses:
    """The Ray actors of one run: learner ranks, engines and the reward process.

    On a single node all actors are pinned to it. On several nodes the reward process runs on the controller's node. If
    there are GPUs, a `Placement` assigns ranks and engines to nodes, and relays copy the model there. If the reward
    process serves a judge on GPUs, Ray reserves them, and the placement assigns it to a node that has them. A
    `SharedPlacement` assigns ranks and engines that share GPUs. Without GPUs, each requests a machine of its group.

    Ray's task events are switched off for the actors, because its store would keep 100,000 of them.

    Attributes:
        memory: memory of the nodes.
    """

    def __init__(
        self,
        config: TrainingConfig,
        model: Path,
        folder: Path,
        begins_at: int,
        where: str | RelayNodes,
        storage: Uploads | None = None,
    ) -> None:
        """Prepare to create actors.

        Args:
            config: the options of the run.
            model: folder of the initial model, on this node.
            folder: the run folder.
            begins_at: version of the policy that the run begins with.
            where: id of the node that all actors are pinned to, which has the model and the weights. If there are
                several nodes, their relays. Ray then chooses nodes.
            storage: blob storage for checkpoint shards, used by ranks on nodes that do not see the run folder. None if
                the run has no address on blob storage.
        """
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self._ray = ray
        self._relays = None if isinstance(where, str) else where
        self.memory = RayMemory(self._relays)
        self._where = NodeAffinitySchedulingStrategy(where, soft=False) if isinstance(where, str) else "DEFAULT"
        self._config = config
        self._model = str(model.absolute())
        self._files = RankFiles(folder, storage, self._relays)
        self._begins_at = begins_at
        self._gpus = read_ray_resources().gpus > 0
        shares = config.shares_gpus
        self._shared = SharedPlacement(config) if shares else None
        self._placement = Placement(config) if self._gpus and self._relays and not shares else None
        self._nodes = list_cluster_nodes() if self._relays and not self._gpus else []
        own = ray.get_runtime_context().get_node_id() if self._relays else None
        self._judge_where = NodeAffinitySchedulingStrategy(own, soft=False) if own else self._where
        self._handles: list[Any] = []
        self._loading: dict[int, RayActor] = {}
        self._caches: dict[int, int] = {}  # bytes of the first engine's KV cache, by slot

    def start_actors(self) -> None:
        """Create the first actors, so that engines load while the learner does. `make_actor` returns them first."""
        self._loading = {index: self._create_actor(index, 0) for index in range(self._config.actors.count)}

    async def wait_until_engines_loaded(self) -> None:
        """Wait for the first engines if each shares its GPU with a learner rank, which has to start after the engine.

        While it loads, vLLM measures the GPU's free memory, and a rank that allocates or frees memory would distort the
        result. With time sharing, the engines then sleep. A lost engine raises no error, because the fleet replaces it.
        """
        if self._shared:
            await asyncio.gather(*map(self._wait_until_engine_loaded, list(self._loading)))

    async def _wait_until_engine_loaded(self, index: int) -> None:
        actor = self._loading[index]
        try:
            await actor.placed()
            await actor.start()
            if self._config.takes_turns:
                await actor.sleep()
        except ActorLostError as error:
            logger.warning("actor %d is replaced: %s", index, error)
            if find_shortage(error) is None:  # the fleet will get this error and count it
                del self._loading[index]
            await actor.kill()  # it may still use the GPU that the rank needs

    def make_actor(self, index: int, attempt: int) -> RayActor:
        """Return an unused actor for slot `index`, whose previous actor has been killed."""
        return self._loading.pop(index, None) or self._create_actor(index, attempt)

    def _create_actor(self, index: int, attempt: int) -> RayActor:
        options = self._config.actors
        # No two engines may sample the same responses to a prompt, nor an engine after it was replaced or resumed.
        seed = sample_seed(options.engine.seed, f"engine {index} from {self._begins_at}", attempt)
        changes = {"seed": seed} | self._make_cache_option(index)
        options = options.model_copy(update={"engine": options.engine.model_copy(update=changes)})
        reservation = self._placement.engine() if self._placement else None

        def create() -> Any:
            remote = self._ray.remote(ActorProcess).options(
                num_cpus=options.cpus,
                num_gpus=self._compute_gpu_share(options.engine.gpus),
                resources=self._make_resources(ACTORS),
                max_concurrency=10_000,
                max_task_retries=-1,  # a short network failure is not a loss if Ray considers the actor alive
                enable_task_events=False,
                scheduling_strategy=reservation.strategy if reservation else self._beside(index),
            )
            return self._keep(remote.remote(self._config.model_copy(update={"actors": options}), self._model))

        prepare = self._relays.prepare if self._relays else None
        return RayActor(
            create,
            options,
            reservation,
            prepare,
            self.memory,
            loads_at_once=not self._config.takes_turns,
            report_cache=partial(self._caches.setdefault, index) if self._config.placement == "shared" else None,
        )

    def _make_cache_option(self, index: int) -> dict[str, Any]:
        """Return the option that gives an engine the KV cache of its slot's first engine, or nothing before that.

        A replacement starts next to a rank that computes. vLLM would measure the GPU's free memory: memory that the
        rank frees meanwhile is an error, and memory that it takes makes the cache smaller.
        """
        if index not in self._caches:
            return {}
        return {"vllm": self._config.actors.engine.vllm | {"kv_cache_memory_bytes": self._caches[index]}}

    def make_learner(self) -> RayLearner:
        """Return the learner. Its ranks are not started yet."""
        placement = self._placement
        first: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext
        if placement:
            first = placement.keep_gpus_for_learner

        def create(rank: int) -> Any:
            remote = self._ray.remote(LearnerRank).options(
                num_cpus=self._config.learner.cpus,
                num_gpus=self._compute_gpu_share(1),
                resources=self._make_resources(LEARNER),
                runtime_env={} if self._gpus else {"env_vars": cpu_variables.LEARNER},
                max_task_retries=-1,  # as for engines; a repeated call does not take a step twice
                enable_task_events=False,
                scheduling_strategy=placement.choose_rank_strategy(rank) if placement else self._beside(rank),
            )
            return self._keep(remote.remote(self._config, self._model))

        shape = find_architecture(Path(self._model))
        return RayLearner(create, self._config, first, self._files, shape, self.memory)

    def make_judge(self, verifiers: VerifiersConfig, prompts: list[Prompt]) -> RayJudge:
        """Return the client of a reward process. Ray replaces the process when it dies, and repeats lost calls."""
        config, names = self._config, verifiers_of_prompts(prompts)
        gpus = verifiers.gpus(names) if self._gpus else 0
        rewards, where, reserved = config.rewards, self._judge_where, 0.0
        placement = self._placement or (self._shared if self._relays else None)
        if placement and gpus:
            where = placement.choose_judge_strategy(gpus)
            rewards = rewards.model_copy(update={"workers": rewards.workers or CORES_A_GPU * gpus})
        elif not placement:
            reserved = config.learner.ranks * config.learner.cpus + config.actors.count * config.actors.cpus
        remote = self._ray.remote(RewardProcess).options(
            num_cpus=0,
            num_gpus=gpus,
            max_concurrency=10_000,
            max_restarts=-1,
            max_task_retries=3,
            enable_task_events=False,
            scheduling_strategy=where,
        )
        return RayJudge(self._keep(remote.remote(rewards, verifiers, sorted(names), reserved)), rewards, self.memory)

    def _compute_gpu_share(self, gpus: int) -> float:
        """Return the number of GPUs that a process on `gpus` GPUs requests from Ray."""
        return self._shared.gpus if self._shared else gpus * self._gpus

    def _make_resources(self, group: str) -> Bundle:
        """Return the resources that a process of a group requests in addition to CPUs if no placement reserves them."""
        return limit_to_group({}, group, self._nodes)

    def _beside(self, index: int) -> Any:
        """Return the scheduling strategy of rank `index` and engine `index` if there is no `Placement`."""
        return self._shared.of(index) if self._shared else self._where

    def _keep(self, handle: Any) -> Any:
        self._handles.append(handle)
        return handle

    def shutdown(self) -> None:
        """Kill every actor, and free their reserved resources."""
        for handle in self._handles:
            self._ray.kill(handle)
        for placement in (self._placement, self._shared):
            if placement:
                placement.shutdown()
