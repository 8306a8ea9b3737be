"""Scores answers with reward models: one instead of the LLM judge, or any number of named ones as separate rewards."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tasks.verifiers.calls import Messages
from tasks.verifiers.chat.classifier import AnswerTooLong, Scorer
from tasks.verifiers.chat.config import NamedRewardModelConfig, RewardModelConfig
from tasks.verifiers.chat.endpoint import CONTROL, Usage
from tasks.verifiers.chat.judge import prepare_answer
from tasks.verifiers.chat.prompts import WITH_REFERENCE, check_ground_truth, is_pairwise, turns
from tasks.verifiers.responses import strip_thinking
from tasks.verifiers.reward_models import parse_name
from tasks.verifiers.scores import CannotJudge, Reward, Score


class RewardModelJudge:
    """A `Verifier` of chat that uses a reward model, whose logit is mapped to a score in [0, 1]."""

    def __init__(self, config: RewardModelConfig) -> None:
        """Load the model; raises `ValueError` if that fails."""
        self._config = config
        self._usage = Usage()
        self._scorer = Scorer(config, self._usage)

    async def judge(self, verifier: str, response: str, ground_truth: Any, messages: Messages | None) -> Score:
        """Score an answer given its conversation; a reference is never used.

        An empty answer scores 0 without the model. An answer also scores 0 if it cannot be scored although `CONTROL`
        can: it cannot be cut to the tokens that the conversation leaves, or its logit is not finite.

        Raises:
            GroundTruthError: If the ground truth is not valid for the verifier.
            CannotJudge: If the conversation is missing or too long; if the logits of the answer and of `CONTROL` are
                not finite; for mode `pairwise`; or for `chat_reference`, unless `scores_references` is set.
        """
        check_ground_truth(verifier, ground_truth)
        if is_pairwise(ground_truth):
            raise CannotJudge("a reward model scores one answer and compares none: mode pairwise needs kind: endpoint")
        if verifier == WITH_REFERENCE and not self._config.scores_references:
            raise CannotJudge("a reward model sees no reference; scores_references: true makes it score without one")
        answer, note, score = prepare_answer(self._config, self._usage, response, messages)
        if score is not None:
            return score
        self._usage.requests += 1
        with self._usage.timing():
            try:
                logit = await self._scorer.logit(turns(messages), answer)
                if not math.isfinite(logit) and not math.isfinite(await self._scorer.logit(turns(messages), CONTROL)):
                    raise CannotJudge(f"the reward model's logit is {logit}, of another answer too")
            except AnswerTooLong as reason:
                self._usage.ungraded += 1
                return Score.binary(False, f"{note}{reason}")
        if not math.isfinite(logit):
            self._usage.ungraded += 1
            return Score.binary(False, f"{note}logit {logit}, where another answer has a finite one")
        value = self._convert_logit(logit)
        return Score(value, value >= self._config.pass_value, f"{note}logit {logit:.4g}")

    async def close(self) -> None:
        """End the thread. Answers that are still queued are not scored, and their calls fail."""
        await self._scorer.close()

    def usage(self) -> dict[str, float]:
        """Return the counters so far; a reward model generates no tokens and has no cost."""
        return self._usage.to_dict()

    def _convert_logit(self, logit: float) -> float:
        if self._config.bounds is None:
            return apply_logistic(logit)
        low, high = self._config.bounds
        return min(1.0, max(0.0, (logit - low) / (high - low)))


class NamedRewardModels:
    """The `Verifier` `reward_model`: several models, one of which is named by the ground truth."""

    def __init__(self, configs: Mapping[str, NamedRewardModelConfig], gpus_behind: int = 0) -> None:
        """Load the models. Each model that uses a GPU gets a separate one, starting with the last free GPU.

        Args:
            configs: the models by name.
            gpus_behind: number of this process's last GPUs that are reserved for the judge of chat.

        Raises:
            ValueError: If a model cannot be loaded.
        """
        self._configs = dict(configs)
        self._usage = {name: Usage() for name in configs}
        self._scorers: dict[str, Scorer] = {}
        for name, config in configs.items():
            self._scorers[name] = Scorer(config, self._usage[name], gpus_behind)
            gpus_behind += config.gpus

    async def judge(self, verifier: str, response: str, ground_truth: Any, messages: Messages | None) -> Score:
        """Score an answer with the model that the ground truth names; the only reward is the logit or its sigmoid.

        An empty answer is scored like any other, because raw logits have no minimum.

        Raises:
            GroundTruthError: If the ground truth names no model.
            CannotJudge: If there is no such model or no conversation, the texts are too long, or the logit is not
                finite.
        """
        name = parse_name(ground_truth)
        if name not in self._scorers:
            raise CannotJudge(f"no reward model is called {name!r}; there are: {', '.join(self._scorers) or 'none'}")
        conversation, usage = turns(messages), self._usage[name]
        usage.requests += 1
        with usage.timing():
            try:
                logit = await self._scorers[name].logit(conversation, strip_thinking(response))
                if not math.isfinite(logit):
                    raise CannotJudge(f"its logit is {logit}")
            except CannotJudge as reason:
                raise CannotJudge(f"reward model {name}: {reason}") from reason
        config = self._configs[name]
        value = apply_logistic(logit) if config.squash else logit
        detail = f"{name}: logit {logit:.4g}"
        rewards = (Reward(name, 1.0, value),)
        return Score(min(max(value, 0.0), 1.0), value >= config.pass_value, detail, rewards=rewards)

    async def close(self) -> None:
        """End the threads of all models."""
        for scorer in self._scorers.values():
            await scorer.close()

    def usage(self) -> dict[str, float]:
        """Return the counters so far, such as `helpful/requests`."""
        return {f"{name}/{key}": value for name, usage in self._usage.items() for key, value in usage.to_dict().items()}


def apply_logistic(logit: float) -> float:
    """Return the logistic function of a logit."""
    # use the form that cannot overflow
    return 1 / (1 + math.exp(-logit)) if logit >= 0 else math.exp(logit) / (1 + math.exp(logit))
