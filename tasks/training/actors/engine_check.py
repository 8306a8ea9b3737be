"""The text that models are checked on, and the check of each engine after its first weight update in training."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Self

import numpy as np

from tasks.failures import MistakeError
from tasks.training.actors.process import Actor
from tasks.training.config import TrainingConfig
from tasks.training.learner.client import Learner
from tasks.training.learner.packing import Floats
from tasks.training.learner.packing import Sequence as TokenSequence
from tasks.training.learner.rounding import engine_rounding

TEXT = """Question: A train leaves at 9:40 and arrives at 12:05. How long does it take? Answer: \\boxed{145} minutes.
def mean(values: list[float]) -> float:
    return sum(values) / len(values)
{"city": "Zürich", "population": 443037} Wie spät ist es? Il est déjà midi. 你好, 世界! Что это такое?
First, let x = 7 and y = -3. Then 2x + y^2 = 14 + 9 = 23, so the answer is 23. <think>Wait, is that right?</think>
"""
"""Text whose tokens models are checked on: prose, mathematics, code, JSON, several scripts."""
LENGTH = 24
"""Most tokens of a sequence that engines are asked for in training."""
SEQUENCES = 4
"""Most of these sequences."""
NOT_RENEWED = "; the likely cause is experts, or a packed or tied copy of weights, that the engine does not renew"
"""End of the message where learner and engine differ after an update."""


class ModelCheckError(MistakeError):
    """The learner, the model's own forward pass, the export or the engine disagree; the message names the cause."""


def text_tokens(folder: Path) -> list[int]:
    """Return the tokens of `TEXT` by the tokenizer in a model folder, without special tokens around it."""
    from transformers import AutoTokenizer

    tokens: list[int] = AutoTokenizer.from_pretrained(folder).encode(TEXT, add_special_tokens=False)
    return tokens


class EngineCheck:
    """The check of each engine after its first update in training: the learner's log-probabilities must be its own.

        learner holds version 1 ──► expect ──► version 1 is published ──► an engine takes it ──► check

    Every version gets its expectation before it is published, until all engines are checked: an engine that is slow may
    take a later one first. Version 0 is not compared; there the check before the first rollout has done it.
    """

    def __init__(self, tokens: Sequence[int], *, longest: int, tolerance: float, engines: int) -> None:
        """Cut `tokens` into short sequences.

        Args:
            tokens: of `TEXT`.
            longest: most tokens that fit into an engine's context and into a row of the learner.
            tolerance: largest mean difference of a sequence, nats.
            engines: number of actor slots, by whose indices engines are counted.
        """
        length = min(LENGTH, longest)
        starts = range(0, max(len(tokens) - length, 1), length)[:SEQUENCES]
        self._texts = [list(tokens[start : start + length]) for start in starts]
        self._tolerance = tolerance
        self._unchecked = set(range(engines))
        self._expected: dict[int, list[Floats]] = {}

    @classmethod
    def of(cls, config: TrainingConfig, model: Path) -> Self:
        """Make the check of the engines of a run whose types are resolved, from the initial checkpoint's tokenizer."""
        learner, engine = config.learner, config.actors.engine
        return cls(
            text_tokens(model),
            longest=min(engine.max_model_len - 1, learner.micro_batch_tokens),
            tolerance=engine_rounding(learner.dtype, engine.dtype),
            engines=config.actors.count,
        )

    async def expect(self, version: int, learner: Learner) -> None:
        """Compute the log-probabilities that engines must have under `version`, which `learner` holds now."""
        if version > 0 and self._unchecked:
            sequences = [TokenSequence(ids[:1], ids[1:], [0.0] * (len(ids) - 1), 0.0) for ids in self._texts]
            self._expected[version] = await learner.plain_logprobs(sequences)

    async def check(self, index: int, actor: Actor, version: int) -> None:
        """Compare the engine of slot `index`, which has taken `version`, unless one of this slot was before.

        Raises:
            ModelCheckError: it differs by more than the tolerance; the message names the engine and the likely cause.
        """
        expected = self._expected.get(version)
        if index not in self._unchecked or expected is None:
            return
        theirs = [await actor.prompt_logprobs(ids) for ids in self._texts]
        means = [np.abs(own - other).mean() for own, other in zip(expected, theirs, strict=True)]
        apart = float(np.max(means))  # NaN where one of them is
        if not apart <= self._tolerance:
            raise ModelCheckError(
                f"the engine of actor {index} and the learner differ by {apart:.2g} nats on average under version "
                f"{version} of the policy, where {self._tolerance:g} is rounding{NOT_RENEWED}"
            )
        self._unchecked.discard(index)
        if not self._unchecked:
            self._expected.clear()
