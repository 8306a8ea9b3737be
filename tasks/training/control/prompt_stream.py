"""Decides the order in which prompts are sampled: by default the mixture's, epoch after epoch. It survives a restart.

prompts put back (stale groups) ──► prompts to retry ──► next prompt of the epoch, unless excluded or retired
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from typing import Any

from tasks.failures import MistakeError
from tasks.recipe.prompts import CurriculumConfig, PromptsConfig
from tasks.training.control.prompt_history import PromptHistory
from tasks.training.groups.group import Prompt

DEFAULT_OPTIONS = PromptsConfig()
"""Options that do not change the mixture's order."""


class PromptStream:
    """An endless stream of prompts. A prompt that the mixture repeats is returned several times per epoch.

    The first epoch follows the mixture's order. Each later one is a shuffle seeded by (seed, epoch). A prompt whose
    group was lost or dropped for staleness is put back and is returned first.

    Attributes:
        history: results of every prompt so far, which decide whether prompts retire or are retried.
    """

    def __init__(
        self, prompts: Sequence[Prompt], seed: int, options: PromptsConfig = DEFAULT_OPTIONS, steps: int = 1
    ) -> None:
        """Create a stream at its beginning.

        Args:
            prompts: the mixture, in its order.
            seed: seed of the shuffles and of the curriculum.
            options: retirement, deferred re-rolling and curriculum, which change the order.
            steps: steps of the run.

        Raises:
            ValueError: the mixture is empty.
            MistakeError: a curriculum is configured, and all pass rates are equal.
        """
        if not prompts:
            raise MistakeError("the mixture contains no prompts to train on")
        rates = {prompt.pass_rate for prompt in prompts}
        if options.curriculum and None in rates:
            raise MistakeError(
                "prompts.curriculum: the mixture has prompts without a pass rate (difficulty: null measures none); "
                "leave the option out"
            )
        if options.curriculum and len(rates) == 1 < len(prompts):
            raise MistakeError(
                f"prompts.curriculum: every prompt of the mixture has the pass rate {rates.pop():g}, so that none is "
                "easier than another; leave the option out"
            )
        self._prompts = list(prompts)
        self._by_id = {prompt.prompt_id: prompt for prompt in prompts}
        self._seed = seed
        self._drawn = 0
        self._returned: deque[Prompt] = deque()
        self._excluded: set[str] = set()
        self._curriculum = options.curriculum
        self._ordered, self._ordered_for = self._prompts, -1  # the order of one epoch, and the number of that epoch
        self.history = PromptHistory(options, steps)

    @property
    def by_id(self) -> dict[str, Prompt]:
        """Every prompt of the mixture by its id."""
        return self._by_id

    @property
    def epoch(self) -> float:
        """Number of epochs sampled so far, as a fraction."""
        return self._drawn / len(self._prompts)

    @property
    def is_exhausted(self) -> bool:
        """Return whether no prompt is left to sample."""
        retired, excluded, total = self.history.retired, self._excluded, len(self._by_id)
        if len(retired) + len(excluded) < total:
            return False
        return len(retired | excluded) == total

    def next(self) -> Prompt:
        """Return the next prompt to sample.

        Raises:
            ValueError: the stream is exhausted.
        """
        while self._returned:
            if not self._is_left_out(prompt := self._returned.popleft()):
                return prompt
        if self.is_exhausted:
            raise MistakeError("every prompt of the mixture is excluded or retired: there is nothing left to train on")
        while deferred := self.history.take_deferred():
            if deferred not in self._excluded:
                return self._by_id[deferred]
        while True:
            epoch, position = divmod(self._drawn, len(self._prompts))
            self._drawn += 1
            prompt = self._order(epoch)[position]
            if not self._is_left_out(prompt):
                self.history.record_drawn(prompt.prompt_id)
                return prompt

    def _is_left_out(self, prompt: Prompt) -> bool:
        return prompt.prompt_id in self._excluded or prompt.prompt_id in self.history.retired

    def put_back(self, prompt: Prompt) -> None:
        """Sample `prompt` again before any new prompt, unless it has been retired or excluded meanwhile."""
        if not self._is_left_out(prompt):
            self._returned.append(prompt)

    def exclude(self, prompt: Prompt) -> None:
        """Never sample `prompt` again."""
        self._excluded.add(prompt.prompt_id)

    def state(self) -> dict[str, Any]:
        """Return the position in the stream as JSON values, for a checkpoint."""
        again = [prompt.prompt_id for prompt in self._returned]
        return {
            "drawn": self._drawn,
            "again": again,
            "excluded": sorted(self._excluded),
            "history": self.history.state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue at the position that `state` returned.

        Raises:
            ValueError: the position names prompts that this mixture does not contain.
        """
        history = state["history"]
        known = (*state["again"], *state["excluded"], *history["retired"], *history["failed"], *history["solved"])
        unknown = [identity for identity in known if identity not in self._by_id]
        if unknown:
            raise MistakeError(f"the checkpoint contains prompts that the mixture lacks, such as {unknown[0]}")
        self._drawn = state["drawn"]
        self._returned = deque(self._by_id[identity] for identity in state["again"])
        self._excluded = set(state["excluded"])
        self.history.restore(history)

    def _order(self, epoch: int) -> list[Prompt]:
        if epoch != self._ordered_for:
            self._ordered_for = epoch
            self._ordered = list(self._prompts)
            if epoch > 0:
                random.Random(f"{self._seed}:{epoch}").shuffle(self._ordered)
            curriculum = self._curriculum
            if curriculum and (curriculum.epochs is None or epoch < curriculum.epochs):
                self._ordered = sort_easy_to_hard(self._ordered, curriculum, f"{self._seed}:{epoch}:curriculum")
        return self._ordered


def sort_easy_to_hard(prompts: Sequence[Prompt], curriculum: CurriculumConfig, seed: str) -> list[Prompt]:
    """Return prompts by decreasing pass rate, each moved from its rank by less than the share `band` of all prompts."""
    chance = random.Random(seed)
    ranked = sorted(prompts, key=lambda prompt: -(prompt.pass_rate or 0.0))
    width = curriculum.band * len(prompts)
    keys = [rank + width * chance.random() for rank in range(len(ranked))]
    return [ranked[rank] for rank in sorted(range(len(ranked)), key=keys.__getitem__)]
