"""The Ray actors of a training run, and the check that the cluster has the cores and GPUs that they reserve."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

from tasks.failures import MistakeError
from tasks.generation.interface import sample_seed
from tasks.machine import cpu_environment
from tasks.training.actors.process import ActorProcess, RayActor
from tasks.training.cluster.placement import Placement, cluster_nodes, lack
from tasks.training.cluster.relay import RelayNodes
from tasks.training.config import TrainingConfig
from tasks.training.groups.group import Prompt
from tasks.training.learner.client import RayLearner
from tasks.training.learner.config import check_dense_attention, check_liger
from tasks.training.learner.rank import LearnerRank
from tasks.training.rewards import RayJudge, RewardProcess
from tasks.verifiers import VerifiersConfig, verifiers_of

logger = logging.getLogger(__name__)


class ResourceError(MistakeError):
    """The cluster cannot hold what the configuration asks for."""


def check_resources(config: TrainingConfig, *, resuming: bool = False) -> None:
    """Check that the Ray cluster as it stands can hold learner and actors.

    With `resuming` one actor is enough to begin with, and a warning is logged where not all fit.

    Raises:
        ResourceError: it cannot; names the options and what the cluster has, by node where there are several with GPUs.
        DenseAttentionError: rows are too long for the attention that GPUs have for the learner's type.
        MistakeError: `learner.liger` is true, and its kernel cannot run.
    """
    import ray

    available = ray.cluster_resources()
    learner, actors = config.learner, config.actors
    gpus, per_engine = available.get("GPU", 0), actors.engine.gpus
    if per_engine > 1 and not gpus:
        raise ResourceError(f"actors.engine.{actors.engine.parallel_sizes}: the cluster has no GPU")
    check_liger(learner, gpu=bool(gpus))
    if gpus and learner.dtype == "float32":
        check_dense_attention(learner)
    nodes = cluster_nodes() if gpus else []

    def lacking(count: int) -> str:
        return lack(config, nodes, count) if len(nodes) > 1 else _lack_in_total(config, available, count)

    if need := lacking(actors.count):
        if not resuming or lacking(1):
            raise ResourceError(need)
        logger.warning("%s: the run goes on with the actors that find room", need)


def _lack_in_total(config: TrainingConfig, available: dict[str, float], count: int) -> str:
    """Return which resource the learner and `count` actors need more of than is available; empty: none."""
    learner, actors = config.learner, config.actors
    needed = {"CPU": learner.ranks * learner.cpus + count * actors.cpus}
    if available.get("GPU"):
        needed["GPU"] = learner.ranks + count * actors.engine.gpus
    for kind, amount in needed.items():
        if amount > available.get(kind, 0):
            return (
                f"learner.ranks = {learner.ranks} (learner.cpus = {learner.cpus:g} each) and actors.count = "
                f"{actors.count} (actors.cpus = {actors.cpus:g} each) need {amount:g} {kind}s, and the cluster has "
                f"{available.get(kind, 0):g}"
            )
    return ""


class RunProcesses:
    """The Ray actors of one run: learner ranks, engines and the reward process.

    On one node all are pinned to it. On several the reward process is on the controller's, a `Placement` gives ranks
    and engines their nodes where there are GPUs, and relays bring the model there.

    Ray's record of the calls to them is switched off, as its store would hold 100,000 of them.
    """

    def __init__(
        self, config: TrainingConfig, model: Path, folder: Path, begins_at: int, where: str | RelayNodes
    ) -> None:
        """Prepare to create actors.

        Args:
            config: the options of the run.
            model: folder of the initial model, on this node.
            folder: the run folder.
            begins_at: version of the policy that the run begins with.
            where: id of the node that all are pinned to, which has the model and the weights; or the relays of several
                nodes, of which Ray chooses.
        """
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self._ray = ray
        self._relays = None if isinstance(where, str) else where
        self._where = NodeAffinitySchedulingStrategy(where, soft=False) if isinstance(where, str) else "DEFAULT"
        self._config = config
        self._model = str(model.absolute())
        self._folder = folder
        self._begins_at = begins_at
        self._gpus = ray.cluster_resources().get("GPU", 0) > 0
        self._placement = Placement(config) if self._gpus and self._relays else None
        own = ray.get_runtime_context().get_node_id() if self._relays else None
        self._judge_where = NodeAffinitySchedulingStrategy(own, soft=False) if own else self._where
        self._handles: list[Any] = []
        self._loading: dict[int, RayActor] = {}

    def start_actors(self) -> None:
        """Create the first actors, so that engines load while the learner does; `make_actor` returns these first."""
        self._loading = {index: self._new_actor(index, 0) for index in range(self._config.actors.count)}

    def make_actor(self, index: int, attempt: int) -> RayActor:
        """Return an unused actor for slot `index`; the one that it replaces has been killed."""
        return self._loading.pop(index, None) or self._new_actor(index, attempt)

    def _new_actor(self, index: int, attempt: int) -> RayActor:
        options = self._config.actors
        # No two engines of a run draw the same responses to a prompt, nor does one after it was replaced or resumed.
        seed = sample_seed(options.engine.seed, f"engine {index} from {self._begins_at}", attempt)
        options = options.model_copy(update={"engine": options.engine.model_copy(update={"seed": seed})})
        reservation = self._placement.engine() if self._placement else None

        def create() -> Any:
            remote = self._ray.remote(ActorProcess).options(
                num_cpus=options.cpus,
                num_gpus=options.engine.gpus if self._gpus else 0,
                max_concurrency=10_000,
                max_task_retries=-1,  # a network that is away for seconds is no loss, as long as Ray finds it alive
                enable_task_events=False,
                scheduling_strategy=reservation.strategy if reservation else self._where,
            )
            return self._keep(remote.remote(self._model, options, self._config.lora))

        return RayActor(create, options, reservation, self._relays.prepare if self._relays else None)

    def make_learner(self) -> RayLearner:
        """Return the learner, whose ranks are not started."""
        placement, relays = self._placement, self._relays
        first: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext
        if placement:
            first = placement.learner_first

        def create(rank: int) -> Any:
            remote = self._ray.remote(LearnerRank).options(
                num_cpus=self._config.learner.cpus,
                num_gpus=1 if self._gpus else 0,
                runtime_env={} if self._gpus else {"env_vars": cpu_environment.LEARNER},
                max_task_retries=-1,  # as for engines; a step is not taken twice
                enable_task_events=False,
                scheduling_strategy=placement.of_rank(rank) if placement else self._where,
            )
            return self._keep(remote.remote(self._config, self._model))

        prepare = partial(relays.prepare_learner, run_folder=self._folder) if relays else None
        return RayLearner(create, self._config, first, prepare)

    def make_judge(self, verifiers: VerifiersConfig, prompts: list[Prompt]) -> RayJudge:
        """Return the client of a reward process; Ray replaces it when it dies, and repeats lost calls."""
        names = {name for prompt in prompts for name in verifiers_of(prompt.verifier, prompt.ground_truth)}
        remote = self._ray.remote(RewardProcess).options(
            num_cpus=0,
            max_concurrency=10_000,
            max_restarts=-1,
            max_task_retries=3,
            enable_task_events=False,
            scheduling_strategy=self._judge_where,
        )
        return RayJudge(self._keep(remote.remote(self._config.rewards, verifiers, sorted(names))), self._config.rewards)

    def _keep(self, handle: Any) -> Any:
        self._handles.append(handle)
        return handle

    def shutdown(self) -> None:
        """Kill every actor, and free what was reserved for them."""
        for handle in self._handles:
            self._ray.kill(handle)
        if self._placement:
            self._placement.shutdown()
