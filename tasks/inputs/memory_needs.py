"""Computes the memory that training without GPUs needs before anything starts, and refuses a pod that is too small.

Every process is a constant and what grows with the model and the options:

    learner rank     LEARNER + weights, gradients, optimizer (`rank_memory`) + the larger of what a step adds
                     (activations, logits) and of the weights, which are copied before they are published
    engine           ENGINE + weights + `cpu_kv_cache_gib`
    judge's engine   ENGINE + weights + KV cache, if a stage serves the judge
    driver and Ray   DRIVER
    the rest         REST: the engine's actor, the reward process, workers of verifiers, the judge's HTTP server
    /dev/shm         three versions of the weights

Weights and activations have 2 bytes a number in bfloat16 and 4 in float32. The constants are those of the quickstart in
float32, measured under the limit of its pod (`tests/workflows/test_pod_memory.py`, which compares the formula with a
run).

Ray's monitor kills processes at `RAYS_SHARE` of the limit, and counts `/dev/shm` and all but what the kernel can drop.

Of training with GPUs the head of a Ray cluster is checked alone, by what the controller holds in it
(`tasks.training.cluster.sizes`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tasks.config import SpecError
from tasks.inputs.benchmarks import BenchmarkFile
from tasks.inputs.files import DataFile, Recipe
from tasks.machine import precision
from tasks.machine.memory_limit import GIB, MemoryLimit
from tasks.pod_templates import SHARED_MEMORY
from tasks.sourcing.columns import VERIFIERS_OF
from tasks.training.cluster.pods import controller_pod, is_in_one_pod
from tasks.training.cluster.sizes import HEAD_CORES, VERSIONS, head_needs
from tasks.training.simulation import roofline
from tasks.training.simulation.rank_memory import learner_memory
from tasks.verifiers.chat.config import INITIAL, JudgeConfig

LEARNER, ENGINE, DRIVER, REST = 1.4, 1.1, 1.7, 1.8
"""GiB of the processes of training that do not depend on the model and the options."""

RAYS_SHARE = 0.95
"""Share of the memory at which Ray's monitor begins to kill, unless `RAY_memory_usage_threshold` is another."""

ON_THIS_MACHINE = 0.75
"""Share of the computed need below which a machine of the user's own is refused: it may have swap, and it may be that
only the files are to be checked. A pod is refused below all of it, as what it asks for is its limit."""


def training_needs(data: DataFile, training: Recipe, *, dtype: str) -> dict[str, float]:
    """Return the GiB that each process of training needs on a machine without GPUs, by the process's name.

    Args:
        data: the data file, for the judge.
        training: the recipe.
        dtype: the type that `auto` stands for there, `bfloat16` or `float32`.

    Raises:
        ShapeError: the shape of the model is not known.
    """
    model = roofline.architecture(training.model.source.model_dump(), None)
    learner, engine = training.learner, training.actors.engine
    memory = learner_memory(model, training, gpu=False)
    wider = _bytes(learner.dtype, dtype) / roofline.WEIGHT - 1
    weights, activations = ((1 + wider) * stored for stored in (memory.weights, memory.activations))
    reference = (1 + wider) * memory.reference + (0 if wider else memory.mixed)  # float32 weights are exact as they are
    states = weights + memory.gradients + memory.optimizer + reference + (1 + wider) * memory.gathered
    published = 0 if training.lora else weights
    rank = states + max(activations + memory.logits, published)
    of_engine = model.parameters * _bytes(engine.dtype, dtype) / GIB
    needs = {
        "learner rank": learner.ranks * (LEARNER + rank / GIB),
        "engine": training.actors.count * (ENGINE + of_engine + engine.cpu_kv_cache_gib),
        "driver and Ray": DRIVER,
        "the rest": REST,
        SHARED_MEMORY: VERSIONS * published / GIB,
    }
    if judge := served_judge(data):
        needs["judge's engine"] = ENGINE + _judge(judge, model, dtype)
    return needs


