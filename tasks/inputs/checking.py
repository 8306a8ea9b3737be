"""Checks files of a user against each other, as `rlvr check` does. Nothing is run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tasks.config.fields import YAML
from tasks.config.loading import Extendable, SpecError, find_file, list_shipped_files, load_yaml, read_yaml
from tasks.config.option_names import SIMILAR, compute_similarities
from tasks.inputs.experiments import MODELS, Experiment, ExperimentFile
from tasks.inputs.files import DataFile, EvaluationFile, Recipe, load_quickstart
from tasks.inputs.installed import describe_missing, find_missing_packages

KINDS: Mapping[str, type[Extendable]] = MODELS | {"experiment": ExperimentFile}
"""The types of files, by the option of `rlvr run` that takes them."""


def check_files(names: Iterable[str]) -> list[str]:
    """Check files against each other, as the first stage of a run does, and return a line for each check.

    A recipe is checked with the data and evaluation files that it names, unless others are given. Sources are opened,
    and the user's functions are called on their first rows. Neither pods nor memory of this machine are needed.

    Args:
        names: paths of files, or names of recipes that ship.

    Raises:
        SpecError: a file is invalid, files contradict each other, or two files have the same kind.
        MistakeError: something that they name cannot be used.
    """
    from tasks.inputs.preflight import check_variants, preflight

    given: dict[str, dict[str, Path]] = {kind: {} for kind in KINDS}
    paths = {name: Path(name) if name.endswith(YAML) else find_file(name, Recipe) for name in names}
    kinds = {name: find_kinds(path) for name, path in paths.items()}
    # Files that only one type fits come first, because a recipe may name the others.
    for name, path in sorted(paths.items(), key=lambda item: len(kinds[item[0]]) > 1):
        given[_choose_kind(name, path, kinds[name], given)][name] = path
    for kind, several in given.items():
        if len(several) > 1 and kind != "experiment":
            raise SpecError(f"{' and '.join(several)} are both files for --{kind}: check one at a time")
    lines = []
    if any(given[kind] for kind in ("data", "training", "evaluation")):
        files, shown = _collect_run_files({kind: next(iter(several.items()), None) for kind, several in given.items()})
        preflight.task_function(**files)
        lines.append(f"checked     {', '.join(f'{kind} {name}' for kind, name in shown.items())}")
        if missing := find_missing_packages(files["training"].model):
            lines.append(f"warning     {describe_missing(missing)}")
    for name, path in given["experiment"].items():
        experiment = Experiment.of(load_yaml(ExperimentFile, path))
        check_variants.task_function(experiment=experiment)
        lines.append(f"checked     experiment {name}, {len(experiment.variants)} variants")
    return lines


def find_kinds(path: Path, below: tuple[Path, ...] = ()) -> list[str]:
    """Return the kinds of a file: the types that its keys fit best, and that have the file that it extends.

    Args:
        path: path of the file.
        below: the files that extend it, which are not read again if it extends one of them.

    Raises:
        SpecError: the file cannot be read, contains no mapping, or extends a file that no type has.
    """
    content = read_yaml(path)
    if not isinstance(content, dict):
        raise SpecError(f"{path}: must be a mapping of options")
    # A dotted key is short for nested mappings.
    values = {str(key).partition(".")[0]: {} if "." in str(key) else value for key, value in content.items()}
    extends = str(values.pop("extends", ""))
    misfit = {kind: sum(_measure_misfit(*item, model) for item in values.items()) for kind, model in KINDS.items()}
    fitting = [kind for kind, total in misfit.items() if total == min(misfit.values())]
    if len(fitting) > 1 and extends:
        where = f"{path}: extends = {extends!r}"
        if extends.endswith(YAML):
            base = find_file(extends, Recipe, path.parent, where).resolve()
            above = [] if base in below else find_kinds(base, (*below, path.resolve()))
        else:
            above = [kind for kind in KINDS if extends in list_shipped_files(KINDS[kind])]
            if not above:  # the error says so
                find_file(extends, KINDS[fitting[0]], path.parent, where)
        fitting = [kind for kind in fitting if kind in above] or fitting
    return fitting


def _measure_misfit(key: str, value: Any, model: type[Extendable]) -> float:
    """Return how badly a key fits a type of file: 0 for an option, up to `1 - SIMILAR` for a similar name, else 1."""
    if key in MODELS and key in model.model_fields:
        # A recipe names its files, and an experiment has changes to them.
        return float(isinstance(value, dict) != (model is ExperimentFile))
    best = max(compute_similarities(key, list(model.model_fields)).values())
    return 1 - best if best >= SIMILAR else 1


def _choose_kind(name: str, path: Path, kinds: list[str], given: Mapping[str, Mapping[str, Path]]) -> str:
    """Return the kind of a file that is of one of several kinds, by the recipe that names it."""
    if len(kinds) == 1:
        return kinds[0]
    for recipe in given["training"].values():
        named = load_yaml(Recipe, recipe)
        for kind, companion in (("data", named.data), ("evaluation", named.evaluation)):
            if companion.endswith(YAML) and Path(companion).resolve() == path.resolve():
                return kind
    raise SpecError(
        f"{name}: its keys fit files for {', '.join(f'--{kind}' for kind in kinds)}: check it together with a "
        "recipe that names it, or give it an option that only one kind has"
    )


def _collect_run_files(given: Mapping[str, tuple[str, Path] | None]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the three files of a run, and their names: given files, or else the recipe's."""
    recipe = load_yaml(Recipe, given["training"][1]) if given["training"] else load_quickstart()[1]
    called = given["training"][0] if given["training"] else "quickstart"
    names = {"data": recipe.data, "training": called, "evaluation": recipe.evaluation}
    files: dict[str, Any] = {"training": recipe}
    for kind, model in (("data", DataFile), ("evaluation", EvaluationFile)):
        file = given[kind]
        files[kind] = load_yaml(model, file[1]) if file else recipe.load_companion(model, called)
    return files, {kind: given[kind][0] if given[kind] else name for kind, name in names.items()}  # type: ignore[index]
