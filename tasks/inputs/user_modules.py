"""Checks that a cluster gets the user's modules that the three files name, in the same version.

pyflyte run --remote    `check_sent`, before anything is uploaded: each module is in the archive
launch                  `compute_digests` here ──► environment of the execution ──► `check_registered` in preflight
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tasks.config.loading import SpecError
from tasks.flyte.archive import Sent
from tasks.inputs.experiments import Experiment
from tasks.inputs.files import DataFile, EvaluationFile, Recipe
from tasks.lineage.user_code import find_user_files, user_code_digest
from tasks.sourcing.spec import SourceBatch, SourceSpec
from tasks.verifiers.scores import is_own

MODULES = "RLVR_MODULES"
"""Environment variable of an execution with the digests of the user's modules at launch, as JSON by name."""
OF_IMAGES = "data_specs"
"""The built-in package, present in all images, whose functions data files may name."""


def list_modules(files: Iterable[Any]) -> set[str]:
    """Return the names of the user's modules that are used by the specifications among `files`."""
    return {
        module
        for file in files
        for each in _list_files(file)
        for module in (
            *_list_objective_modules(each),
            *(module for source in _list_sources(each) for module in _list_source_modules(source)),
        )
    }


def check_sent(sent: Sent, files: Iterable[Any], *, whole: bool) -> None:
    """Check that an archive contains the user's modules that files name, and their imports.

    Args:
        sent: the files that are sent.
        files: the inputs of a launch.
        whole: whether the whole folder is sent, and not only the modules that flytekit has loaded.

    Raises:
        SpecError: a module does not exist, is outside of the folder, or is not among the files that are sent.
    """
    modules = sorted(list_modules(files))
    if not whole and (modules := [name for name in modules if name.partition(".")[0] != OF_IMAGES]):
        raise SpecError(f"module {modules[0]} is not sent to the cluster: give --copy all, which sends {sent.folder}")
    paths, root = {path.resolve() for path in (*sent.files, *sent.packages)}, sent.folder
    for module in modules:
        for name, path in _find_files(module).items():
            if path.resolve() in paths:
                continue
            if not path.resolve().is_relative_to(root.resolve()):
                raise SpecError(f"module {name} lies outside of {root}, which is what is sent to the cluster: {path}")
            raise SpecError(
                f"module {name} is not sent to the cluster: git ignores {path}, or .flyteignore in {root} names it"
            )


def compute_digests(files: Iterable[Any]) -> dict[str, str]:
    """Return the digests of the user's modules that files name, by name. A digest covers the module's imports.

    Raises:
        SpecError: a module does not exist.
    """
    return {module: _compute_digest(module) for module in sorted(list_modules(files)) if _find_files(module)}


def check_registered() -> None:
    """Check in a pod that its code contains the modules of the launch, in the same version.

    Raises:
        SpecError: a module is missing or differs.
    """
    for module, digest in json.loads(os.environ.get(MODULES, "{}")).items():
        try:
            here = _compute_digest(module)
        except SpecError:
            here = None
        if here != digest:
            what = "is not in the code that is registered" if here is None else "is registered in another version"
            raise SpecError(
                f"module {module} {what}: run make register in the folder that contains it, and launch again"
            )


def _list_files(file: Any) -> Iterator[Any]:
    """Yield the files of an experiment's variants, or the file itself."""
    if isinstance(file, Experiment):
        for variant in file.variants.values():
            yield from (variant.data, variant.training, variant.evaluation)
    else:
        yield file


def _list_objective_modules(file: Any) -> Iterator[str]:
    """Yield the modules of the functions of a recipe's objective."""
    if isinstance(file, Recipe):
        for own in file.objective.own_functions.values():
            yield own.function.rpartition(".")[0]


def _list_sources(file: Any) -> Iterator[SourceSpec]:
    match file:
        case DataFile():
            yield from file.used_sources
            yield from (known.source for known in file.evaluation_sets)
        case Recipe() | EvaluationFile():
            yield from (benchmark.source for benchmark in file.benchmarks)
        case SourceBatch():
            yield from file.sources


def _list_source_modules(source: SourceSpec) -> Iterator[str]:
    functions = source.code_of_the_user | ({source.transform} if source.transform else set())
    for name in functions:
        yield name if is_own(name) and name in source.verifiers else name.rpartition(".")[0]


def _find_files(module: str) -> dict[str, Path]:
    try:
        return find_user_files(module)
    except ImportError as error:
        raise SpecError(f"{error}, so that a cluster would not get it") from None


def _compute_digest(module: str) -> str:
    _find_files(module)
    return user_code_digest(module)