def check_memory(
    data: DataFile, training: Recipe, *, on_this_machine: bool, machine: MemoryLimit | None = None, dtype: str = ""
) -> None:
    """Check that training without GPUs fits into its pod, or on this machine where all stages run on it.

    Where the recipe has GPUs, the head of a Ray cluster is checked alone, as the controller holds steps in it. Nothing
    is checked where the model's shape is not known before it is downloaded.

    Args:
        data: the data file.
        training: the recipe.
        on_this_machine: whether training runs on this machine, and not in a pod.
        machine: the limit of this machine; None: it is read.
        dtype: the type that `auto` stands for; empty: that of this processor.

    Raises:
        SpecError: it does not fit; with the processes and the options that make the largest of them smaller.
    """
    if training.cluster.gpus_per_node:
        _check_head(data, training)
        return
    dtype = dtype or ("bfloat16" if precision.has_bfloat16() else "float32")
    try:
        needs = training_needs(data, training, dtype=dtype)
    except roofline.ShapeError:
        return
    needed = sum(needs.values()) / RAYS_SHARE
    enough = needed
    if on_this_machine:
        available = (machine or MemoryLimit.of_this_process()).available() / GIB
        has, way_out = f"this machine has {available:.1f}", "train on a larger one"
        enough *= ON_THIS_MACHINE
    else:
        available = controller_pod(training, training.cluster).memory_gib or 0
        has, way_out = f"cluster.node.memory_gib is {available}", "raise it"
    if available < enough:
        parts = ", ".join(f"{name} {gib:.1f}" for name, gib in sorted(needs.items(), key=lambda need: -need[1]))
        raise SpecError(
            f"training: its processes need about {needed:.1f} GiB of memory in {_in(training, dtype)}, of which Ray "
            f"leaves {1 - RAYS_SHARE:.0%} free: {parts}; but {has}: {way_out}, or lower learner.micro_batch_tokens or "
            "actors.engine.cpu_kv_cache_gib"
        )


def _check_head(data: DataFile, training: Recipe) -> None:
    """Check that the head of a Ray cluster has the memory for what the controller holds; of one pod nothing.

    Raises:
        SpecError: it has not; with the parts, and the options that make the largest of them smaller.
    """
    cluster = training.cluster
    if is_in_one_pod(training, cluster, judge_gpus(data, training.benchmarks)):
        return
    pod = controller_pod(training, cluster, judge_gpus(data, training.benchmarks))
    needs = head_needs(training, pod.cpu or HEAD_CORES)
    if pod.memory_gib is not None and pod.memory_gib < sum(needs.values()):
        parts = ", ".join(f"{name} {gib:.1f}" for name, gib in sorted(needs.items(), key=lambda need: -need[1]))
        raise SpecError(
            f"training: the head needs about {sum(needs.values()):.1f} GiB of memory: {parts}; but "
            f"cluster.head.memory_gib is {pod.memory_gib}: raise it, or lower recover_every"
        )


def judge_gpus(data: DataFile, benchmarks: Sequence[BenchmarkFile] = ()) -> int:
    """Return the GPUs of the judge and the reward models that a stage serves itself, if its machines have GPUs.

    `benchmarks`: those that the stage asks beside prompts of the data file.
    """
    sources = (*data.used_sources, *(benchmark.source for benchmark in benchmarks))
    return data.verifiers.gpus({name for source in sources for name in source.verifiers})


def _in(training: Recipe, auto: str) -> str:
    """Return the learner's type, in words for a message."""
    return f"{auto} (learner.dtype: auto)" if training.learner.dtype == "auto" else training.learner.dtype


def _bytes(option: str, auto: str) -> int:
    """Return the bytes of a number of the type that an option names; `auto` is the type that the option `auto` is."""
    return 4 if (auto if option == "auto" else option) == "float32" else 2


def served_judge(data: DataFile) -> JudgeConfig | None:
    """Return the judge that training serves itself; None: it needs none, or an endpoint or a reward model judges."""
    judge = data.verifiers.judge
    is_needed = any(source.verifiers & set(VERIFIERS_OF["chat"]) for source in data.used_sources)
    return judge if is_needed and isinstance(judge, JudgeConfig) and judge.url is None else None


def _judge(judge: JudgeConfig, policy: roofline.Architecture, dtype: str) -> float:
    """Return the GiB of the weights and the KV cache of a judge that is served; only the cache of an unknown model."""
    width = _bytes(judge.server.dtype, dtype)
    model = policy if judge.model == INITIAL else shape_of(judge.model)
    weights = 0.0 if model is None else model.parameters * width / GIB
    return weights + judge.server.cpu_kv_cache_gib


def shape_of(model: str) -> roofline.Architecture | None:
    """Return the shape of a judge or reward model, by its folder or its id on the hub, or None if it is not known."""
    source: dict[str, Any] = {"name": model}
    if Path(model).is_dir():
        source = {"kind": "folder", "path": model}
    try:
        return roofline.architecture(source, None)
    except roofline.ShapeError:
        return None
