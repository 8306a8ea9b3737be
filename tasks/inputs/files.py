"""Defines the three files that a user writes (data, training recipe and evaluation) from the options of the stages."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar, Self

from pydantic import Field, model_validator

from tasks.cleaning.spec import CleaningSpec, DuplicatesSpec, ScreeningSpec
from tasks.config.fields import InItsOrder, NameOrFile
from tasks.config.loading import Companion, Extendable, RecipeFile, RunTime, check_choice, find_file, load_yaml
from tasks.difficulty.spec import DifficultySpec
from tasks.evaluation.harness_spec import HarnessBenchmark
from tasks.evaluation.spec import ComparedBenchmarks, EvaluationSpec
from tasks.generation.benchmark_sampling import AskedBenchmarks
from tasks.generation.models import ModelSpec
from tasks.inputs.benchmarks import BenchmarkFile, BenchmarksInFile, NamedQuestions, check_engine, check_names
from tasks.kubernetes.pods import PodConfig
from tasks.mixing.spec import MixtureSpec
from tasks.recipe.run import TrainingConfig, ValidationConfig
from tasks.sourcing.spec import DataSpec, SourceSpec
from tasks.tables.losses import WARN_IF_LOST
from tasks.tables.schemas import AFTER, BEFORE, EVERYTHING, HELDOUT
from tasks.training.cluster.pods import ClusterConfig, check_cluster
from tasks.verifiers.config import VerifiersConfig

ROOT = Path(__file__).parents[2]
RECIPES = ROOT / "workflows" / "recipes"
EVALUATIONS = ROOT / "workflows" / "evaluations"
DATA_SPECS = ROOT / "data_specs"


class DataFile(Extendable, DataSpec):
    """The data file: sources, their cleaning, the verification of responses, the difficulty filter, and the mixture."""

    folder: ClassVar[Path] = DATA_SPECS
    reference: ClassVar[str] = "docs/options/data.md"
    named_by_recipe: ClassVar[bool] = True

    evaluation_sets: NameOrFile[list[NamedQuestions]] = []  # noqa: RUF012 (pydantic copies defaults)
    """Questions that must not be among the prompts (decontamination). Each item is a set, the name of a built-in
    benchmark, or the path of a benchmark file, which ends in .yaml and is relative to this file."""
    cleaning: CleaningSpec = CleaningSpec()
    verifiers: VerifiersConfig = VerifiersConfig()
    difficulty: DifficultySpec | None = DifficultySpec()
    """The difficulty filter. By default, 8 rollouts per prompt are sampled with the sampling options of training. If
    null, the data is not filtered: nothing is sampled, and all prompts that fit are kept, without pass rates."""
    mixture: MixtureSpec = MixtureSpec()
    warn_if_lost: RunTime[float] = Field(default=WARN_IF_LOST, gt=0, le=1)
    """Share of a source's rows. If one stage drops more of them, a warning with the commonest reasons is logged, and is
    shown on the terminal and in the report. With 1 such warnings are off."""
    pod: RunTime[PodConfig] = PodConfig(cpu=1, memory_gib=4)
    """The pods on a cluster that read sources and clean, select and mix prompts."""
    available: list[str] | None = None
    """Packages and NLTK data that the data image has for checkers. It is filled in before a run."""
    composed_again: str | None = None
    """The last mark of `compose_again`, which is filled in before a run. If it changes, parts of the pipeline are not
    taken from the cache."""

    @property
    def sourcing(self) -> DataSpec:
        """Return only the options of the sources, so that a changed mixture does not change their cache keys."""
        return DataSpec(**{name: getattr(self, name) for name in DataSpec.model_fields})

    @property
    def duplication(self) -> DuplicatesSpec:
        """Return the options of the search for duplicates, which skips the templates of the sources."""
        return self.cleaning.duplication.model_copy(update={"templates": list_templates(self.used_sources)})

    def screening(self, *, evaluated: bool) -> ScreeningSpec | None:
        """Return the options of screening, which skips the templates of the sources, or None if nothing is screened.

        Args:
            evaluated: True if there are evaluation sets.
        """
        screening = self.cleaning.screening(evaluated=evaluated)
        templates = list_templates(self.used_sources) if evaluated else []
        return screening and screening.model_copy(update={"templates": templates})


class EvaluationFile(Extendable, BenchmarksInFile, EvaluationSpec):
    """The evaluation file: the benchmarks, the sampling options, and the policies to compare."""

    folder: ClassVar[Path] = EVALUATIONS
    reference: ClassVar[str] = "docs/options/evaluation.md"
    named_by_recipe: ClassVar[bool] = True

    harness: list[HarnessBenchmark] = []  # noqa: RUF012 (pydantic copies defaults)
    """Benchmarks that the package lm-eval (lm-evaluation-harness) runs on every policy, as in `{name: mmlu, tasks:
    [mmlu], num_fewshot: 5}`. They are compared like the others."""
    policies: InItsOrder[dict[str, ModelSpec]] = {}  # noqa: RUF012 (pydantic copies defaults)
    """Additional models to evaluate, by name. `before` is the initial checkpoint, and `after` the trained policy.
    """
    baseline: str = BEFORE
    """Name of the policy that all others are compared with."""
    view: bool = False
    """Write the responses to the output `view`, a folder of static files with the viewer. It has at most 5,000
    responses, and no other stage depends on it."""

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        for name in (BEFORE, AFTER):
            if name in self.policies:
                raise ValueError(f"policies: {name!r} is a policy of every run; give yours another name")
        check_choice(self.baseline, (BEFORE, AFTER, *self.policies), "baseline", "policy")
        check_names(self.names_of_benchmarks, (HELDOUT, EVERYTHING))
        check_engine(self.benchmarks, self.engine, "engine.max_model_len")
        for one in self.harness:
            if (length := one.gen_kwargs.get("max_gen_toks", 0)) >= self.engine.max_model_len:
                raise ValueError(
                    f"harness: {one.name!r}: gen_kwargs.max_gen_toks ({length}) leaves no room for a prompt in "
                    f"engine.max_model_len ({self.engine.max_model_len})"
                )
        return self

    @property
    def names_of_policies(self) -> list[str]:
        """Return the names of all policies, in the order of the result tables."""
        return [BEFORE, AFTER, *self.policies]

    @property
    def names_of_benchmarks(self) -> list[str]:
        """Return the names of all benchmarks. Benchmarks of the harness come last."""
        return [*(benchmark.name for benchmark in self.benchmarks), *(one.name for one in self.harness)]

    def find_first_name(self, name: str, initial: ModelSpec) -> str:
        """Return the first name of the model that policy `name` uses, given that `before` is the model `initial`.

        A model with two names is evaluated once.
        """
        models = {BEFORE: initial, **self.policies}
        if name not in models:
            return name
        return next(other for other, model in models.items() if model.is_same_model(models[name]))

    def evaluated(self, initial: ModelSpec) -> list[str]:
        """Return the policies to evaluate, by the first name of each model."""
        return [name for name in self.names_of_policies if self.find_first_name(name, initial) == name]

    @property
    def of_a_policy(self) -> EvaluationSpec:
        """Return the options for evaluating one policy, without the names of policies and benchmarks."""
        return EvaluationSpec(**{name: getattr(self, name) for name in EvaluationSpec.model_fields})

    @property
    def asked(self) -> AskedBenchmarks:
        """The benchmarks as a policy answers them."""
        return AskedBenchmarks(benchmarks=[benchmark.asked for benchmark in self.benchmarks])

    @property
    def compared(self) -> ComparedBenchmarks:
        """The benchmarks as policies are compared on them."""
        asked = [benchmark.compared for benchmark in self.benchmarks]
        return ComparedBenchmarks(benchmarks=[*asked, *(benchmark.compared for benchmark in self.harness)])


class ValidationOptions(BenchmarksInFile, ValidationConfig):
    """Validation during training, in a recipe: the options of the run, and the benchmarks to validate on."""

    @model_validator(mode="after")
    def _check_asked(self) -> Self:
        if self.prompts == 0 and not self.benchmarks:
            raise ValueError("validation: prompts is 0 and benchmarks has none: give one of them, or leave it out")
        check_names([benchmark.name for benchmark in self.benchmarks], ())
        return self


class Recipe(RecipeFile, TrainingConfig):
    """The training recipe: the initial checkpoint, the training options, and the machines."""

    folder: ClassVar[Path] = RECIPES
    reference: ClassVar[str] = "docs/options/training.md"

    data: NameOrFile[str] = "quickstart"
    """The default data file of the recipe, which the command line can override: a path that ends in .yaml, relative to
    this file, or the name of a built-in data file."""
    evaluation: NameOrFile[str] = "quickstart"
    """The default evaluation file of the recipe, which the command line can override: a path that ends in .yaml,
    relative to this file, or the name of a built-in evaluation file."""
    model: ModelSpec = ModelSpec()
    """The initial checkpoint."""
    cluster: RunTime[ClusterConfig] = ClusterConfig()
    """The machines that training uses on a cluster."""
    validation: ValidationOptions | None = None
    """Optional. Validation on prompts that are never trained on, and on benchmarks. If null, there is no validation."""
    # Not a run-time option here, as it is in training, because it decides whether `checking` starts a stage.
    model_check: bool = True
    """Compare learner, model and engine before the first rollout. A difference beyond rounding ends the run
    (`docs/troubleshooting.md`). Use false for a model whose differences are known and accepted. Changing this option
    does not rerun training."""

    @model_validator(mode="after")
    def _check_cluster(self) -> Self:
        check_cluster(self, self.cluster)
        return self

    @model_validator(mode="after")
    def _has_room_for_benchmarks(self) -> Self:
        check_engine(self.benchmarks, self.actors.engine, "actors.engine.max_model_len")
        return self

    @property
    def benchmarks(self) -> list[BenchmarkFile]:
        """Return the benchmarks of validation."""
        return [] if self.validation is None else self.validation.benchmarks

    @property
    def asked(self) -> AskedBenchmarks:
        """Return the parts of the benchmarks that are needed to sample from the policy in validation."""
        return AskedBenchmarks(benchmarks=[benchmark.asked for benchmark in self.benchmarks])

    def load_companion(self, model: type[Companion], recipe: str = "the recipe") -> Companion:
        """Return the data or evaluation file that the recipe names. Raises `SpecError` if it cannot be read."""
        option, name = ("data", self.data) if model is DataFile else ("evaluation", self.evaluation)
        return load_yaml(model, find_file(name, model, where=f"{recipe}: {option} = {name!r}"))

    @property
    def run(self) -> TrainingConfig:
        """Return only the options of training. The model and the benchmarks are inputs of training, not options."""
        options = {name: getattr(self, name) for name in TrainingConfig.model_fields}
        if self.validation is not None:
            shared = {name: getattr(self.validation, name) for name in ValidationConfig.model_fields}
            options["validation"] = ValidationConfig(**shared)
        return TrainingConfig(**options)


def list_templates(sources: Iterable[SourceSpec]) -> list[str]:
    """Return the templates of sources, sorted, each once."""
    return sorted({source.columns.template for source in sources if source.columns.template is not None})


def load_quickstart() -> tuple[DataFile, Recipe, EvaluationFile]:
    """Return the three files of the quickstart, the pipeline's defaults."""
    return load_recipe_files("quickstart")


def load_recipe_files(recipe: str) -> tuple[DataFile, Recipe, EvaluationFile]:
    """Return the three files of a built-in recipe, by the recipe's name."""
    training = load_yaml(Recipe, RECIPES / f"{recipe}.yaml")
    return training.load_companion(DataFile), training, training.load_companion(EvaluationFile)
