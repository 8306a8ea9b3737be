"""The three files that a user writes, each a composition of what the stages understand."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

from pydantic import model_validator

from tasks.config import RunTime, extended, load_yaml, nested
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


class DataFile(DataSpec):
    """`--data`: the sources (`DataSpec`), how responses are judged, how difficulty is measured, and the mixture.

    Attributes:
        verifiers, difficulty, mixture: see there.
        pod: where sources are read and prompts are selected and mixed on a cluster.
    """

    verifiers: VerifiersConfig = VerifiersConfig()
    difficulty: DifficultySpec = DifficultySpec()
    mixture: MixtureSpec = MixtureSpec()
    pod: RunTime[PodConfig] = PodConfig(cpu=1, memory_gib=4)

    @property
    def sourcing(self) -> DataSpec:
        """The sources alone, so that another mixture leaves their cache alone."""
        return DataSpec(**{name: getattr(self, name) for name in DataSpec.model_fields})


class Recipe(TrainingConfig):
    """`--training`: the initial checkpoint and how it is trained (`TrainingConfig`).

    A file may say `extends: NAME` and give only what differs from `workflows/recipes/NAME.yaml`; `objective.clip_high: 0.3`
    is short for a mapping in a mapping.

    Attributes:
        model: the initial checkpoint.
        cluster: the machines of training on a cluster.
    """

    model: ModelSpec = ModelSpec()
    cluster: RunTime[ClusterConfig] = ClusterConfig()

    @model_validator(mode="before")
    @classmethod
    def _with_what_it_extends(cls, data: Any) -> Any:
        return extended(nested(data), RECIPES) if isinstance(data, dict) else data

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
        load_yaml(DataFile, ROOT / "data_specs" / "quickstart.yaml"),
        load_yaml(Recipe, RECIPES / "quickstart.yaml"),
        load_yaml(EvaluationConfig, RECIPES / "quickstart_evaluation.yaml"),
    )
