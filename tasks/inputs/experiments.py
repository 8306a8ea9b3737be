"""Defines experiment files, which contain a recipe, its data and evaluation, and the variants to compare."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, model_validator

from tasks.config import (
    Composed,
    Config,
    Extendable,
    file_called,
    from_options,
    load_yaml,
    merged,
    must_be_one_of,
)
from tasks.config_fields import YAML, Arguments, AsWritten, InItsOrder, NameOrFile
from tasks.inputs.files import ROOT, DataFile, EvaluationFile, Recipe

MODELS: dict[str, type[Extendable]] = {"data": DataFile, "training": Recipe, "evaluation": EvaluationFile}
"""The types of the three files of a run, by the options that contain changes to them."""


VariantName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
"""The name of a variant, which is used in tables and in file names."""


class Changes(Config):
    """Changes to a run's three files: options that are merged over the files' options.

    A dotted key is short for nested mappings, a path is relative to this file, and `extends` names another file to
    start from.
    """

    data: AsWritten[Arguments] = {}  # noqa: RUF012 (pydantic copies defaults)
    """Changes to the data file, such as another mixture."""
    training: AsWritten[Arguments] = {}  # noqa: RUF012 (pydantic copies defaults)
    """Changes to the recipe, such as another objective or initial checkpoint."""
    evaluation: AsWritten[Arguments] = {}  # noqa: RUF012 (pydantic copies defaults)
    """Changes to the evaluation file, such as other benchmarks."""


class ExperimentFile(Extendable, Changes):
    """An experiment: variants of a recipe that are trained and compared with each other.

    The experiment's own changes apply to all variants.
    """

    folder: ClassVar[Path] = ROOT / "workflows" / "variants"

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Name of the experiment."""
    recipe: NameOrFile[str]
    """The recipe, with its data and evaluation file: a path that ends in .yaml, relative to this file, or the name of a
    built-in recipe."""
    variants: InItsOrder[dict[VariantName, Changes]] = Field(min_length=2)
    """The variants by name, each with its changes. `{}` is the unchanged recipe."""
    baseline: str | None = None
    """Optional. Name of the variant that all others are compared with. If null, the first variant is used."""

    @classmethod
    def resolved(cls, data: dict[str, Any], folder: Path) -> dict[str, Any]:
        """Return the content of a file in `folder` as `Extendable.resolved` does, including options in the changes."""
        content = super().resolved(data, folder)
        variants = content.get("variants")
        if isinstance(variants, dict):
            content["variants"] = {name: _resolved(changes, folder) for name, changes in variants.items()}
        return _resolved(content, folder)

    @model_validator(mode="after")
    def _names_fit(self) -> Self:
        if self.baseline is not None:
            must_be_one_of(self.baseline, self.variants, "baseline", "variant")
        return self

    def files_of(self, variant: str) -> Variant:
        """Return the three files of a variant.

        Raises:
            SpecError: they cannot be read, or are invalid with these changes.
        """
        changes, where = self.variants[variant], f"{self.name}: variants.{variant}"
        recipe = str(file_called(self.recipe, Recipe, where=f"{self.name}: recipe = {self.recipe!r}"))

        def changed(name: str, base: str) -> Any:
            options = merged(getattr(self, name), getattr(changes, name))
            return from_options(MODELS[name], {"extends": base, **options}, f"{where}.{name}")

        training = changed("training", recipe)
        return Variant(
            data=changed("data", training.data),
            training=training,
            evaluation=changed("evaluation", training.evaluation),
        )


def _resolved(holder: Any, folder: Path) -> Any:
    """Return changes with dotted keys as nested mappings, and paths relative to the working directory."""
    if not isinstance(holder, dict):
        return holder
    result = dict(holder)
    for name, model in MODELS.items():
        options = result.get(name)
        if not isinstance(options, dict):
            continue
        result[name] = model.resolved(options, folder)
        base = options.get("extends")
        if isinstance(base, str) and base.endswith(YAML) and not Path(base).is_absolute():
            result[name]["extends"] = str(folder / base)
    return result


class Variant(Config):
    """The three files of a variant's run."""

    data: DataFile
    """The variant's data file."""
    training: Recipe
    """The variant's recipe."""
    evaluation: EvaluationFile
    """The variant's evaluation file."""


class Experiment(Composed):
    """An experiment with the files of all its variants, made from an experiment file."""

    written: ClassVar[type[Extendable]] = ExperimentFile

    name: str
    """Name of the experiment."""
    baseline: str
    """Name of the variant that all others are compared with."""
    variants: InItsOrder[dict[str, Variant]]
    """The variants by name."""

    @classmethod
    def of(cls, file: ExperimentFile) -> Self:
        """Return the experiment of a file. Raises `SpecError` if the files of a variant cannot be made."""
        variants = {name: file.files_of(name) for name in file.variants}
        return cls(name=file.name, baseline=file.baseline or next(iter(variants)), variants=variants)


def quickstart_experiment() -> Experiment:
    """Return the quickstart experiment, which is the workflow's default."""
    return Experiment.of(load_yaml(ExperimentFile, ExperimentFile.folder / "quickstart.yaml"))
