"""Checks the benchmarks of an evaluation file and a recipe against the data file, and pins what they name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tasks.config import SpecError
from tasks.evaluation.spec import check_server
from tasks.inputs.benchmarks import BenchmarkFile
from tasks.inputs.files import DataFile, EvaluationFile, Recipe
from tasks.inputs.fingerprints import fingerprinted_model
from tasks.inputs.judges import check_has_judge
from tasks.sourcing import loaders
from tasks.tables.content_digest import file_digest


def check_evaluation(data: DataFile, training: Recipe, evaluation: EvaluationFile) -> None:
    """Check that benchmarks can be judged as the data file says, and that their names are theirs alone.

    They are those of the evaluation, and those of the recipe's validation.

    Raises:
        SpecError: a benchmark of chat without a judge, one with the name of a domain, or a server for several policies.
    """
    check_server(evaluation)
    domains = {domain for source in data.used_sources for domain in source.domains}
    for benchmark in (*evaluation.benchmarks, *training.benchmarks):
        check_has_judge(benchmark.source, data)
    for name in evaluation.names_of_benchmarks:
        if name in domains:
            raise SpecError(
                f"evaluation: benchmarks: {name!r} is a domain of {data.name}, which has figures of its own: give the "
                "benchmark another name"
            )


def pinned_evaluation(evaluation: EvaluationFile) -> EvaluationFile:
    """Return the evaluation file with commits of the hub in place of branches, and with a digest of local models.

    Raises:
        SpecError: a repository of the hub that cannot be read.
        ModelError: as `fingerprinted_model` raises it.
    """
    evaluation = with_digests(evaluation)
    return evaluation.model_copy(
        update={
            "benchmarks": _pinned(evaluation.benchmarks),
            "policies": {name: fingerprinted_model(model) for name, model in evaluation.policies.items()},
        }
    )


def pinned_recipe(training: Recipe) -> Recipe:
    """Return the recipe with commits of the hub in place of branches in the benchmarks of its validation.

    Raises:
        SpecError: a repository of the hub that cannot be read.
    """
    if training.validation is None:
        return training
    pinned = training.validation.model_copy(update={"benchmarks": _pinned(training.benchmarks)})
    return training.model_copy(update={"validation": pinned})


def _pinned(benchmarks: Sequence[BenchmarkFile]) -> list[BenchmarkFile]:
    return [benchmark.model_copy(update={"source": loaders.pinned(benchmark.source)}) for benchmark in benchmarks]


def with_digests(evaluation: EvaluationFile) -> EvaluationFile:
    """Return the evaluation file with digests of what it names here: the harness's task files, data of win rates.

    Raises:
        SpecError: a folder or file that does not exist.
    """
    benchmarks = []
    for known in evaluation.benchmarks:
        file = known.length_control
        if file is None or "://" in file:
            benchmarks.append(known)
            continue
        if not Path(file).expanduser().is_file():
            raise SpecError(f"evaluation: benchmark {known.name!r}: length_control = {file!r}: no such file")
        benchmarks.append(known.model_copy(update={"fingerprint": file_digest(str(Path(file).expanduser()))}))
    harness = []
    for benchmark in evaluation.harness:
        path = benchmark.include_path
        if path is not None and not Path(path).expanduser().is_dir():
            raise SpecError(f"evaluation: harness: {benchmark.name!r}: include_path = {path!r}: no such folder")
        digest = None if path is None else file_digest(str(Path(path).expanduser()))
        harness.append(benchmark.model_copy(update={"fingerprint": digest or benchmark.fingerprint}))
    return evaluation.model_copy(update={"benchmarks": benchmarks, "harness": harness})
