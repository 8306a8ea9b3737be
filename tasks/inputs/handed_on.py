"""Hand inputs of a composing task on to its stages, each with the hash of its content.

A composing task holds its inputs as values, and Flyte's binding of a value to an input has no field for a hash: a stage
that is given one has its address and its run-time options in its cache key. The output of a node has a hash.

    composing task ──► model, config ──► hand_to_... ──► model and config with hashes ──► stage
                       `contents`, their digests ──┘

`contents` is part of the key of the stage in between, because another file may have been written to the address.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, NamedTuple

from flytekit import Resources

from images import DATA
from tasks.cleaning.spec import ScreeningSpec
from tasks.difficulty.spec import RolloutSpec
from tasks.evaluation.harness_spec import HarnessBenchmark
from tasks.evaluation.spec import EvaluationSpec
from tasks.flyte.stages import RESULT, HandedFolder, HandedTable, cached_by_backends, stored_digest
from tasks.generation.config import EngineConfig
from tasks.training.config import TrainingConfig
from tasks.training.model_check.options import CheckedOptions
from tasks.verifiers.config import VerifiersConfig

handing = partial(cached_by_backends, container_image=DATA, requests=Resources(cpu="1", mem="1Gi"), retries=2)
"""Declare a stage that hands on. On this machine it is not cached: a cached address may hold other content by now."""


def contents_of(*files: Any) -> list[str]:
    """Return the digests of Flyte files and folders, for `contents` of a stage here."""
    return [stored_digest(file) for file in files]


class Checked(NamedTuple):
    model: HandedFolder
    options: Annotated[CheckedOptions, RESULT]


class Measured(NamedTuple):
    model: HandedFolder
    spec: Annotated[RolloutSpec, RESULT]
    verifiers: Annotated[VerifiersConfig, RESULT]


class Trained(NamedTuple):
    model: HandedFolder
    mixture: HandedTable
    config: Annotated[TrainingConfig, RESULT]
    verifiers: Annotated[VerifiersConfig, RESULT]


class Evaluated(NamedTuple):
    model: HandedFolder
    policy: HandedFolder
    heldout: HandedTable
    config: Annotated[EvaluationSpec, RESULT]
    engine: Annotated[EngineConfig, RESULT]
    verifiers: Annotated[VerifiersConfig, RESULT]


@handing
def hand_to_check(model: HandedFolder, options: CheckedOptions, contents: list[str]) -> Checked:
    """Return what the model check is given."""
    return Checked(model, options)


@handing
def hand_to_difficulty(
    model: HandedFolder, spec: RolloutSpec, verifiers: VerifiersConfig, contents: list[str]
) -> Measured:
    """Return what the stages of data are given."""
    return Measured(model, spec, verifiers)


@handing
def hand_to_training(
    model: HandedFolder,
    mixture: HandedTable,
    config: TrainingConfig,
    verifiers: VerifiersConfig,
    contents: list[str],
) -> Trained:
    """Return what training is given."""
    return Trained(model, mixture, config, verifiers)


@handing
def hand_to_evaluation(
    model: HandedFolder,
    policy: HandedFolder,
    heldout: HandedTable,
    config: EvaluationSpec,
    verifiers: VerifiersConfig,
    contents: list[str],
) -> Evaluated:
    """Return what the stages of evaluation are given."""
    return Evaluated(model, policy, heldout, config, config.engine, verifiers)


@handing
def hand_on_rollouts(spec: RolloutSpec) -> Annotated[RolloutSpec, RESULT]:
    """Return the options of a variant's rollouts."""
    return spec


@handing
def hand_on_screening(spec: ScreeningSpec) -> Annotated[ScreeningSpec, RESULT]:
    """Return the options of the screening of prompts."""
    return spec


@handing
def hand_on_benchmark(benchmark: HarnessBenchmark) -> Annotated[HarnessBenchmark, RESULT]:
    """Return a benchmark of the harness."""
    return benchmark
