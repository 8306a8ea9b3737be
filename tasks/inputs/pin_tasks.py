"""Pins the files of a part of the pipeline that is started alone, as preflight does for the whole pipeline."""

from __future__ import annotations

from functools import partial
from typing import Annotated, NamedTuple

from flytekit import Resources

from images import DATA
from tasks.flyte.stages import RESULT, uncached_stage
from tasks.inputs.files import DataFile, EvaluationFile, Recipe
from tasks.inputs.pinning import (
    add_judge_digests,
    fingerprint_data,
    fingerprint_evaluation,
    fingerprint_recipe,
    pin_evaluation_file,
    pin_recipe,
    pin_sources,
)

pinning = partial(uncached_stage, container_image=DATA, requests=Resources(cpu="1", mem="2Gi"))
"""Declare a task that is never cached, because it reads the files and repositories that the specifications name."""


class PinnedFiles(NamedTuple):
    data: Annotated[DataFile, RESULT]
    training: Annotated[Recipe, RESULT]
    evaluation: Annotated[EvaluationFile, RESULT]


class PinnedTraining(NamedTuple):
    data: Annotated[DataFile, RESULT]
    training: Annotated[Recipe, RESULT]


@pinning
def pin_data(data: DataFile, training: Recipe, evaluation: EvaluationFile) -> PinnedFiles:
    """Pin the sources, and the benchmarks whose questions are counted among their prompts.

    Raises:
        SpecError: something that a file names cannot be read.
        ModelError: a model folder that is not usable.
    """
    return PinnedFiles(
        fingerprint_data(pin_sources(data)),
        fingerprint_recipe(pin_recipe(training)),
        fingerprint_evaluation(pin_evaluation_file(evaluation)),
    )


@pinning
def pin_training(data: DataFile, training: Recipe) -> PinnedTraining:
    """Pin the judges and the benchmarks of validation. Sources are not read.

    Raises:
        SpecError: something that a file names cannot be read.
    """
    return PinnedTraining(add_judge_digests(data), fingerprint_recipe(pin_recipe(training)))


@pinning
def pin_evaluation(data: DataFile, training: Recipe, evaluation: EvaluationFile) -> PinnedFiles:
    """Pin the judges, and the benchmarks and policies of the evaluation. Nothing else is read.

    Raises:
        SpecError: something that a file names cannot be read.
        ModelError: a model folder that is not usable.
    """
    return PinnedFiles(add_judge_digests(data), training, fingerprint_evaluation(pin_evaluation_file(evaluation)))
