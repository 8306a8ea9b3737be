"""The pods of the stages that run engines, from the three files, and whether the registered images suit them."""

from __future__ import annotations

from tasks.difficulty.spec import DifficultySpec
from tasks.inputs.files import DataFile, EvaluationFile, Recipe
from tasks.inputs.memory_needs import judge_gpus, served_judge, weights_gib
from tasks.machine.image import ACCELERATOR, BUILD_FOR, ImageError, accelerator, image
from tasks.pods import PodConfig
from tasks.training.cluster.pods import checking_pod


def rollout_pod(data: DataFile, training: Recipe, difficulty: DifficultySpec, *, judges: bool) -> PodConfig:
    """Return the pod in which a shard of difficulty's prompts is sampled, and with `judges` judged meanwhile."""
    gpus = training.cluster.gpus_of(difficulty.engine) + (_judge_gpus(data, training) if judges else 0)
    return difficulty.pod.sized(gpus, weights_gib=weights_gib(training.model))


def judging_pod(data: DataFile, training: Recipe, difficulty: DifficultySpec) -> PodConfig:
    """Return the pod in which a shard of difficulty's rollouts is judged."""
    if not data.verifiers.serves:
        return data.pod
    return difficulty.pod.sized(_judge_gpus(data, training), weights_gib=weights_gib(training.model))


def evaluation_pod(data: DataFile, training: Recipe, evaluation: EvaluationFile) -> PodConfig:
    """Return the pod in which a policy answers the evaluation's prompts, and its responses are judged meanwhile."""
    gpus = training.cluster.gpus_of(evaluation.engine)
    if training.cluster.gpus_per_node:
        gpus += judge_gpus(data, evaluation.benchmarks)
    return evaluation.pod.sized(gpus, weights_gib=weights_gib(training.model))


def check_images(data: DataFile, training: Recipe, evaluation: EvaluationFile) -> None:
    """Check that the set of images that this pod's is one of has engines for the pods that the files ask for.

    Nothing is checked where the image does not say of which set it is, and in local runs.

    Raises:
        ImageError: stages with engines ask for GPUs, and the images are without CUDA, or the other way round.
    """
    if (kind := accelerator()) is None:
        return
    asked = _gpus_of_engines(data, training, evaluation)
    unfit = {where: gpus for where, gpus in asked.items() if bool(gpus) != (kind == "cuda")}
    if not unfit:
        return
    if kind == "cuda":
        lack = f"on GPUs alone, and no GPUs are asked for by {', '.join(unfit)}"
    else:
        lack = f"without GPUs, and GPUs are asked for by {', '.join(f'{where} ({n})' for where, n in unfit.items())}"
    way_out = BUILD_FOR["none" if kind == "cuda" else "cuda"]
    raise ImageError(f"image {image()} is of a set whose engines run {lack} ({ACCELERATOR}={kind}): {way_out}")


def _gpus_of_engines(data: DataFile, training: Recipe, evaluation: EvaluationFile) -> dict[str, int]:
    """Return the GPUs of a pod, by the stage, of the stages that start an engine; of training those of a machine."""
    pods = {}
    if (difficulty := data.difficulty) is not None:
        if difficulty.engine.server is None:
            pods["difficulty"] = rollout_pod(data, training, difficulty, judges=difficulty.early_stopping)
        if served_judge(data) is not None:
            pods["the judging of difficulty"] = judging_pod(data, training, difficulty)
    if evaluation.engine.server is None:
        pods["evaluation"] = evaluation_pod(data, training, evaluation)
    if training.model_check:
        pods["the model check"] = checking_pod(training, training.cluster)
    return {"training": training.cluster.gpus_per_node} | {where: pod.gpus or 0 for where, pod in pods.items()}


def _judge_gpus(data: DataFile, training: Recipe) -> int:
    return judge_gpus(data) if training.cluster.gpus_per_node else 0
