"""Experiment files: a recipe, the variants of it that are compared, and on what."""

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
"""The types of the three files of a run, by the options that hold changes of them."""


VariantName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
"""The name of a variant: it stands in tables, and in the names of files."""


class Changes(Config):
    """Changes of a run's three files: options that are merged over theirs.

    A dotted key is short for a mapping in a mapping, a path is relative to this file, and `extends` names another file
    to begin with.
    """

    data: AsWritten[Arguments] = {}  # noqa: RUF012 (pydantic copies defaults)
    """Changes of the data file: another mixture, say."""
    training: AsWritten[Arguments] = {}  # noqa: RUF012 (pydantic copies defaults)
    """Changes of the recipe: of the objective, say, or of the initial checkpoint."""
    evaluation: AsWritten[Arguments] = {}  # noqa: RUF012 (pydantic copies defaults)
    """Changes of the evaluation file: benchmarks, say."""


class ExperimentFile(Extendable, Changes):
    """An experiment: variants of a recipe that are trained alike and compared with one another.

    Its own changes are those of all variants.
    """

    folder: ClassVar[Path] = ROOT / "workflows" / "variants"

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Name of the experiment."""
    recipe: NameOrFile[str]
    """The recipe, with its data and evaluation file: a path that ends in .yaml, relative to this file, or the name of
    one that ships."""
    variants: InItsOrder[dict[VariantName, Changes]] = Field(min_length=2)
    """The variants by name, each with its changes; `{}` is the recipe as it is."""
    baseline: str | None = None
    """Name of the variant from which the differences of all others are taken. null: the first."""

    @classmethod
    def resolved(cls, data: dict[str, Any], folder: Path) -> dict[str, Any]:
        """Return the content of a file in `folder` as `Extendable.resolved` does, the changes' options included."""
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
            SpecError: they cannot be read, or with these changes they are no such files.
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
    """Return changes with dotted keys as mappings, and paths of their options as seen from here."""
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
    """An experiment with the files of all its variants, as an experiment file stands for it."""

    written: ClassVar[type[Extendable]] = ExperimentFile

    name: str
    """Name of the experiment."""
    baseline: str
    """Name of the variant from which the differences of all others are taken."""
    variants: InItsOrder[dict[str, Variant]]
    """The variants by name."""

    @classmethod
    def of(cls, file: ExperimentFile) -> Self:
        """Return the experiment of a file; raises `SpecError` where the files of a variant cannot be made."""
        variants = {name: file.files_of(name) for name in file.variants}
        return cls(name=file.name, baseline=file.baseline or next(iter(variants)), variants=variants)


def quickstart_experiment() -> Experiment:
    """Return the experiment of the quickstart's size, which is the workflow's default."""
    return Experiment.of(load_yaml(ExperimentFile, ExperimentFile.folder / "quickstart.yaml"))
