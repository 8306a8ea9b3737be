"""Estimates the memory that training without GPUs needs, and refuses a pod that is too small before anything starts.

The memory of a process is a constant plus terms that grow with the model and the options:

    learner rank     LEARNER + weights, gradients, optimizer (`estimate_learner_memory`)
                     + max(activations and logits of a step, a copy of the weights for the export of the policy)
    engine           ENGINE + weights + `cpu_kv_cache_gib`
    judge's engine   ENGINE + weights + KV cache, if a stage serves the judge
    driver and Ray   DRIVER
    the rest         REST: the engine's actor, the reward process, workers of verifiers, the judge's HTTP server
    /dev/shm         three versions of the weights

Weights and activations take 2 bytes per number in bfloat16 and 4 in float32. The constants were measured with the
quickstart in float32 under the limit of its pod (`tests/workflows/test_pod_memory.py`, which compares the formula with
a run).

Ray's monitor kills processes at `RAYS_SHARE` of the limit. It counts `/dev/shm`, and all memory except what the kernel
can drop.

For training with GPUs, only the head of a Ray cluster is checked, for the memory of the controller
(`tasks.sizing.pod_sizes`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tasks.config.loading import SpecError
from tasks.inputs.benchmarks import BenchmarkFile
from tasks.inputs.files import DataFile, Recipe
from tasks.kubernetes.pod_templates import SHARED_MEMORY
from tasks.machine import precision
from tasks.machine.memory_limit import GIB, MemoryLimit
from tasks.sizing import roofline
from tasks.sizing.pod_sizes import HEAD_CORES, VERSIONS, compute_head_needs
from tasks.sizing.rank_memory import estimate_learner_memory
from tasks.sourcing.columns import VERIFIERS_OF
from tasks.training.cluster.pods import build_controller_pod, is_in_one_pod
from tasks.verifiers.chat.config import INITIAL, JudgeConfig

LEARNER, ENGINE, DRIVER, REST = 1.4, 1.1, 1.7, 1.8
"""Constant terms of the training processes, independent of the model and the options, GiB."""

RAYS_SHARE = 0.95
"""Share of the memory at which Ray's monitor starts killing processes, unless `RAY_memory_usage_threshold` is set."""

ON_THIS_MACHINE = 0.75
"""Share of the estimated need below which the user's machine is refused. It is below 1 because the machine may have
swap, or the user may only want to check the files. A pod must have the full need, because its request is also its
limit."""


def estimate_training_needs(data: DataFile, training: Recipe, *, dtype: str) -> dict[str, float]:
    """Return the memory in GiB that each training process needs on a machine without GPUs, by the process's name.

    Args:
        data: the data file, for the judge.
        training: the recipe.
        dtype: the type that `auto` resolves to there, `bfloat16` or `float32`.

    Raises:
        ShapeError: the shape of the model is not known.
    """
    model = roofline.read_architecture(training.model.source.model_dump(), None)
    learner, engine = training.learner, training.actors.engine
    memory = estimate_learner_memory(model, training, gpu=False)
    wider = _count_bytes(learner.dtype, dtype) / roofline.WEIGHT - 1
    weights, activations = ((1 + wider) * stored for stored in (memory.weights, memory.activations))
    reference = (1 + wider) * memory.reference + (0 if wider else memory.mixed)  # float32 weights need no copies
    states = weights + memory.gradients + memory.optimizer + reference + (1 + wider) * memory.gathered
    published = 0 if training.lora else weights
    rank = states + max(activations + memory.logits, weights)
    of_engine = model.parameters * _count_bytes(engine.dtype, dtype) / GIB
    needs = {
        "learner rank": learner.ranks * (LEARNER + rank / GIB),
        "engine": training.actors.count * (ENGINE + of_engine + engine.cpu_kv_cache_gib),
        "driver and Ray": DRIVER,
        "the rest": REST,
        SHARED_MEMORY: VERSIONS * published / GIB,
    }
    if judge := find_served_judge(data):
        needs["judge's engine"] = ENGINE + _judge(judge, model, dtype)
    return needs


