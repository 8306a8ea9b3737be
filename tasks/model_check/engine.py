"""Compares an engine with the learner, before and after a weight update."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import torch
from torch import Tensor

from tasks.generation.config import SamplingConfig
from tasks.generation.engine import Engine
from tasks.generation.interface import Completion
from tasks.machine.precision import Dtype
from tasks.model_check.comparison import (
    FLOAT32,
    TIMES_PLAIN_OF_ENGINE,
    compute_difference,
    compute_tolerance,
    compute_typical_error,
)
from tasks.model_check.learner import LearnerCheck
from tasks.model_check.renewal import find_old_group
from tasks.training.learner.packing import Floats
from tasks.training.learner.packing import Sequence as TokenSequence

RESPONSE = 16
"""Number of tokens of each sampled response."""
PROMPT = 8
"""Number of tokens of a prompt."""
TOKENS = {"float32": 100, "bfloat16": 1024, "float16": 1024}
"""Number of tokens that an engine samples in total. `renewal` needs many in 16 bits; in float32 any error exceeds
rounding."""
RECOMPUTED = "; the engine computes this model differently"
"""End of the message if an engine differs before the update."""
HEAD, EMBEDDING = "the tied head", "the tied embedding without the head"
"""Names of the two uses of a tied embedding. An engine may keep the old values for one of them."""
NOT_RENEWED = "; the likely cause is experts, or a packed or tied copy of weights, that the engine does not update"
"""End of the message if an engine differs after the update."""


async def sample_responses(engine: Engine, prompts: Sequence[list[int]]) -> list[TokenSequence]:
    """Sample a response to each prompt; the result has the engine's log-probabilities."""
    length = max(min(RESPONSE, engine.config.max_model_len // 2), 1)
    sampling = SamplingConfig(max_tokens=length)
    asked = [prompt[: max(engine.config.max_model_len - length, 1)] for prompt in prompts]
    answers = await asyncio.gather(*(engine.generate(p, sampling, seed=i) for i, p in enumerate(asked)))
    return [_make_sequence(prompt, answer) for prompt, answer in zip(asked, answers, strict=True)]


def make_prompts(learner: LearnerCheck, dtype: Dtype) -> list[list[int]]:
    """Return the prompts for an engine in `dtype`."""
    return learner.prompts(TOKENS[dtype] // RESPONSE, PROMPT)


class EngineComparison:
    """Compares an engine with the learner, whose log-probabilities in float32 are taken as exact.

    Args:
        learner: a finished check, so that the policy has the updated weights.
        dtype: type of the engine's weights and activations.
    """

    def __init__(self, learner: LearnerCheck, dtype: Dtype) -> None:
        self._learner = learner
        self._dtype: torch.dtype = getattr(torch, dtype)
        # A float32 engine loads the checkpoint unrounded, but a 16-bit learner rounds it.
        self._coarser = learner.dtype if self._dtype == torch.float32 else self._dtype

    def _exact(self, sampled: Sequence[TokenSequence]) -> list[Tensor]:
        """Return log-probabilities in float32, with the weights rounded to the engine's type."""
        return self._learner.exact(sampled, rounded=self._dtype)

    def compare_initial(self, sampled: Sequence[TokenSequence]) -> None:
        """Compare responses that an engine sampled from the initial checkpoint.

        Raises:
            ModelCheckError: the log-probabilities differ by more than rounding.
        """
        self._learner.begin(what := "the learner and an engine")
        with self._learner.restore_initial_weights():
            self._require(what, sampled, self._exact(sampled), RECOMPUTED)

    def compare_updated(self, sampled: Sequence[TokenSequence]) -> None:
        """Compare responses that an engine sampled after the weight update.

        Raises:
            ModelCheckError: the engine still uses old values, or the log-probabilities differ by more than rounding.
        """
        self._learner.begin(what := "the learner and an engine after a weight update")
        exact = self._exact(sampled)
        if self._coarser != torch.float32:  # in float32, old values differ by far more than rounding
            self._require_new_values(sampled, torch.cat(exact))
        self._require(what, sampled, exact, NOT_RENEWED)

    def _require_new_values(self, sampled: Sequence[TokenSequence], exact: Tensor) -> None:
        errors = (torch.cat(collect_engine_logprobs(sampled)) - exact).numpy()
        if (group := find_old_group(errors, self.changes(sampled, exact))) is not None:
            self._learner.figures.refuse(
                f"after a weight update an engine still uses old values of some tensors ({group}): its errors "
                f"correlate with the change that these values would make{NOT_RENEWED}"
            )

    def changes(self, sampled: Sequence[TokenSequence], exact: Tensor) -> dict[str, Floats]:
        """Return the change of all tokens' log-probabilities if a group of tensors has old values, nats, by group."""
        learner = self._learner
        old = {group: learner.restore_old_weights(names) for group, names in learner.groups.items()}
        if tied := learner.tied:
            old |= {
                HEAD: learner.restore_old_embedding(tied, head=True),
                EMBEDDING: learner.restore_old_embedding(tied, head=False),
            }
        changes = {}
        for group, weights in old.items():
            with weights:
                changes[group] = (torch.cat(self._exact(sampled)) - exact).numpy()
        return changes

    def _require(self, what: str, sampled: Sequence[TokenSequence], exact: Sequence[Tensor], cause: str) -> None:
        theirs = collect_engine_logprobs(sampled)
        if self._coarser == torch.float32:
            nats, tolerance = compute_difference(theirs, exact), FLOAT32
        else:
            nats = compute_typical_error(theirs, exact)
            tolerance = compute_tolerance(
                self._learner.compute_usual_error(sampled, exact, self._coarser), TIMES_PLAIN_OF_ENGINE
            )
        self._learner.figures.require(what, nats, tolerance, lambda: cause)


def _make_sequence(prompt: list[int], answer: Completion) -> TokenSequence:
    return TokenSequence(prompt, answer.token_ids, answer.logprobs, 0.0)


def collect_engine_logprobs(sampled: Sequence[TokenSequence]) -> list[Tensor]:
    """Return the log-probabilities of each response as the engine reported them, nats, float32."""
    return [torch.as_tensor(s.rollout_logprobs, dtype=torch.float32) for s in sampled]
