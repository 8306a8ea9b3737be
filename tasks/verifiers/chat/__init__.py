"""Scores the quality of chat answers, with a reference answer (`chat_reference`) or without one (`chat_open`).

An LLM judge grades the answer on an integer scale, which is mapped to [0, 1], or a reward model scores it. Unlike other
verifiers, which run in worker processes, both are called from the caller's event loop, because they would only block a
worker. The two verifiers follow OlmoRL for general chat (Olmo 3, section on RL: an LM judge with and without a
reference answer).

    with serve(config) as config:            # starts a vLLM server if the configuration has no URL
        judge = make_judge(config)
        score = await judge.judge("chat_reference", response, {"reference": "..."}, messages)

Importing this package loads no client, no template engine and no model.
"""

from __future__ import annotations

from tasks.verifiers.calls import Verifier
from tasks.verifiers.chat.config import AnyJudgeConfig, RewardModelConfig


def make_judge(config: AnyJudgeConfig) -> Verifier:
    """Create the judge for `config`. A reward model is loaded before this returns.

    Raises:
        ValueError: If the API key, the URL or a usable model is missing.
    """
    if isinstance(config, RewardModelConfig):
        from tasks.verifiers.chat.reward_model import RewardModelJudge

        return RewardModelJudge(config)
    from tasks.verifiers.chat.judge import ChatJudge

    return ChatJudge(config)
