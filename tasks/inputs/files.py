"""The three files that a user writes, each a composition of what the stages understand."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Self

from pydantic import model_validator

from tasks.cleaning.spec import CleaningSpec
from tasks.config import Companion, Extendable, RecipeFile, RunTime, load_yaml
from tasks.difficulty.spec import DifficultySpec
from tasks.evaluation.spec import EvaluationSpec
from tasks.generation.models import ModelSpec
from tasks.mixing.spec import MixtureSpec
from tasks.pods import PodConfig
from tasks.sourcing.spec import DataSpec
from tasks.training.cluster.pods import ClusterConfig, check_cluster
from tasks.training.config import TrainingConfig
from tasks.verifiers.config import VerifiersConfig

ROOT = Path(__file__).parents[2]
RECIPES = ROOT / "workflows" / "recipes"
EVALUATIONS = ROOT / "workflows" / "evaluations"
DATA_SPECS = ROOT / "data_specs"


class DataFile(Extendable, DataSpec):
    """The sources, how they are cleaned, how responses are judged, how difficulty is measured, and the mixture."""

    folder: ClassVar[Path] = DATA_SPECS
    named_by_recipe: ClassVar[bool] = True

    cleaning: CleaningSpec = CleaningSpec()
    verifiers: VerifiersConfig = VerifiersConfig()
    difficulty: DifficultySpec = DifficultySpec()
    mixture: MixtureSpec = MixtureSpec()
    pod: RunTime[PodConfig] = PodConfig(cpu=1, memory_gib=4)
    """Where sources are read and prompts are selected and mixed on a cluster."""

    @property
    def sourcing(self) -> DataSpec:
        """The sources alone, so that another mixture leaves their cache alone."""
        return DataSpec(**{name: getattr(self, name) for name in DataSpec.model_fields})


class Recipe(RecipeFile, TrainingConfig):
    """The initial checkpoint and how it is trained."""

    folder: ClassVar[Path] = RECIPES

    data: str = "quickstart"
    """The files that go with it, where a command line or a launch plan gives no others: a path that ends in .yaml, or
    the name of one that ships."""
    evaluation: str = "quickstart"
    """The files that go with it, where a command line or a launch plan gives no others: a path that ends in .yaml, or
    the name of one that ships."""
    model: ModelSpec = ModelSpec()
    """The initial checkpoint."""
    cluster: RunTime[ClusterConfig] = ClusterConfig()
    """The machines of training on a cluster."""

    @model_validator(mode="after")
    def _fits_its_cluster(self) -> Self:
        check_cluster(self, self.cluster)
        return self

    def companion(self, model: type[Companion]) -> Companion:
        """Its data or its evaluation file; raises `SpecError` where that cannot be read."""
        name = self.data if model is DataFile else self.evaluation
        is_path = name.endswith((".yaml", ".yml"))
        return load_yaml(model, name if is_path else model.folder / f"{name}.yaml")

    @property
    def run(self) -> TrainingConfig:
        """The training options alone, so that another model is another input and not another option."""
        return TrainingConfig(**{name: getattr(self, name) for name in TrainingConfig.model_fields})


def quickstart() -> tuple[DataFile, Recipe, EvaluationSpec]:
    """The defaults of the pipeline."""
    return with_companions("quickstart")


def with_companions(recipe: str) -> tuple[DataFile, Recipe, EvaluationSpec]:
    """The three files of a recipe that ships, by its name."""
    training = load_yaml(Recipe, RECIPES / f"{recipe}.yaml")
    return training.companion(DataFile), training, training.companion(EvaluationSpec)