def check_memory(
    data: DataFile, training: Recipe, *, on_this_machine: bool, machine: MemoryLimit | None = None, dtype: str = ""
) -> None:
    """Check that training without GPUs fits into its pod, or on this machine if all stages run on it.

    If the recipe has GPUs, only the head of a Ray cluster is checked, because the controller keeps steps in memory
    there. Nothing is checked if the model's shape is not known before it is downloaded.

    Args:
        data: the data file.
        training: the recipe.
        on_this_machine: whether training runs on this machine, and not in a pod.
        machine: the memory limit of this machine. If None, it is detected.
        dtype: the type that `auto` resolves to. If empty, the type for this processor.

    Raises:
        SpecError: it does not fit. The message lists the processes, and the options that reduce the largest of them.
    """
    if training.cluster.gpus_per_node:
        _check_head(data, training)
        return
    dtype = dtype or ("bfloat16" if precision.has_bfloat16() else "float32")
    try:
        needs = estimate_training_needs(data, training, dtype=dtype)
    except roofline.ShapeError:
        return
    needed = sum(needs.values()) / RAYS_SHARE
    enough = needed
    if on_this_machine:
        available = (machine or MemoryLimit.from_this_process()).available() / GIB
        has, way_out = f"this machine has {available:.1f}", "train on a larger one"
        enough *= ON_THIS_MACHINE
    else:
        available = build_controller_pod(training, training.cluster).memory_gib or 0
        has, way_out = f"cluster.node.memory_gib is {available}", "raise it"
    if available < enough:
        parts = ", ".join(f"{name} {gib:.1f}" for name, gib in sorted(needs.items(), key=lambda need: -need[1]))
        raise SpecError(
            f"training: its processes need about {needed:.1f} GiB of memory in {_describe_dtype(training, dtype)}, "
            f"of which Ray leaves {1 - RAYS_SHARE:.0%} free: {parts}; but {has}: {way_out}, or lower "
            "learner.micro_batch_tokens or actors.engine.cpu_kv_cache_gib"
        )


def _check_head(data: DataFile, training: Recipe) -> None:
    """Check that the head of a Ray cluster has enough memory for the controller. A single pod is not checked.

    Raises:
        SpecError: it does not. The message lists the parts, and the options that reduce the largest of them.
    """
    cluster = training.cluster
    if is_in_one_pod(training, cluster, judge_gpus(data, training.benchmarks)):
        return
    pod = build_controller_pod(training, cluster, judge_gpus(data, training.benchmarks))
    needs = compute_head_needs(training, pod.cpu or HEAD_CORES)
    if pod.memory_gib is not None and pod.memory_gib < sum(needs.values()):
        parts = ", ".join(f"{name} {gib:.1f}" for name, gib in sorted(needs.items(), key=lambda need: -need[1]))
        raise SpecError(
            f"training: the head needs about {sum(needs.values()):.1f} GiB of memory: {parts}; but "
            f"cluster.head.memory_gib is {pod.memory_gib}: raise it, or lower recover_every"
        )


def judge_gpus(data: DataFile, benchmarks: Sequence[BenchmarkFile] = ()) -> int:
    """Return the number of GPUs of the judge and reward models that a stage serves itself, if its machines have GPUs.

    `benchmarks` are the benchmarks that the stage runs in addition to the prompts of the data file.
    """
    sources = (*data.used_sources, *(benchmark.source for benchmark in benchmarks))
    return data.verifiers.gpus({name for source in sources for name in source.verifiers})


def _describe_dtype(training: Recipe, auto: str) -> str:
    """Return a description of the learner's dtype for a message."""
    return f"{auto} (learner.dtype: auto)" if training.learner.dtype == "auto" else training.learner.dtype


def _count_bytes(option: str, auto: str) -> int:
    """Return the bytes per number of the dtype in an option. `auto` is the dtype that the value `auto` resolves to."""
    return 4 if (auto if option == "auto" else option) == "float32" else 2


def find_served_judge(data: DataFile) -> JudgeConfig | None:
    """Return the judge that training serves, or None if there is none or an endpoint or a reward model is used."""
    judge = data.verifiers.judge
    is_needed = any(source.verifiers & set(VERIFIERS_OF["chat"]) for source in data.used_sources)
    return judge if is_needed and isinstance(judge, JudgeConfig) and judge.url is None else None


def _judge(judge: JudgeConfig, policy: roofline.Architecture, dtype: str) -> float:
    """Return the size of a served judge's weights (if known) and KV cache, GiB."""
    width = _count_bytes(judge.server.dtype, dtype)
    model = policy if judge.model == INITIAL else find_shape(judge.model)
    weights = 0.0 if model is None else model.parameters * width / GIB
    return weights + judge.server.cpu_kv_cache_gib


def find_shape(model: str) -> roofline.Architecture | None:
    """Return the shape of a judge or reward model, by its folder or its id on the hub, or None if it is not known."""
    source = {"kind": "folder", "path": model} if Path(model).is_dir() else {"name": model}
    return roofline.find_known_architecture(source)
