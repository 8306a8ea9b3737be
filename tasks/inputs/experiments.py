"""Defines experiment files, which contain a recipe, its data and evaluation, and the variants to compare."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, model_validator

from tasks.config.fields import YAML, Arguments, AsWritten, InItsOrder, NameOrFile
from tasks.config.loading import (
    Composed,
    Config,
    Extendable,
    SpecError,
    check_choice,
    find_file,
    from_options,
    load_yaml,
    merge,
)
from tasks.inputs.files import ROOT, DataFile, EvaluationFile, Recipe

MODELS: dict[str, type[Extendable]] = {"data": DataFile, "training": Recipe, "evaluation": EvaluationFile}
"""The types of the three files of a run, by the inputs of the pipeline and the options of `Changes`."""

INITIAL = "initial"
"""Name of the initial checkpoint of the baseline among the policies of an experiment."""

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
    reference: ClassVar[str] = "docs/options/experiment.md"

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Name of the experiment."""
    recipe: NameOrFile[str]
    """The recipe, with its data and evaluation file: a path that ends in .yaml, relative to this file, or the name of a
    built-in recipe."""
    variants: InItsOrder[dict[VariantName, Changes]] = Field(min_length=2)
    """The variants by name, each with its changes. `{}` is the unchanged recipe."""
    baseline: str | None = None
    """Optional. Name of the variant that all others are compared with. If null, the first variant is used."""
    seeds: list[Annotated[int, Field(ge=0)]] = []  # noqa: RUF012 (pydantic copies defaults)
    """Optional. Seeds of training (`seed` of the recipe), such as `[0, 1, 2]`. Every variant is trained once with each,
    and its results are the means over these runs, with an interval between runs. If empty, every variant is trained
    once, with its own seed."""

    @classmethod
    def resolve(cls, data: dict[str, Any], folder: Path) -> dict[str, Any]:
        """Return the content of a file in `folder` as `Extendable.resolve` does, including options in the changes."""
        content = super().resolve(data, folder)
        variants = content.get("variants")
        if isinstance(variants, dict):
            content["variants"] = {name: _resolve(changes, folder) for name, changes in variants.items()}
        return _resolve(content, folder)

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        if self.baseline is not None:
            check_choice(self.baseline, self.variants, "baseline", "variant")
        if INITIAL in self.variants:
            raise ValueError(f"variants: {INITIAL!r} is the initial checkpoint, which every experiment has; rename it")
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError("seeds: a seed occurs twice")
        return self

    def build_variant(self, variant: str) -> Variant:
        """Return the three files of a variant.

        Raises:
            SpecError: they cannot be read, or are invalid with these changes.
        """
        changes, where = self.variants[variant], f"{self.name}: variants.{variant}"
        recipe = str(find_file(self.recipe, Recipe, where=f"{self.name}: recipe = {self.recipe!r}"))

        def apply_changes(name: str, base: str) -> Any:
            options = merge(getattr(self, name), getattr(changes, name))
            return from_options(MODELS[name], {"extends": base, **options}, f"{where}.{name}")

        training = apply_changes("training", recipe)
        return Variant(
            data=apply_changes("data", training.data),
            training=training,
            evaluation=apply_changes("evaluation", training.evaluation),
        )


def _resolve(holder: Any, folder: Path) -> Any:
    """Return changes with dotted keys as nested mappings, and paths relative to the working directory."""
    if not isinstance(holder, dict):
        return holder
    result = dict(holder)
    for name, model in MODELS.items():
        options = result.get(name)
        if not isinstance(options, dict):
            continue
        result[name] = model.resolve(options, folder)
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
    seeds: list[int] = []  # noqa: RUF012 (pydantic copies defaults)
    """Seeds of training: every variant is trained once with each. If empty, it is trained once, with its own seed."""

    @classmethod
    def of(cls, file: ExperimentFile) -> Self:
        """Return the experiment of a file.

        Raises:
            SpecError: the files of a variant cannot be made, or its results could not be compared with the baseline's.
        """
        variants = {name: file.build_variant(name) for name in file.variants}
        baseline = file.baseline or next(iter(variants))
        for name, files in variants.items():
            _check_comparable(files, variants[baseline], f"{file.name}: variants.{name}", baseline)
            if file.seeds and files.training.seed != variants[baseline].training.seed:
                raise SpecError(
                    f"{file.name}: variants.{name}: training.seed: the experiment gives seeds; leave it out"
                )
        return cls(name=file.name, baseline=baseline, variants=variants, seeds=file.seeds)

    @property
    def runs(self) -> list[tuple[str, Variant]]:
        """The runs of the experiment: the name and the files of a variant, once for each seed."""
        return [
            (name, files.model_copy(update={"training": files.training.model_copy(update={"seed": seed})}))
            for name, files in self.variants.items()
            for seed in self.seeds or [files.training.seed]
        ]


def _check_comparable(files: Variant, baseline: Variant, where: str, name: str) -> None:
    """Check that a variant is sampled as the baseline is, at the end and in validation.

    Raises:
        SpecError: evaluation or validation samples differently, or validation prompts come from another mixture.
    """
    sampled, wanted = _collect_sampling(files.evaluation), _collect_sampling(baseline.evaluation)
    for asked in sampled.keys() & wanted.keys():
        if sampled[asked] != wanted[asked]:
            raise SpecError(
                f"{where}: evaluation: {asked} differs from the baseline's ({name}), so that results could not be "
                "compared: give it to all variants, in the experiment's own `evaluation`"
            )
    validation = files.training.validation
    if validation != baseline.training.validation:
        raise SpecError(
            f"{where}: training.validation differs from the baseline's ({name}), so that their curves could not be "
            "compared: give it to all variants, in the experiment's own `training`"
        )
    if validation is not None and validation.prompts > 0 and files.data != baseline.data:
        raise SpecError(
            f"{where}: its mixture is not the baseline's ({name}), so that validation.prompts = {validation.prompts} "
            "would be other prompts: give training.validation.prompts: 0 and validate on benchmarks"
        )


def _collect_sampling(evaluation: EvaluationFile) -> dict[str, Any]:
    """Return the sampling options of held-out prompts and of each benchmark, by the option's name."""
    benchmarks = {f"the sampling of {benchmark.name}": benchmark.sampling for benchmark in evaluation.benchmarks}
    return {"sampling": evaluation.sampling, **benchmarks}


def load_quickstart_experiment() -> Experiment:
    """Return the quickstart experiment, which is the workflow's default."""
    return Experiment.of(load_yaml(ExperimentFile, ExperimentFile.folder / "quickstart.yaml"))
