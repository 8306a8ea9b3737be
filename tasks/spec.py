"""The three files that a user writes, each a composition of what the stages understand."""

from __future__ import annotations

from pathlib import Path

from tasks.config import load_yaml
from tasks.difficulty.spec import DifficultySpec
from tasks.evaluation.spec import EvaluationConfig
from tasks.generation.models import ModelSpec
from tasks.mixing.spec import MixtureSpec
from tasks.sourcing.spec import DataSpec
from tasks.training.config import TrainingConfig
from tasks.verifiers.config import VerifiersConfig

ROOT = Path(__file__).parent.parent


class DataFile(DataSpec):
    """`--data`: the sources (`DataSpec`), how responses are judged, how difficulty is measured, and the mixture."""

    verifiers: VerifiersConfig = VerifiersConfig()
    difficulty: DifficultySpec = DifficultySpec()
    mixture: MixtureSpec = MixtureSpec()

    @property
    def sourcing(self) -> DataSpec:
        """The sources alone, so that another mixture leaves their cache alone."""
        return DataSpec(**{name: getattr(self, name) for name in DataSpec.model_fields})


class Recipe(TrainingConfig):
    """`--training`: the initial checkpoint and how it is trained (`TrainingConfig`)."""

    model: ModelSpec = ModelSpec()

    @property
    def run(self) -> TrainingConfig:
        """The training options alone, so that another model is another input and not another option."""
        return TrainingConfig(**{name: getattr(self, name) for name in TrainingConfig.model_fields})


def quickstart() -> tuple[DataFile, Recipe, EvaluationConfig]:
    """The defaults of the pipeline."""
    recipes = ROOT / "workflows" / "recipes"
    return (
        load_yaml(DataFile, ROOT / "data_specs" / "quickstart.yaml"),
        load_yaml(Recipe, recipes / "quickstart.yaml"),
        load_yaml(EvaluationConfig, recipes / "quickstart_evaluation.yaml"),
    )
