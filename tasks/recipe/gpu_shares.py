"""Computes how an engine and a learner rank share a GPU's memory, and whether options allow it (`placement`)."""

from __future__ import annotations

from typing import Literal

from tasks.generation.config import GPU_SHARE, EngineConfig

SHARED_ENGINE = 0.4
"""Default share of a GPU's memory for an engine on the same GPU as a learner rank."""
LIBRARIES = 0.05
"""Smallest share of a GPU's memory that neither the engine nor the learner rank may use: both load CUDA's libraries."""
CONTEXTS = 1.5e9
"""Bytes of a GPU for the CUDA contexts of an engine and of a rank (about 0.5 GB each), for NCCL and fragmentation."""
SMALLEST_LEARNER = 0.15
"""Smallest share of a GPU's memory that an engine may leave for the learner rank on the same GPU."""
ABSENT = 0.1
"""Share of a GPU's memory that the engine or the learner rank may still use during the turn of the other: CUDA's
libraries, and an engine's graphs."""

PlacementOption = Literal["auto", "apart", "shared", "time_shared"]
"""Values of the option `placement`."""


def compute_engine_share(placement: PlacementOption, utilization: float | None) -> float:
    """Return the share of a GPU's memory that an engine uses.

    Args:
        placement: the option `placement`; `auto` counts as apart.
        utilization: the option `actors.engine.gpu_memory_utilization`.
    """
    return utilization or {"shared": SHARED_ENGINE, "time_shared": 1 - ABSENT}.get(placement, GPU_SHARE)


def compute_rank_share(placement: PlacementOption, utilization: float | None, reserved: float = LIBRARIES) -> float:
    """Return the share of a GPU's memory that a learner rank may use.

    Args:
        placement, utilization: as in `compute_engine_share`.
        reserved: share of the memory that neither rank nor engine may use if both are on the GPU at the same time. By
            default the smallest, of a large GPU.
    """
    match placement:
        case "shared":
            return 1 - compute_engine_share(placement, utilization) - reserved
        case "time_shared":
            return 1 - ABSENT
        case _:
            return 1.0


def compute_reserved_share(memory: float, layer: float) -> float:
    """Return the share of a GPU's memory that neither the engine nor the rank on it may use.

    Args:
        memory: memory of the GPU, bytes.
        layer: size of the model's largest layer, bytes. An engine allocates another one while it takes new weights.
    """
    return max(LIBRARIES, (CONTEXTS + layer) / memory)


def can_share(ranks: int, engines: int, engine: EngineConfig) -> bool:
    """Return whether every one of `ranks` learner ranks can have one of `engines` engines on its GPU."""
    return engines == ranks and engine.gpus == 1


def find_obstacle(placement: PlacementOption, ranks: int, engines: int, engine: EngineConfig, zero_stage: int) -> str:
    """Return why ranks and engines cannot be placed as `placement` says, or an empty text if they can.

    Args:
        placement: the option.
        ranks: number of learner ranks.
        engines: number of engines.
        engine: the options of each engine.
        zero_stage: the learner's ZeRO stage.
    """
    if placement not in ("shared", "time_shared"):
        return ""
    if not can_share(ranks, engines, engine):
        return (
            f"placement = {placement}: every GPU has one rank and one engine, so that actors.count ({engines}) must be "
            f"learner.ranks ({ranks}), and an engine run on one GPU ({engine.parallel_sizes})"
        )
    of_engine = compute_engine_share(placement, engine.gpu_memory_utilization)
    of_rank = compute_rank_share(placement, engine.gpu_memory_utilization)
    if of_rank < SMALLEST_LEARNER:
        return (
            f"placement = shared: actors.engine.gpu_memory_utilization = {of_engine:g} leaves {max(of_rank, 0):.0%} of "
            f"a GPU to the learner rank on it; without the option it is {SHARED_ENGINE:g}"
        )
    if placement == "time_shared" and of_engine > 1 - ABSENT:
        return (
            f"placement = time_shared: actors.engine.gpu_memory_utilization = {of_engine:g} leaves too little of a GPU "
            f"for what a learner rank keeps between its turns; without the option it is {1 - ABSENT:g}"
        )
    if placement == "time_shared" and zero_stage == 3:
        return (
            "placement = time_shared: with learner.zero_stage = 3, DeepSpeed moves states into main memory for an "
            "optimizer of its own alone, and the learner's is torch's AdamW; set zero_stage to 2"
        )
    return ""
