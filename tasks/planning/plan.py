"""Computes a capacity plan of a recipe on given machines: memory, speed, idle shares and duration.

Memory is computed by ZeRO's formula, and the speeds of engines and learner by a roofline model (`roofline`). A run in
virtual time with the real controller and fleet (`run`) shows how long each waits for the other. Nothing is measured.
The speed is an upper bound: scoring, code tests, restarts, slow machines and engines' communication take no time.
The time to move data that is offloaded to main memory is not counted.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import ceil

from tasks.failures import InfrastructureError
from tasks.planning.measured import ASSUMED, WeightRates
from tasks.planning.simulated_actors import ClockLearner, EngineClock, estimate_mean_context, make_length_sampler
from tasks.planning.simulated_run import Simulated, Workload, simulate
from tasks.recipe.run import TrainingConfig
from tasks.sizing import roofline
from tasks.sizing.gpu_memory_fit import PlanError, check_memory, compute_cache_room, learner_room
from tasks.sizing.pod_sizes import MEAN_SHARE
from tasks.sizing.rank_memory import LearnerMemory, estimate_learner_memory
from tasks.sizing.roofline import GB, Architecture, Gpu

RESPONSES = 40_000
"""Approximate number of responses that are simulated, within a minute; the second half is measured."""
STEPS = (4, 24)
"""Smallest and largest number of optimizer steps that are simulated."""
SHARED_PACE = 0.5
"""Relative speed of a learner rank or an engine while the other also computes on the same GPU."""
BOTH_WAIT = 0.2
"""Share of idle time of both learner and actors above which neither of them limits the speed."""
SPLITS = 3
"""Number of simulated splits of the nodes: the best ones by the roofline model."""


@dataclass(frozen=True)
class Machines:
    """The machines of a plan, and their utilization.

    Attributes:
        gpu: datasheet of each GPU.
        gpus_per_node: number of GPUs of a machine.
        mfu: fraction of a GPU's peak operations that the learner reaches. Optional. If None, `roofline.learner_mfu`.
        mbu: fraction of a GPU's bandwidth that an engine reaches during decoding.
        weights: rates at which the learner writes weights, and engines load them. Transfers between nodes are not
            counted.
        host: bytes/s at which states leave a GPU for main memory, and at which they return, with time sharing. On a
            machine with an H200, 14 and 43 GB/s were measured; 20 is what PCIe 4 allows.
        layer_seconds: seconds per layer in a decoding step, for launching kernels and synchronizing GPUs: eagerly, and
            as graphs. These are orders of magnitude, not measurements: an engine's measured step time is better.
        prefill_mfu: fraction of a GPU's peak operations that an engine reaches when it computes prompts.
    """

    gpu: Gpu
    gpus_per_node: int = 8
    mfu: float | None = None
    mbu: float = roofline.MBU
    weights: WeightRates = ASSUMED
    host: tuple[float, float] = (14 * GB, 20 * GB)
    layer_seconds: tuple[float, float] = (2e-4, 3e-5)
    prefill_mfu: float = roofline.PREFILL_MFU


@dataclass(frozen=True)
class Prompts:
    """The expected responses.

    Attributes:
        mean_tokens: mean length of a response. Optional. If None, `MEAN_SHARE` of the limit.
        zero_variance: share of the groups that are replaced because all their scores are equal.
    """

    mean_tokens: float | None = None
    zero_variance: float = 0.3

    def mean(self, longest: int) -> float:
        """Return the mean length of responses of at most `longest` tokens.

        Raises:
            PlanError: `mean_tokens` is more than `longest`.
        """
        mean = self.mean_tokens or MEAN_SHARE * longest
        if not 0 < mean <= longest:
            raise PlanError(f"a mean length of {mean:g} tokens is not within sampling.max_tokens = {longest}")
        return mean

    def lengths(self, longest: int, seed: int) -> Callable[[], int]:
        """Return a function that samples lengths of responses of at most `longest` tokens."""
        chance = random.Random(seed)
        return make_length_sampler(chance, self.mean(longest), longest)

    def context(self, longest: int) -> float:
        """Return the mean number of tokens of a response in flight."""
        return estimate_mean_context(self.lengths(longest, seed=0))


@dataclass(frozen=True)
class Plan:
    """The computed needs and speeds of a recipe.

    Attributes:
        machines: the machines, and the rates that the plan assumes.
        learner, learner_room: memory that a rank needs, and may use, bytes.
        weights, kv_room: memory of an engine for its weights, and for its KV cache, bytes.
        sequences: number of sequences that fit into an engine at a time, at the mean length of sequences in flight.
        engine: speed of the engine.
        learner_rate: speed of the learner while it computes, tokens/s.
        moved: with time sharing, bytes of the learner's states that leave the GPU while the engine generates, else 0.
        turn_seconds: with time sharing, seconds to switch to the engine and back, without computing, else 0.
        simulated: throughput, idle shares and staleness of the run in virtual time.
        judgements: number of scored responses per second.
        days, gpu_hours: duration of all steps.
    """

    config: TrainingConfig
    machines: Machines
    nodes: int
    learner: LearnerMemory
    learner_room: float
    weights: float
    kv_room: float
    sequences: int
    engine: EngineClock
    learner_rate: float
    moved: float
    turn_seconds: float
    simulated: Simulated
    judgements: float
    days: float
    gpu_hours: float

    @property
    def gpus(self) -> int:
        """Number of GPUs of the learner and of all engines."""
        return self.config.gpus

    @property
    def bottleneck(self) -> str:
        """The side that limits the speed, generation or learning, and what the other side waits for.

        If both wait for much of the time, neither does: the options that keep them apart are named.
        """
        if min(self.simulated.learner_idle, self.simulated.actors_idle) > BOTH_WAIT:
            config = self.config
            return (
                f"neither: each waits for the other, with async_steps = {config.async_steps} batches sampled ahead and "
                f"tokens of at most max_staleness = {config.max_staleness} versions before: raise both"
            )
        if self.simulated.learner_idle > self.simulated.actors_idle:
            return "generation: the learner waits for groups"
        return "learning: actors wait for room in the window"


def plan(config: TrainingConfig, model: Architecture, machines: Machines, prompts: Prompts = Prompts()) -> Plan:
    """Return the plan of `config` on `machines`, with the learner ranks and the actors of the recipe.

    Raises:
        PlanError: the recipe does not fit, or most groups are too old by the time they would be trained on.
        DenseAttentionError: rows are too long for the attention that GPUs have for the learner's type.
    """
    check_memory(config, model, machines.gpu)
    memory = estimate_learner_memory(model, config)
    cache, clock = _estimate_engine(config, model, machines, prompts)
    rate = _estimate_learner_rate(config, model, machines, prompts)
    weights = float(roofline.WEIGHT * model.parameters)
    publish = 0.0 if config.lora else weights / machines.weights.write  # an adapter is a few MB
    moved = memory.states if config.takes_turns else 0.0
    offload, reload = (moved / speed for speed in machines.host)
    learner = ClockLearner(rate, publish_seconds=publish, offload_seconds=offload, reload_seconds=reload)
    simulated = _run_simulation(config, clock, learner, prompts)
    seconds = config.steps * simulated.step_seconds
    return Plan(
        config=config,
        machines=machines,
        nodes=_count_nodes(config, machines.gpus_per_node),
        learner=memory,
        learner_room=learner_room(config, model, machines.gpu),
        weights=weights,
        kv_room=cache,
        sequences=clock.max_num_seqs,
        engine=clock,
        learner_rate=rate,
        moved=moved,
        turn_seconds=offload + reload + clock.sleep_seconds + clock.wake_seconds,
        simulated=simulated,
        judgements=simulated.tokens_per_second / prompts.mean(config.sampling.max_tokens),
        days=seconds / 86_400,
        gpu_hours=seconds / 3600 * config.gpus,
    )


def _count_nodes(config: TrainingConfig, per_node: int) -> int:
    """Return the number of machines: one if all GPUs are on it, otherwise learner and actors have separate machines."""
    learner = ceil(config.learner.ranks / per_node)
    if config.shares_gpus or config.gpus <= per_node:
        return learner
    return learner + ceil((config.gpus - config.learner.ranks) / per_node)


def _compute_pace(config: TrainingConfig) -> float:
    """Return the relative speed of a process on a GPU: one half if an engine and a rank both compute on it."""
    return SHARED_PACE if config.placement == "shared" else 1.0


def _estimate_engine(
    config: TrainingConfig, model: Architecture, machines: Machines, prompts: Prompts
) -> tuple[float, EngineClock]:
    """Return the number of bytes for an engine's KV cache, and the engine's speed."""
    engine = config.actors.engine
    gpus, context = engine.gpus_of_replica, prompts.context(config.sampling.max_tokens)
    cache = compute_cache_room(config, model, machines.gpu)
    weights = roofline.WEIGHT * model.parameters
    fitting = max(1, min(engine.max_num_seqs, int(cache / model.compute_kv_cache_bytes(context))))
    base, per_sequence = roofline.decode_seconds(
        model,
        machines.gpu,
        gpus=gpus,
        context=context,
        efficiency=machines.mbu * _compute_pace(config),
        sequences=fitting,
    )
    base += model.layers * machines.layer_seconds[0 if engine.is_eager(gpu=True) else 1]
    clock = EngineClock(
        base,
        per_sequence / engine.replicas,
        fitting * engine.replicas,
        update_seconds=0.0 if config.lora else weights / (gpus * machines.weights.load),  # each loads its share
    )
    if not config.takes_turns:
        return cache, clock
    return cache, replace(
        clock,
        sleep_seconds=weights / machines.host[0],
        wake_seconds=weights / machines.host[1],
        prefill_tokens_per_second=machines.gpu.flops * machines.prefill_mfu / model.forward_flops(context),
    )


def _estimate_learner_rate(config: TrainingConfig, model: Architecture, machines: Machines, prompts: Prompts) -> float:
    mfu = roofline.learner_mfu(model) if machines.mfu is None else machines.mfu
    return roofline.estimate_learner_tokens_per_second(
        model,
        machines.gpu,
        ranks=config.learner.ranks,
        context=prompts.context(config.sampling.max_tokens),
        checkpointing=config.learner.gradient_checkpointing,
        mfu=mfu * _compute_pace(config),
        reference=config.objective.kl.in_loss,
    )


def find_best_split(
    config: TrainingConfig, model: Architecture, machines: Machines, nodes: int, prompts: Prompts = Prompts()
) -> Plan:
    """Return the plan with the shortest steps among the splits of `nodes` between learner and actors.

    First the rates of learner and actors are balanced by the roofline model; then the best few of these splits are
    simulated, and the recipe's own: with a small window, engines run fewer sequences than the model assumes.

    Raises:
        PlanError: no split works; the message is the reason of the last one.
    """
    if config.shares_gpus:
        raise PlanError(
            f"placement = {config.placement}: learner and actors are on the same GPUs, and there is nothing to split"
        )
    reasons, rated = [], []
    for learner_nodes in range(1, nodes):
        try:
            candidate = _split(config, machines, learner_nodes, nodes - learner_nodes)
            check_memory(candidate, model, machines.gpu)
            rated.append((_estimate_balanced_rate(candidate, model, machines, prompts), candidate))
        except PlanError as error:
            reasons.append(error)
    plans = []
    balanced = [candidate for _, candidate in sorted(rated, key=lambda candidate: -candidate[0])]
    own = [one for one in balanced[SPLITS:] if _count_processes(one) == _count_processes(config)]
    for candidate in balanced[:SPLITS] + own:
        try:
            plans.append(plan(candidate, model, machines, prompts))
        except PlanError as error:
            reasons.append(error)
    if not plans:
        raise reasons[-1] if reasons else PlanError(f"{nodes} nodes are too few: learner and actors need one each")
    return min(plans, key=lambda candidate: candidate.simulated.step_seconds)


def _count_processes(config: TrainingConfig) -> tuple[int, int]:
    return config.learner.ranks, config.actors.count


def _split(config: TrainingConfig, machines: Machines, learner_nodes: int, actor_nodes: int) -> TrainingConfig:
    per_node = machines.gpus_per_node
    per_engine = config.actors.engine.gpus
    count = actor_nodes * per_node // per_engine
    if count == 0:
        raise PlanError(f"an engine needs {per_engine} GPUs, and {actor_nodes} nodes have {actor_nodes * per_node}")
    return config.model_copy(
        update={
            "learner": config.learner.model_copy(update={"ranks": learner_nodes * per_node}),
            "actors": config.actors.model_copy(update={"count": count}),
        }
    )


def _estimate_balanced_rate(config: TrainingConfig, model: Architecture, machines: Machines, prompts: Prompts) -> float:
    """Return the trained tokens/s of the slower side, learner or engines, if neither ever waited."""
    _, clock = _estimate_engine(config, model, machines, prompts)
    running = clock.max_num_seqs
    generated = config.actors.count * running / (clock.step_seconds + clock.sequence_seconds * running)
    return min((1 - prompts.zero_variance) * generated, _estimate_learner_rate(config, model, machines, prompts))


def _run_simulation(config: TrainingConfig, engine: EngineClock, learner: ClockLearner, prompts: Prompts) -> Simulated:
    actors = config.actors.model_copy(
        update={
            "engine": config.actors.engine.model_copy(
                update={"max_num_seqs": engine.max_num_seqs // config.actors.engine.replicas}
            )
        }
    )
    fewest, most = STEPS
    steps = min(most, max(fewest, RESPONSES // (config.groups_per_step * config.sampling.samples)))
    config = config.model_copy(
        update={
            "steps": max(steps, 3 * config.async_steps),
            "actors": actors,
            "checkpoint_every": 10**9,
            "recover_every": None,
            "stall_seconds": 10**9,
        }
    )
    lengths = prompts.lengths(config.sampling.max_tokens, config.seed)
    workload = Workload(lengths, zero_variance=prompts.zero_variance)
    try:
        with _silence():
            simulated = simulate(config, engine, learner, workload, config.seed)
    except InfrastructureError as error:
        raise PlanError(f"the run would stall: {error}") from None
    if simulated.stale > 0.5 and not config.samples_in_rounds:  # the surplus of a round may be discarded
        raise PlanError(
            f"{simulated.stale:.0%} of the groups would be older than max_staleness = {config.max_staleness} when "
            "their turn comes: raise it, or lower async_steps"
        )
    return simulated


@contextmanager
def _silence() -> Iterator[None]:
    """Disable the warnings of a simulated run, which waits for hours of virtual time."""
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
