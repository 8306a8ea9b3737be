"""Computes the GPU memory that learner ranks and engines need and have, and the values of `placement` that fit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from tasks.failures import MistakeError
from tasks.recipe import gpu_shares
from tasks.recipe.gpu_shares import PlacementOption
from tasks.recipe.learner import LoraConfig, check_dense_attention
from tasks.recipe.run import TrainingConfig
from tasks.sizing.rank_memory import LearnerMemory, estimate_learner_memory
from tasks.sizing.roofline import GB, WEIGHT, Architecture, Gpu, compute_kv_room

RESERVED = 0.1
"""Share of a GPU's memory that a learner rank leaves for libraries, buffers and fragmentation."""
ADAPTER = LoraConfig(rank=32, alpha=64)
"""Adapter that is assumed for a recipe that trains all weights, to compute what would fit with an adapter."""


class PlanError(MistakeError):
    """A recipe cannot work on the given machines; the message names the reason and a remedy."""


@dataclass(frozen=True)
class Need:
    """Memory of a learner rank or of an engine, bytes.

    Attributes:
        needed: minimum that it needs.
        room: maximum that it may use.
    """

    needed: float
    room: float

    @property
    def fits(self) -> bool:
        """Return whether the memory needed is available."""
        return self.needed <= self.room


def learner_room(config: TrainingConfig, model: Architecture, gpu: Gpu) -> float:
    """Return the number of bytes that a learner rank may use on its GPU."""
    return (1 - RESERVED) * config.compute_rank_share(gpu.memory, WEIGHT * model.largest_module) * gpu.memory


def compute_cache_room(config: TrainingConfig, model: Architecture, gpu: Gpu) -> float:
    """Return the number of bytes for an engine's KV cache, below 0 if not even the weights fit."""
    gpus = config.actors.engine.gpus_of_replica
    return compute_kv_room(model, gpu, gpus=gpus, utilization=config.engine_share)


def compute_needs(config: TrainingConfig, model: Architecture, gpu: Gpu) -> tuple[Need, Need]:
    """Return the memory of a learner rank, and of an engine with its weights and one sequence of maximum length.

    Raises:
        DenseAttentionError: rows are too long for the attention that GPUs support for the learner's type.
    """
    if config.learner.dtype == "float32":
        check_dense_attention(config.learner)
    weights = WEIGHT * model.parameters
    longest = model.compute_kv_cache_bytes(config.actors.engine.max_model_len)
    rank = Need(estimate_learner_memory(model, config).total, learner_room(config, model, gpu))
    return rank, Need(weights + longest, weights + compute_cache_room(config, model, gpu))


def find_fitting_placements(config: TrainingConfig, model: Architecture, gpu: Gpu) -> list[PlacementOption]:
    """Return the placements other than `auto` that let ranks and engines fit into the memory of their GPUs.

    `actors.engine.gpu_memory_utilization` applies to the recipe's placement, and to all placements if that is `auto`.
    Other placements use the default.
    """
    return [
        placement
        for placement in get_args(PlacementOption)
        if placement != "auto"
        and not _find_obstacle(placed := _set_placement(config, placement))
        and all(need.fits for need in compute_needs(placed, model, gpu))
    ]


def _set_placement(config: TrainingConfig, placement: PlacementOption) -> TrainingConfig:
    if config.placement in (placement, "auto"):
        return config.model_copy(update={"placement": placement})
    engine = config.actors.engine.model_copy(update={"gpu_memory_utilization": None})
    actors = config.actors.model_copy(update={"engine": engine})
    return config.model_copy(update={"placement": placement, "actors": actors})


def _find_obstacle(config: TrainingConfig) -> str:
    actors, learner = config.actors, config.learner
    return gpu_shares.find_obstacle(config.placement, learner.ranks, actors.count, actors.engine, learner.zero_stage)


def set_adapter(config: TrainingConfig, *, lora: bool) -> TrainingConfig:
    """Return `config` with training of an adapter, or of all weights."""
    return config.model_copy(update={"lora": (config.lora or ADAPTER) if lora else None})


def describe_fitting_placements(config: TrainingConfig, model: Architecture, gpu: Gpu) -> str:
    """Return a text that lists the placements that fit on this GPU, when training all weights or an adapter."""
    ways = []
    for what, lora in (("all weights", False), ("LoRA", True)):
        placements = find_fitting_placements(set_adapter(config, lora=lora), model, gpu)
        ways.append(f"{what}: {', '.join(placements) or 'none'}")
    return "; ".join(ways)


def check_memory(config: TrainingConfig, model: Architecture, gpu: Gpu) -> None:
    """Check that a learner rank, and an engine with one sequence, fit into their memory.

    Raises:
        PlanError: one does not fit. The message names the option that would help and, if every rank can have an engine
            on its GPU, what fits on this kind of GPU.
        DenseAttentionError: rows are too long for the attention that GPUs support for the learner's type.
    """
    rank, engine = compute_needs(config, model, gpu)
    reason = ""
    if not rank.fits:
        reason = _describe_rank_need(estimate_learner_memory(model, config), rank)
    elif not engine.fits:
        reason = _describe_engine_need(config, model, engine)
    if reason and config.as_many_engines_as_ranks:
        fitting = describe_fitting_placements(config, model, gpu)
        reason += f". Placements that fit on a GPU of {gpu.memory / GB:.0f} GB: {fitting}"
    if reason:
        raise PlanError(reason)


def _describe_engine_need(config: TrainingConfig, model: Architecture, need: Need) -> str:
    options, weights = config.actors.engine, WEIGHT * model.parameters
    longest, room = model.compute_kv_cache_bytes(options.max_model_len), need.room - weights
    remedies = {
        "shared": "raise actors.engine.gpu_memory_utilization",
        "time_shared": "lower actors.engine.max_model_len",
    }
    return (
        f"an engine on {options.gpus_of_replica} GPUs has {max(room, 0) / GB:,.1f} GB in addition to the weights of "
        f"{weights / GB:,.0f} GB, and one sequence of actors.engine.max_model_len = {options.max_model_len:,} needs "
        f"{longest / GB:,.1f}: {remedies.get(config.placement, 'raise actors.engine.tensor_parallel_size')}"
    )


def _describe_rank_need(memory: LearnerMemory, need: Need) -> str:
    largest = max(memory.uses, key=lambda name: memory.uses[name])
    remedy = {
        "weights": "learner.zero_stage = 3, or more learner.ranks",
        "gradients": "learner.zero_stage = 2 or 3, or more learner.ranks",
        "optimizer": "lora, or more learner.ranks, or learner.deepspeed = {zero_optimization: {offload_optimizer: "
        "{device: cpu}}}",
        "gathered": "learner.deepspeed = {zero_optimization: {stage3_max_live_parameters: ...}}",
        "reference": "objective.kl.beta = 0, or lora, or learner.zero_stage = 3",
        "mixed": "objective.kl.sync_alpha = 1 or none, or learner.zero_stage = 3",
        "activations": "learner.gradient_checkpointing = true, with learner.offload_activations = true, or fewer "
        "learner.micro_batch_tokens",
        "logits": "fewer learner.logprob_chunk_tokens",
    }[largest]
    return (
        f"a learner rank needs {need.needed / GB:,.0f} GB and has {need.room / GB:,.0f}: the most, "
        f"{memory.uses[largest] / GB:,.0f} GB, is for {largest}. Way out: {remedy}"
    )
