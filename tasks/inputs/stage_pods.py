"""Computes the pods of stages with engines from a run's data, recipe and evaluation files.

It also checks that the images are for the kind of machine that the pods request: with GPUs or without.
"""

from __future__ import annotations

from typing import NamedTuple

from tasks.difficulty.spec import DifficultySpec
from tasks.inputs.disk_needs import estimate_evaluation_need, estimate_rollouts_need, measure_stored_models
from tasks.inputs.files import DataFile, EvaluationFile, Recipe
from tasks.inputs.memory_needs import find_served_judge, judge_gpus
from tasks.kubernetes.pods import PodConfig
from tasks.machine.image import check_image
from tasks.training.cluster.disk import add_disk
from tasks.training.cluster.pods import build_checking_pod, build_controller_pod, build_worker_pods, is_in_one_pod


def make_rollout_pod(data: DataFile, training: Recipe, difficulty: DifficultySpec, *, judges: bool) -> PodConfig:
    """Return the pod that samples a shard of difficulty's rollouts. With `judges`, it also serves the judge."""
    gpus = training.cluster.count_engine_gpus(difficulty.engine) + (_judge_gpus(data, training) if judges else 0)
    return _make_sampling_pod(data, training, difficulty).fill_defaults(gpus)


def make_judging_pod(data: DataFile, training: Recipe, difficulty: DifficultySpec) -> PodConfig:
    """Return the pod that scores a shard of difficulty's rollouts."""
    if not data.verifiers.serves:
        return data.pod
    return _make_sampling_pod(data, training, difficulty).fill_defaults(_judge_gpus(data, training))


def make_evaluation_pod(data: DataFile, training: Recipe, evaluation: EvaluationFile) -> PodConfig:
    """Return the pod that samples and scores the responses of one policy."""
    gpus = training.cluster.count_engine_gpus(evaluation.engine)
    if training.cluster.gpus_per_node:
        gpus += judge_gpus(data, evaluation.benchmarks)
    models = measure_stored_models(training, data)
    return add_disk(
        evaluation.pod, estimate_evaluation_need(training, evaluation, models) if models else None
    ).fill_defaults(gpus)


class PodRequest(NamedTuple):
    """A pod that a run requests: its purpose, the number of such pods in words, and its resources."""

    name: str
    number: str
    pod: PodConfig


def list_run_pods(data: DataFile, training: Recipe, evaluation: EvaluationFile) -> list[PodRequest]:
    """Return the pods of a run that load models, in the order of its stages.

    The other data stages use `pod` of the data file.
    """
    models, judging = measure_stored_models(training, data), judge_gpus(data, training.benchmarks)
    holding = training, training.cluster, judging, models
    requests = []
    if training.model_check:
        requests.append(
            PodRequest(
                "model check", "1", build_checking_pod(training, training.cluster, measure_stored_models(training))
            )
        )
    if (difficulty := data.difficulty) is not None:
        pod = make_rollout_pod(data, training, difficulty, judges=difficulty.early_stopping)
        if difficulty.engine.server is None:
            requests.append(PodRequest("difficulty: rollouts", "1 a shard", pod))
        if data.verifiers.serves:
            requests.append(
                PodRequest("difficulty: judging", "1 a shard", make_judging_pod(data, training, difficulty))
            )
    if is_in_one_pod(training, training.cluster, judging):
        requests.append(PodRequest("training", "1", build_controller_pod(*holding)))
    else:
        requests.append(PodRequest("training: head", "1", build_controller_pod(*holding)))
        requests += [
            PodRequest(f"training: {name}", f"{count}", pod)
            for name, (count, pod) in build_worker_pods(*holding).items()
        ]
    requests.append(PodRequest("evaluation", "1 a policy", make_evaluation_pod(data, training, evaluation)))
    return requests


def check_images(data: DataFile, training: Recipe, evaluation: EvaluationFile) -> None:
    """Check that the engines in the registered images run on the machines that the three files request.

    Only the image of this pod is checked, because images are built and registered together. Images that do not state
    their kind, and local runs, are not checked.

    Raises:
        ImageError: a stage with an engine requests GPUs and the images are for CPUs, or vice versa.
    """
    for stage, gpus in _count_engine_gpus(data, training, evaluation).items():
        check_image(gpus, f"{stage} asks for {gpus} GPUs")


def _count_engine_gpus(data: DataFile, training: Recipe, evaluation: EvaluationFile) -> dict[str, int]:
    """Return the number of GPUs per pod of each stage with an engine. For training, it is the number per machine."""
    pods = {}
    if (difficulty := data.difficulty) is not None:
        if difficulty.engine.server is None:
            pods["difficulty"] = make_rollout_pod(data, training, difficulty, judges=difficulty.early_stopping)
        if find_served_judge(data) is not None:
            pods["the judging of difficulty"] = make_judging_pod(data, training, difficulty)
    if evaluation.engine.server is None:
        pods["evaluation"] = make_evaluation_pod(data, training, evaluation)
    if training.model_check:
        pods["the model check"] = build_checking_pod(training, training.cluster)
    return {"training": training.cluster.gpus_per_node} | {stage: pod.gpus or 0 for stage, pod in pods.items()}


def _make_sampling_pod(data: DataFile, training: Recipe, difficulty: DifficultySpec) -> PodConfig:
    """Return the pod of difficulty's stages with engines, with its disk request."""
    models = measure_stored_models(training, data)
    return add_disk(difficulty.pod, estimate_rollouts_need(training, difficulty, models) if models else None)


def _judge_gpus(data: DataFile, training: Recipe) -> int:
    return judge_gpus(data) if training.cluster.gpus_per_node else 0
