"""Defines the options of a run that determine how its model is checked."""

from __future__ import annotations

from typing import Self

from tasks.config.loading import Config
from tasks.generation.config import EngineConfig
from tasks.machine.precision import HeadDtype
from tasks.recipe.learner import LearnerConfig, LoraConfig
from tasks.recipe.own import OwnAdvantage, OwnSurrogate
from tasks.recipe.run import TrainingConfig


class CheckedOptions(Config):
    """The options of a run that are used to check its model."""

    learner: LearnerConfig = LearnerConfig()
    """The learner."""
    lora: LoraConfig | None = None
    """The adapter that is trained. If null, all weights are trained."""
    head_dtype: HeadDtype = "model"
    """Type of the logits, in learner and engines."""
    engine: EngineConfig = EngineConfig()
    """The engines of training."""
    surrogate: OwnSurrogate | None = None
    """The loss of the user's. If null, it is a built-in surrogate."""
    advantage: OwnAdvantage | None = None
    """The advantage function of the user's. If null, it is a built-in estimator."""

    @classmethod
    def from_config(cls, config: TrainingConfig) -> Self:
        """Return the options of a recipe that are relevant for the check."""
        own = config.objective.own_functions
        return cls.model_validate(
            {
                "learner": config.learner,
                "lora": config.lora,
                "head_dtype": config.head_dtype,
                "engine": config.actors.engine,
                **own,
            }
        )
