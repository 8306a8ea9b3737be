"""The three files that a user writes: data, training recipe and evaluation, composed of the stages' options."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Self

from pydantic import model_validator

from tasks.cleaning.spec import CleaningSpec
from tasks.config import Companion, Extendable, RecipeFile, RunTime, file_called, load_yaml, must_be_one_of
from tasks.config_fields import InItsOrder, NameOrFile
from tasks.difficulty.spec import DifficultySpec
from tasks.evaluation.harness_spec import HarnessBenchmark
from tasks.evaluation.spec import ComparedBenchmarks, EvaluationSpec
from tasks.generation.benchmark_sampling import AskedBenchmarks
from tasks.generation.models import ModelSpec
from tasks.inputs.benchmarks import BenchmarkFile, NamedBenchmark, NamedQuestions, check_engine, check_names
from tasks.mixing.spec import MixtureSpec
from tasks.pods import PodConfig
from tasks.sourcing.spec import DataSpec
from tasks.tables.schemas import AFTER, BEFORE, EVERYTHING, HELDOUT
from tasks.training.cluster.pods import ClusterConfig, check_cluster
from tasks.training.config import TrainingConfig, ValidationConfig
from tasks.verifiers.config import VerifiersConfig

ROOT = Path(__file__).parents[2]
RECIPES = ROOT / "workflows" / "recipes"
EVALUATIONS = ROOT / "workflows" / "evaluations"
DATA_SPECS = ROOT / "data_specs"


class DataFile(Extendable, DataSpec):
    """The data file: sources, their cleaning, the judging of responses, the difficulty filter, and the mixture."""

    folder: ClassVar[Path] = DATA_SPECS
    named_by_recipe: ClassVar[bool] = True

    evaluation_sets: NameOrFile[list[NamedQuestions]] = []  # noqa: RUF012 (pydantic copies defaults)
    """Questions that must not be among the prompts: each is a set, or the name of a benchmark that ships, or the path
    of a benchmark's file, which ends in .yaml and is relative to this one."""
    cleaning: CleaningSpec = CleaningSpec()
    verifiers: VerifiersConfig = VerifiersConfig()
    difficulty: DifficultySpec | None = DifficultySpec()
    """The difficulty filter. null: the data is filtered already, or is not to be; nothing is sampled, and all prompts
    that fit are kept, without pass rates. Left out: 8 rollouts of a prompt, sampled as training does."""
    mixture: MixtureSpec = MixtureSpec()
    pod: RunTime[PodConfig] = PodConfig(cpu=1, memory_gib=4)
    """The pods on a cluster in which sources are read and prompts are cleaned, selected and mixed."""
    available: list[str] | None = None
    """Packages and NLTK data of checkers that the data image has, which is filled in before a run."""
    composed_again: str | None = None
    """Mark that `compose_again` left last, which is filled in before a run: with another one, parts of the pipeline are
    not taken from the cache."""

    @property
    def sourcing(self) -> DataSpec:
        """The options of the sources alone, so that a changed mixture does not change their cache keys."""
        return DataSpec(**{name: getattr(self, name) for name in DataSpec.model_fields})


class EvaluationFile(Extendable, EvaluationSpec):
    """The evaluation file: what policies are asked, how they are sampled, and which of them are compared."""

    folder: ClassVar[Path] = EVALUATIONS
    named_by_recipe: ClassVar[bool] = True

    benchmarks: NameOrFile[list[NamedBenchmark]] = []  # noqa: RUF012 (pydantic copies defaults)
    """Benchmarks that every policy answers beside the held-out prompts. Each is the name of one that ships, or the path
    of a file of your own, which ends in .yaml, is relative to this one, and may extend one that ships."""
    harness: list[HarnessBenchmark] = []  # noqa: RUF012 (pydantic copies defaults)
    """Benchmarks that the package lm-eval (lm-evaluation-harness) asks every policy, as in `{name: mmlu, tasks: [mmlu],
    num_fewshot: 5}`; they are compared as the others are."""
    policies: InItsOrder[dict[str, ModelSpec]] = {}  # noqa: RUF012 (pydantic copies defaults)
    """Models by name that are evaluated beside `before`, the initial checkpoint, and `after`, the trained policy."""
    baseline: str = BEFORE
    """Name of the policy from which the differences of all others are taken."""

    @model_validator(mode="after")
    def _names_fit(self) -> Self:
        for name in (BEFORE, AFTER):
            if name in self.policies:
                raise ValueError(f"policies: {name!r} is a policy of every run; give yours another name")
        must_be_one_of(self.baseline, (BEFORE, AFTER, *self.policies), "baseline", "policy")
        check_names(self.names_of_benchmarks, (HELDOUT, EVERYTHING))
        check_engine(self.benchmarks, self.engine, "engine.max_model_len")
        return self

    @property
    def names_of_policies(self) -> list[str]:
        """The names of all policies, in the order of tables of results."""
        return [BEFORE, AFTER, *self.policies]

    @property
    def names_of_benchmarks(self) -> list[str]:
        """The names of all benchmarks, those of the harness last."""
        return [*(benchmark.name for benchmark in self.benchmarks), *(one.name for one in self.harness)]

    def same_as(self, name: str, initial: ModelSpec) -> str:
        """Return the first name of the model that policy `name` is, where `initial` is the one that `before` is.

        A model under two names is evaluated once.
        """
        sources = {BEFORE: initial.source, **{name: model.source for name, model in self.policies.items()}}
        return next((other for other, source in sources.items() if source == sources.get(name)), name)

    def evaluated(self, initial: ModelSpec) -> list[str]:
        """Return the policies that are evaluated: the first name of each model."""
        return [name for name in self.names_of_policies if self.same_as(name, initial) == name]

    @property
    def of_a_policy(self) -> EvaluationSpec:
        """The options of the evaluation of one policy, without the names of policies and benchmarks."""
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


