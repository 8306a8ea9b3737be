"""The three files that a user writes: data, training recipe and evaluation, composed of the stages' options."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Self

from pydantic import model_validator

from tasks.cleaning.spec import CleaningSpec
from tasks.config import Companion, Extendable, RecipeFile, RunTime, file_called, load_yaml, must_be_one_of
from tasks.config_fields import NameOrFile
from tasks.difficulty.spec import DifficultySpec
from tasks.evaluation.harness_spec import HarnessBenchmark
from tasks.evaluation.spec import AskedBenchmarks, ComparedBenchmarks, EvaluationSpec
from tasks.generation.models import ModelSpec
from tasks.generation.vllm_arguments import check_thinking_budget
from tasks.inputs.benchmarks import NamedBenchmark, NamedQuestions
from tasks.mixing.spec import MixtureSpec
from tasks.pods import PodConfig
from tasks.sourcing.spec import DataSpec
from tasks.tables.schemas import AFTER, BEFORE, EVERYTHING, HELDOUT
from tasks.training.cluster.pods import ClusterConfig, check_cluster
from tasks.training.config import TrainingConfig
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
    policies: dict[str, ModelSpec] = {}  # noqa: RUF012 (pydantic copies defaults)
    """Models by name that are evaluated beside `before`, the initial checkpoint, and `after`, the trained policy."""
    baseline: str = BEFORE
    """Name of the policy from which the differences of all others are taken."""

    @model_validator(mode="after")
    def _names_fit(self) -> Self:
        for name in (BEFORE, AFTER):
            if name in self.policies:
                raise ValueError(f"policies: {name!r} is a policy of every run; give yours another name")
        must_be_one_of(self.baseline, (BEFORE, AFTER, *self.policies), "baseline", "policy")
        names = self.names_of_benchmarks
        for name in names:
            if names.count(name) > 1 or name in (HELDOUT, EVERYTHING):
                taken = "stands twice" if names.count(name) > 1 else "is that of the held-out prompts"
                raise ValueError(f"benchmarks: the name {name!r} {taken}; give one another name")
        for benchmark in self.benchmarks:
            if benchmark.sampling.max_tokens >= self.engine.max_model_len:
                raise ValueError(
                    f"benchmark {benchmark.name!r}: its sampling.max_tokens ({benchmark.sampling.max_tokens}) leaves "
                    f"no room for a prompt in engine.max_model_len ({self.engine.max_model_len})"
                )
            check_thinking_budget(
                benchmark.sampling.vllm, self.engine.vllm, f"benchmark {benchmark.name!r}: its sampling"
            )
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

    @model_validator(mode="after")
    def _fits_its_cluster(self) -> Self:
        check_cluster(self, self.cluster)
        return self

    def companion(self, model: type[Companion]) -> Companion:
        """Return the data or evaluation file that the recipe names; raises `SpecError` where it cannot be read."""
        name = self.data if model is DataFile else self.evaluation
        return load_yaml(model, file_called(name, model))

    @property
    def run(self) -> TrainingConfig:
        """The options of training alone; the model is an input of training and not one of its options."""
        return TrainingConfig(**{name: getattr(self, name) for name in TrainingConfig.model_fields})


def quickstart() -> tuple[DataFile, Recipe, EvaluationFile]:
    """Return the three files of the quickstart, which are the pipeline's defaults."""
    return with_companions("quickstart")


def with_companions(recipe: str) -> tuple[DataFile, Recipe, EvaluationFile]:
    """Return the three files of a recipe that ships, by the recipe's name."""
    training = load_yaml(Recipe, RECIPES / f"{recipe}.yaml")
    return training.companion(DataFile), training, training.companion(EvaluationFile)
