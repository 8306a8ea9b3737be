"""Computes the disk that the pods of a recipe need, if its models are known, and checks the options against it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from tasks.config.loading import SpecError
from tasks.difficulty.spec import DifficultySpec
from tasks.generation.models import ModelSpec
from tasks.inputs.files import DataFile, EvaluationFile, Recipe
from tasks.inputs.memory_needs import find_shape, judge_gpus
from tasks.kubernetes.pods import PodConfig
from tasks.machine.groups import ACTORS, LEARNER
from tasks.sizing import roofline
from tasks.training.cluster import disk
from tasks.training.cluster.pods import is_in_one_pod
from tasks.verifiers.chat.config import INITIAL

logger = logging.getLogger(__name__)


ONE_POD, HEAD = "training", "training: head"
"""Names of the pod that runs all of training, and of the controller's pod if there are several."""


class PodNeed(NamedTuple):
    """The disk that a pod needs: the pod's name, the option with its `PodConfig`, the `PodConfig`, and the need."""

    name: str
    option: str
    pod: PodConfig
    need: disk.DiskNeed


def measure_stored_models(training: Recipe, data: DataFile | None = None) -> disk.StoredModels | None:
    """Return the sizes of a run's models, or None if the policy's shape is not known before it is downloaded.

    Args:
        training: the recipe, for the policy.
        data: the data file, for the judge and the reward models, or None for a pod that serves neither.
    """
    shape = roofline.find_known_architecture(training.model.source.model_dump())
    return disk.StoredModels.from_model(shape, training, _judge_gib(data) if data else 0.0) if shape else None


def estimate_rollouts_need(training: Recipe, difficulty: DifficultySpec, models: disk.StoredModels) -> disk.DiskNeed:
    """Return the disk need of a pod of difficulty, which samples from the initial model or from a compared model."""
    compared = (variant.model for variant in difficulty.compared.values())
    sampled = _measure_largest(model for model in compared if model)
    return disk.estimate_engine_pod(training, models, gpus=bool(training.cluster.gpus_per_node), sampled_gib=sampled)


def estimate_evaluation_need(training: Recipe, evaluation: EvaluationFile, models: disk.StoredModels) -> disk.DiskNeed:
    """Return the disk need of a pod of evaluation, which samples from the trained policy or a model of the file."""
    sampled = _measure_largest(evaluation.policies.values())
    gpus = bool(training.cluster.gpus_per_node)
    return disk.estimate_engine_pod(training, models, gpus=gpus, trained=True, sampled_gib=sampled)


def estimate_training_needs(data: DataFile, training: Recipe) -> Iterator[PodNeed]:
    """Yield the disk need of each kind of training pod, or nothing if the size of the model is not known."""
    if (models := measure_stored_models(training, data)) is None:
        return
    cluster = training.cluster
    if is_in_one_pod(training, cluster, judge_gpus(data, training.benchmarks)):
        need = disk.estimate_one_pod(training, models, gpus=bool(cluster.gpus_per_node))
        yield PodNeed(ONE_POD, "cluster.node", cluster.node, need)
        return
    yield PodNeed(HEAD, "cluster.head", cluster.head, disk.head(training, models))
    for group, need in (
        (LEARNER, disk.estimate_learner_machine(training, models, cluster.gpus_per_node)),
        (ACTORS, disk.estimate_actors_machine(models)),
    ):
        option = cluster.format_option_path(group, "disk_gib").removesuffix(".disk_gib")
        yield PodNeed(f"training: {group}", option, cluster.build_machine(group), need)


def estimate_pod_needs(data: DataFile, training: Recipe, evaluation: EvaluationFile) -> Iterator[PodNeed]:
    """Yield the disk need of each kind of pod that loads a model of known size."""
    if (models := measure_stored_models(training, data)) is None:
        return
    yield from estimate_training_needs(data, training)
    if (difficulty := data.difficulty) is not None:
        need = estimate_rollouts_need(training, difficulty, models)
        yield PodNeed("difficulty", "difficulty.pod", difficulty.pod, need)
    yield PodNeed("evaluation", "pod", evaluation.pod, estimate_evaluation_need(training, evaluation, models))


def check_disk(data: DataFile, training: Recipe, evaluation: EvaluationFile) -> None:
    """Check that pods get enough disk for what they store outside of mounted volumes.

    It is only a warning if the pod uses a template by name, whose volumes cannot be read, or if the disk is too small
    only when a run is resumed by other learner ranks, which is rare.

    Raises:
        SpecError: a pod would be evicted. The message names the option, the GiB, and what they are needed for.
    """
    for name, option, pod, whole in estimate_pod_needs(data, training, evaluation):
        need, given = whole.drop_volumes(pod.template), pod.disk_gib
        if given is None or given >= need.gib:
            continue
        if given >= need.run_gib:
            logger.warning(
                "%s: %s.disk_gib is %d: enough for the run, but not to resume it by another learner.ranks or "
                "learner.zero_stage, which needs %d GiB: %s",
                name,
                option,
                given,
                need.gib,
                need.parts(need.fullest),
            )
            continue
        lack = (
            f"{name}: a pod stores about {need.run_gib} GiB ({need.parts(need.run)}), but {option}.disk_gib is {given}"
        )
        if isinstance(pod.template, str):
            logger.warning("%s: it is evicted unless the template %r mounts volumes for the rest", lack, pod.template)
        else:
            variable, folder = disk.FOLDERS[max(need.run, key=lambda item: item.gib).folder]
            raise SpecError(
                f"{lack}: give at least {need.run_gib}, leave the option out, or mount a volume on {folder} "
                f"({variable}) in {option}.template"
            )


def _judge_gib(data: DataFile) -> float:
    """Return the size of the judge and reward models that are served and come from the hub, as far as known, GiB."""
    verifiers = data.verifiers
    names = [model.model for model in verifiers.reward_models.values()]
    if verifiers.judge is not None and getattr(verifiers.judge, "url", None) is None:
        names.append(verifiers.judge.model)
    shapes = [find_shape(name) for name in names if name != INITIAL and not Path(name).is_absolute()]
    return sum((_compute_gib(shape) for shape in shapes if shape), 0.0)


def _measure_largest(models: Iterable[ModelSpec]) -> float:
    """Return the size in 16-bit precision of the largest model whose shape is known, GiB."""
    shapes = [roofline.find_known_architecture(model.source.model_dump()) for model in models]
    return max((_compute_gib(shape) for shape in shapes if shape), default=0.0)


def _compute_gib(shape: roofline.Architecture) -> float:
    """Return the size of a model's weights in 16-bit precision, GiB."""
    return roofline.WEIGHT * shape.parameters / disk.GIB
