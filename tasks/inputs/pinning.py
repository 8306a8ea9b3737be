"""Pins the three files: adds commits, and digests of everything that the stages will read.

    branch of the hub               its commit
    files, functions, environments  `fingerprint` of the source that names them
    models in folders               `fingerprint` of the model
    packages of checkers            `available` of the data file

The parts of the pipeline are cached by backends and take only these files as inputs. Anything without a digest could
change without being noticed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from tasks.config.loading import SpecError
from tasks.difficulty.spec import DifficultySpec
from tasks.generation.models import ModelSpec
from tasks.inputs.benchmarks import BenchmarkFile
from tasks.inputs.composed_again import read_last_mark
from tasks.inputs.evaluations import add_digests
from tasks.inputs.files import DataFile, EvaluationFile, Recipe
from tasks.inputs.fingerprints import fingerprint_model, fingerprint_verifiers, is_pinned
from tasks.inputs.own_objectives import add_code_digests
from tasks.sourcing import loaders
from tasks.sourcing.spec import EvaluationSet, SourceSpec
from tasks.verifiers.config import VerifiersConfig
from tasks.verifiers.instructions import needs

Result = TypeVar("Result")


def apply_to_sources(data: DataFile, call: Callable[[SourceSpec], Result]) -> list[Result]:
    """Return the results of `call` for all sources that are read.

    Raises:
        SpecError: `call` raised it for some sources. The message contains all their errors, and the option that skips
            these sources.
    """
    results, mistakes = [], {}
    for source in data.used_sources:
        try:
            results.append(call(source))
        except SpecError as error:
            mistakes[source.name] = error
    if not mistakes:
        return results
    sentence = "; ".join(map(str, mistakes.values()))
    if len(mistakes) < len(data.used_sources):
        names = ", ".join([*data.leave_out, *mistakes])
        sentence = f"{sentence}; leave_out: [{names}] in the data file runs without"
    raise SpecError(sentence) from next(iter(mistakes.values()))


def pin_sources(data: DataFile) -> DataFile:
    """Return the data file without skipped sources, and with commits instead of branches of the hub.

    Raises:
        SpecError: a repository on the hub cannot be read.
    """
    return data.model_copy(
        update={
            "sources": apply_to_sources(data, loaders.pin),
            "leave_out": [],
            "evaluation_sets": [_pin_set(known) for known in data.evaluation_sets],
        }
    )


def pin_recipe(training: Recipe) -> Recipe:
    """Return the recipe with commits instead of branches of the hub in its validation benchmarks.

    Raises:
        SpecError: a repository on the hub cannot be read.
    """
    return _replace_benchmarks(training, [_pin_benchmark(benchmark) for benchmark in training.benchmarks])


def pin_evaluation_file(evaluation: EvaluationFile) -> EvaluationFile:
    """Return the evaluation file with commits instead of branches of the hub, and with a digest of each local model.

    Raises:
        SpecError: a repository on the hub cannot be read.
        ModelError: as `fingerprint_model` raises it.
    """
    evaluation = add_digests(evaluation)
    return evaluation.model_copy(
        update={
            "benchmarks": [_pin_benchmark(benchmark) for benchmark in evaluation.benchmarks],
            "policies": {name: fingerprint_model(model) for name, model in evaluation.policies.items()},
        }
    )


def fingerprint_data(data: DataFile) -> DataFile:
    """Add the digests of everything that the data stages will read to the data file of `pin_sources`.

    Raises:
        SpecError: something that it names cannot be read.
        ModelError: as `fingerprint_model` raises it.
    """
    return add_judge_digests(data).model_copy(
        update={
            "sources": apply_to_sources(data, loaders.add_fingerprint),
            "evaluation_sets": [
                known.model_copy(update={"fingerprint": loaders.compute_fingerprint(known.source)})
                for known in data.evaluation_sets
            ],
            "difficulty": _fingerprint_variants(data.difficulty),
            "available": needs.find_available(),
        }
    )


def add_judge_digests(data: DataFile) -> DataFile:
    """Return the data file with the digests of judges and reward models, and the last mark of `compose_again`."""
    return data.model_copy(
        update={"verifiers": fingerprint_verifiers(data.verifiers), "composed_again": read_last_mark()}
    )


def fingerprint_recipe(training: Recipe) -> Recipe:
    """Return the recipe with digests of its benchmarks' questions, and of the user's code.

    That is the code that scores the answers, and the functions of the objective.

    Raises:
        SpecError: a module does not exist.
    """
    return add_code_digests(_replace_benchmarks(training, _fingerprint_benchmarks(training.benchmarks)))


def fingerprint_evaluation(evaluation: EvaluationFile) -> EvaluationFile:
    """Return the evaluation file with digests of its benchmarks' questions, and of the user's code that scores them."""
    return evaluation.model_copy(update={"benchmarks": _fingerprint_benchmarks(evaluation.benchmarks)})


def check_pinned(
    workflow: str,
    verifiers: VerifiersConfig,
    sources: Iterable[SourceSpec] = (),
    models: Iterable[ModelSpec] = (),
    others: Mapping[str, bool] | None = None,
) -> None:
    """Check that the inputs of a part of the pipeline contain digests of everything else that the part reads.

    Args:
        workflow: the workflow that fills in the digests and then starts this part.
        verifiers: options of the verifiers, whose judges may be local models.
        sources: the sources that the part reads.
        models: the models that it loads.
        others: whether other digests are missing, by their name in the message.

    Raises:
        SpecError: a digest is missing, so that the result would be cached under a key that does not reflect changes.
    """
    lacking = [f"source {source.name!r}" for source in sources if source.fingerprint is None]
    lacking += [f"model {model.name!r}" for model in models if not is_pinned(model)]
    if fingerprint_verifiers(verifiers) != verifiers:
        lacking.append("a model of verifiers")
    lacking += [what for what, is_missing in (others or {}).items() if is_missing]
    if lacking:
        raise SpecError(
            f"{lacking[0]} has no digest of its content, so that the cache could not see a change: start {workflow}, "
            "which fills it in and then starts this task"
        )


def _pin_set(known: EvaluationSet) -> EvaluationSet:
    return known.model_copy(update={"loader": loaders.pin(known.source).loader})


def _pin_benchmark(benchmark: BenchmarkFile) -> BenchmarkFile:
    return benchmark.model_copy(update={"source": loaders.pin(benchmark.source)})


def _fingerprint_benchmarks(benchmarks: Sequence[BenchmarkFile]) -> list[BenchmarkFile]:
    return [known.model_copy(update={"source": loaders.add_fingerprint(known.source)}) for known in benchmarks]


def _replace_benchmarks(training: Recipe, benchmarks: list[BenchmarkFile]) -> Recipe:
    if training.validation is None:
        return training
    validation = training.validation.model_copy(update={"benchmarks": benchmarks})
    return training.model_copy(update={"validation": validation})


def _fingerprint_variants(difficulty: DifficultySpec | None) -> DifficultySpec | None:
    """Return the difficulty filter with a digest of the content of each compared model."""
    if difficulty is None:
        return None
    compared = {
        name: variant
        if variant.model is None
        else variant.model_copy(update={"model": fingerprint_model(variant.model)})
        for name, variant in difficulty.compared.items()
    }
    return difficulty.model_copy(update={"compared": compared})
