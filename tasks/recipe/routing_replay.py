"""Checks that a run can replay the routes of its engines in the learner (`routing_replay`)."""

from __future__ import annotations

import json
from pathlib import Path

from tasks.config.loading import SpecError
from tasks.failures import MistakeError
from tasks.recipe.run import TrainingConfig
from tasks.storage.model_folder import ModelError

MODEL_TYPES = ("qwen2_moe", "qwen3_moe", "olmoe", "flex_olmo")
"""Types of models whose routers weight the `k` most probable experts by the softmax over all experts."""


def check_routing_replay(config: TrainingConfig, *, gpu: bool) -> None:
    """Check that engines return routes if `routing_replay` is true.

    Args:
        config: the run's options.
        gpu: whether the engines have GPUs.

    Raises:
        MistakeError: they have none.
    """
    if config.routing_replay and not gpu:
        raise MistakeError(
            "routing_replay = true: vLLM returns the routes of tokens on GPUs alone, and the engines have none; set it "
            "to false, or use a machine with GPUs"
        )


def check_replayed_model(config: TrainingConfig, model: Path) -> None:
    """Check that the learner can replay the routes of the model in a folder if `routing_replay` is true.

    Raises:
        ModelError: it cannot.
    """
    if config.routing_replay:
        check_model_type(json.loads((model / "config.json").read_text()).get("model_type", ""))


def check_model_type(name: str) -> None:
    """Check that the learner can replay the routes of models of this type.

    Raises:
        ModelError: it cannot.
    """
    if name not in MODEL_TYPES:
        raise ModelError(
            f"routing_replay = true: the learner cannot replay the routes of models of the type `{name}`, only of "
            f"{', '.join(MODEL_TYPES)}; set it to false, or use another model"
        )


def check_replayed_episodes(config: TrainingConfig, *, episodes: bool) -> None:
    """Check that no prompt has an environment if `routing_replay` is true.

    Raises:
        SpecError: `episodes` says that one has.
    """
    if config.routing_replay and episodes:
        raise SpecError(
            "routing_replay = true: the tokens that an environment inserts into an episode get routes only in the next "
            "turn, which are not collected; set it to false, or leave out sources with an environment"
        )
