"""The three files that a user writes: data, training recipe and evaluation, composed of the stages' options."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Self

from pydantic import model_validator

from tasks.cleaning.spec import CleaningSpec
from tasks.config import Companion, Extendable, RecipeFile, RunTime, file_called, load_yaml
from tasks.config_fields import NameOrFile
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
    """The data file: sources, their cleaning, the judging of responses, the difficulty filter, and the mixture."""

    folder: ClassVar[Path] = DATA_SPECS
    named_by_recipe: ClassVar[bool] = True

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


def quickstart() -> tuple[DataFile, Recipe, EvaluationSpec]:
    """Return the three files of the quickstart, which are the pipeline's defaults."""
    return with_companions("quickstart")


def with_companions(recipe: str) -> tuple[DataFile, Recipe, EvaluationSpec]:
    """Return the three files of a recipe that ships, by the recipe's name."""
    training = load_yaml(Recipe, RECIPES / f"{recipe}.yaml")
    return training.companion(DataFile), training, training.companion(EvaluationSpec)