class ValidationOptions(ValidationConfig):
    """Validation while training, in a recipe: the options of the run, and the benchmarks that policies answer."""

    benchmarks: NameOrFile[list[NamedBenchmark]] = []  # noqa: RUF012 (pydantic copies defaults)
    """Benchmarks that the validated policy answers beside the prompts that are taken out of training, with their own
    sampling. Each is the name of one that ships, or the path of a file of your own, as in an evaluation file."""

    @model_validator(mode="after")
    def _asks_something(self) -> Self:
        if self.prompts == 0 and not self.benchmarks:
            raise ValueError("validation: prompts is 0 and benchmarks has none: give one of them, or leave it out")
        check_names([benchmark.name for benchmark in self.benchmarks], ())
        return self


class Recipe(RecipeFile, TrainingConfig):
    """The training recipe: the initial checkpoint, how it is trained, and on which machines."""

    folder: ClassVar[Path] = RECIPES

    data: NameOrFile[str] = "quickstart"
    """The data file that goes with the recipe, where the command line gives no other: a path that ends in .yaml,
    relative to this file, or the name of one that ships."""
    evaluation: NameOrFile[str] = "quickstart"
    """The evaluation file that goes with the recipe, where the command line gives no other: a path that ends in .yaml,
    relative to this file, or the name of one that ships."""
    model: ModelSpec = ModelSpec()
    """The initial checkpoint."""
    cluster: RunTime[ClusterConfig] = ClusterConfig()
    """The machines that training gets on a cluster."""
    validation: ValidationOptions | None = None
    """Validation on prompts that are never trained on, and on benchmarks. null: no validation."""
    # No run-time option here, as it is of training: it decides whether `checking` starts a stage.
    model_check: bool = True
    """Compare learner, model and engine before the first rollout; a difference beyond rounding ends the run
    (`docs/troubleshooting.md`). false: they are not compared, for a model whose differences are known and accepted.
    Neither choice trains again."""

    @model_validator(mode="after")
    def _fits_its_cluster(self) -> Self:
        check_cluster(self, self.cluster)
        return self

    @model_validator(mode="after")
    def _has_room_for_benchmarks(self) -> Self:
        check_engine(self.benchmarks, self.actors.engine, "actors.engine.max_model_len")
        return self

    @property
    def benchmarks(self) -> list[BenchmarkFile]:
        """The benchmarks that validation asks."""
        return [] if self.validation is None else self.validation.benchmarks

    @property
    def asked(self) -> AskedBenchmarks:
        """The benchmarks as the policy answers them in validation."""
        return AskedBenchmarks(benchmarks=[benchmark.asked for benchmark in self.benchmarks])

    def companion(self, model: type[Companion]) -> Companion:
        """Return the data or evaluation file that the recipe names; raises `SpecError` where it cannot be read."""
        name = self.data if model is DataFile else self.evaluation
        return load_yaml(model, file_called(name, model))

    @property
    def run(self) -> TrainingConfig:
        """The options of training alone; the model and the benchmarks are inputs of training, and no options of it."""
        options = {name: getattr(self, name) for name in TrainingConfig.model_fields}
        if self.validation is not None:
            shared = {name: getattr(self.validation, name) for name in ValidationConfig.model_fields}
            options["validation"] = ValidationConfig(**shared)
        return TrainingConfig(**options)


def quickstart() -> tuple[DataFile, Recipe, EvaluationFile]:
    """Return the three files of the quickstart, which are the pipeline's defaults."""
    return with_companions("quickstart")


def with_companions(recipe: str) -> tuple[DataFile, Recipe, EvaluationFile]:
    """Return the three files of a recipe that ships, by the recipe's name."""
    training = load_yaml(Recipe, RECIPES / f"{recipe}.yaml")
    return training.companion(DataFile), training, training.companion(EvaluationFile)
