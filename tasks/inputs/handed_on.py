"""Passes inputs of a dynamic task to its stages, each with the hash of its content.

A dynamic task has its inputs as values, and Flyte's binding of a value to an input has no field for a hash. A stage
that gets such a value would have its address and its run-time options in its cache key. The output of a node has a
hash.

    composing task ──► model, config ──► hand_to_... ──► model and config with hashes ──► stage
                       `contents`, their digests ──┘

`contents` is part of the cache key of the intermediate stage, because another file may have been written to the
address.
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
from tasks.flyte.stages import RESULT, HandedFolder, HandedTable, cached_by_backends, read_stored_digest
from tasks.generation.config import EngineConfig
from tasks.model_check.options import CheckedOptions
from tasks.recipe.run import TrainingConfig
from tasks.verifiers.config import VerifiersConfig

handing = partial(cached_by_backends, container_image=DATA, requests=Resources(cpu="1", mem="1Gi"), retries=2)
"""Declare an intermediate stage. It is not cached locally, because the content at a cached address may have changed.
"""


def list_contents(*files: Any) -> list[str]:
    """Return the digests of Flyte files and folders, for the input `contents` of the stages here."""
    return [read_stored_digest(file) for file in files]


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
    """Return the inputs of the model check."""
    return Checked(model, options)


@handing
def hand_to_difficulty(
    model: HandedFolder, spec: RolloutSpec, verifiers: VerifiersConfig, contents: list[str]
) -> Measured:
    """Return the inputs of the difficulty stages."""
    return Measured(model, spec, verifiers)


@handing
def hand_to_training(
    model: HandedFolder,
    mixture: HandedTable,
    config: TrainingConfig,
    verifiers: VerifiersConfig,
    contents: list[str],
) -> Trained:
    """Return the inputs of training."""
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
    """Return the inputs of the evaluation stages."""
    return Evaluated(model, policy, heldout, config, config.engine, verifiers)


@handing
def hand_on_rollouts(spec: RolloutSpec) -> Annotated[RolloutSpec, RESULT]:
    """Return the rollout options of a variant."""
    return spec


@handing
def hand_on_screening(spec: ScreeningSpec) -> Annotated[ScreeningSpec, RESULT]:
    """Return the options for screening prompts."""
    return spec


@handing
def hand_on_benchmark(benchmark: HarnessBenchmark) -> Annotated[HarnessBenchmark, RESULT]:
    """Return a benchmark of the harness."""
    return benchmark
