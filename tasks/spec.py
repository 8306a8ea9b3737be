"""The three files that a user writes, each a composition of what the stages understand."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Self

from pydantic import model_validator

from tasks.config import Extendable, RunTime, load_yaml
from tasks.difficulty.spec import DifficultySpec
from tasks.evaluation.spec import EvaluationConfig
from tasks.generation.models import ModelSpec
from tasks.mixing.spec import MixtureSpec
from tasks.pods import PodConfig
from tasks.sourcing.spec import DataSpec
from tasks.training import cluster
from tasks.training.cluster import ClusterConfig
from tasks.training.config import TrainingConfig
from tasks.verifiers.config import VerifiersConfig

ROOT = Path(__file__).parent.parent
RECIPES = ROOT / "workflows" / "recipes"
DATA_SPECS = ROOT / "data_specs"


class DataFile(Extendable, DataSpec):
    """The sources, how responses are judged, how difficulty is measured, and the mixture.

    Attributes:
        verifiers, difficulty, mixture: see there.
        pod: where sources are read and prompts are selected and mixed on a cluster.
    """

    folder: ClassVar[Path] = DATA_SPECS

    verifiers: VerifiersConfig = VerifiersConfig()
    difficulty: DifficultySpec = DifficultySpec()
    mixture: MixtureSpec = MixtureSpec()
    pod: RunTime[PodConfig] = PodConfig(cpu=1, memory_gib=4)

    @property
    def sourcing(self) -> DataSpec:
        """The sources alone, so that another mixture leaves their cache alone."""
        return DataSpec(**{name: getattr(self, name) for name in DataSpec.model_fields})


class Recipe(Extendable, TrainingConfig):
    """The initial checkpoint and how it is trained.

    Attributes:
        model: the initial checkpoint.
        cluster: the machines of training on a cluster.
    """

    folder: ClassVar[Path] = RECIPES

    model: ModelSpec = ModelSpec()
    cluster: RunTime[ClusterConfig] = ClusterConfig()

    @model_validator(mode="after")
    def _fits_its_cluster(self) -> Self:
        cluster.check(self, self.cluster)
        return self

    @property
    def run(self) -> TrainingConfig:
        """The training options alone, so that another model is another input and not another option."""
        return TrainingConfig(**{name: getattr(self, name) for name in TrainingConfig.model_fields})


def quickstart() -> tuple[DataFile, Recipe, EvaluationConfig]:
    """The defaults of the pipeline."""
    return (
        load_yaml(DataFile, DATA_SPECS / "quickstart.yaml"),
        load_yaml(Recipe, RECIPES / "quickstart.yaml"),
        load_yaml(EvaluationConfig, RECIPES / "quickstart_evaluation.yaml"),
    )
