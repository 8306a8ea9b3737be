"""`chat_reference` and `chat_open`: the quality of an answer, judged with or without a reference answer beside it.

A language model grades the answer on a scale of whole numbers, which maps to [0, 1]; or a reward model scores it. Both
are asked from the caller's event loop, unlike the other verifiers, whose worker processes they would only keep waiting.
The pair is OlmoRL's for general chat (Olmo 3, section on RL: an LM judge with and without a reference answer).

    with serving(config) as config:          # starts a vLLM server where the configuration names no URL
        judge = make_judge(config)
        score = await judge.judge("chat_reference", response, {"reference": "..."}, messages)

Importing this package loads no client, no template engine and no model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tasks.verifiers.calls import Verifier
from tasks.verifiers.chat.config import AnyJudgeConfig, JudgeConfig, RewardModelConfig, ServerConfig
from tasks.verifiers.chat.prompts import check_ground_truth

if TYPE_CHECKING:
    from tasks.verifiers.chat.judge import ChatJudge
    from tasks.verifiers.chat.server import serving

__all__ = [
    "AnyJudgeConfig",
    "ChatJudge",
    "JudgeConfig",
    "RewardModelConfig",
    "ServerConfig",
    "check_ground_truth",
    "make_judge",
    "serving",
]

_LATER = {"ChatJudge": "judge", "serving": "server"}


def make_judge(config: AnyJudgeConfig) -> Verifier:
    """Create the judge that `config` describes; a reward model is loaded before this returns.

    Raises `ValueError` for what the configuration promises and this machine lacks: a key, a URL, a usable model.
    """
    if isinstance(config, RewardModelConfig):
        from tasks.verifiers.chat.reward_model import RewardModelJudge

        return RewardModelJudge(config)
    from tasks.verifiers.chat.judge import ChatJudge

    return ChatJudge(config)


def __getattr__(name: str) -> Any:
    """Import the names that bring a client along when they are first used."""
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{_LATER[name]}"), name)
