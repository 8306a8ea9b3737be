"""Computes the pods of stages with engines from a run's data, recipe and evaluation files.

It also checks that the images are for the kind of machine that the pods request: with GPUs or without.
"""

from __future__ import annotations

from typing import NamedTuple

from tasks.cluster.disk import with_disk
from tasks.cluster.pods import checking_pod, controller_pod, is_in_one_pod, worker_pods
from tasks.difficulty.spec import DifficultySpec
from tasks.inputs.disk_needs import evaluation_need, rollouts_need, stored_models
from tasks.inputs.files import DataFile, EvaluationFile, Recipe
from tasks.inputs.memory_needs import judge_gpus, served_judge
from tasks.kubernetes.pods import PodConfig
from tasks.machine.image import check_image


def rollout_pod(data: DataFile, training: Recipe, difficulty: DifficultySpec, *, judges: bool) -> PodConfig:
    """Return the pod that samples a shard of difficulty's rollouts. With `judges`, it also serves the judge."""
    gpus = training.cluster.gpus_of(difficulty.engine) + (_judge_gpus(data, training) if judges else 0)
    return _sampling_pod(data, training, difficulty).sized(gpus)


def judging_pod(data: DataFile, training: Recipe, difficulty: DifficultySpec) -> PodConfig:
    """Return the pod that scores a shard of difficulty's rollouts."""
    if not data.verifiers.serves:
        return data.pod
    return _sampling_pod(data, training, difficulty).sized(_judge_gpus(data, training))


def evaluation_pod(data: DataFile, training: Recipe, evaluation: EvaluationFile) -> PodConfig:
    """Return the pod that samples and scores the responses of one policy."""
    gpus = training.cluster.gpus_of(evaluation.engine)
    if training.cluster.gpus_per_node:
        gpus += judge_gpus(data, evaluation.benchmarks)
    models = stored_models(training, data)
    return with_disk(evaluation.pod, evaluation_need(training, evaluation, models) if models else None).sized(gpus)


class PodRequest(NamedTuple):
    """A pod that a run requests: its purpose, the number of such pods in words, and its resources."""

    name: str
    number: str
    pod: PodConfig


def pods_of_run(data: DataFile, training: Recipe, evaluation: EvaluationFile) -> list[PodRequest]:
    """Return the pods of a run that load models, in the order of its stages.

    The other data stages use `pod` of the data file.
    """
    models, judging = stored_models(training, data), judge_gpus(data, training.benchmarks)
    holding = training, training.cluster, judging, models
    requests = []
    if training.model_check:
        requests.append(
            PodRequest("model check", "1", checking_pod(training, training.cluster, stored_models(training)))
        )
    if (difficulty := data.difficulty) is not None:
        pod = rollout_pod(data, training, difficulty, judges=difficulty.early_stopping)
        if difficulty.engine.server is None:
            requests.append(PodRequest("difficulty: rollouts", "1 a shard", pod))
        if data.verifiers.serves:
            requests.append(PodRequest("difficulty: judging", "1 a shard", judging_pod(data, training, difficulty)))
    if is_in_one_pod(training, training.cluster, judging):
        requests.append(PodRequest("training", "1", controller_pod(*holding)))
    else:
        requests.append(PodRequest("training: head", "1", controller_pod(*holding)))
        requests += [
            PodRequest(f"training: {name}", f"{count}", pod) for name, (count, pod) in worker_pods(*holding).items()
        ]
    requests.append(PodRequest("evaluation", "1 a policy", evaluation_pod(data, training, evaluation)))
    return requests


def check_images(data: DataFile, training: Recipe, evaluation: EvaluationFile) -> None:
    """Check that the engines in the registered images run on the machines that the three files request.

    Only the image of this pod is checked, because images are built and registered together. Images that do not state
    their kind, and local runs, are not checked.

    Raises:
        ImageError: a stage with an engine requests GPUs and the images are for CPUs, or vice versa.
    """
    for stage, gpus in _gpus_of_engines(data, training, evaluation).items():
        check_image(gpus, f"{stage} asks for {gpus} GPUs")


def _gpus_of_engines(data: DataFile, training: Recipe, evaluation: EvaluationFile) -> dict[str, int]:
    """Return the number of GPUs per pod of each stage with an engine. For training, it is the number per machine."""
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
    return {"training": training.cluster.gpus_per_node} | {stage: pod.gpus or 0 for stage, pod in pods.items()}


def _sampling_pod(data: DataFile, training: Recipe, difficulty: DifficultySpec) -> PodConfig:
    """Return the pod of difficulty's stages with engines, with its disk request."""
    models = stored_models(training, data)
    return with_disk(difficulty.pod, rollouts_need(training, difficulty, models) if models else None)


def _judge_gpus(data: DataFile, training: Recipe) -> int:
    return judge_gpus(data) if training.cluster.gpus_per_node else 0
