"""The order in which prompts are sampled: the mixture's own, epoch after epoch, and it survives a restart.

what was lost, or grew stale ──► what waited for another try ──► the next of the epoch, unless excluded or retired
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from typing import Any

from tasks.failures import MistakeError
from tasks.training.control.prompt_history import PromptHistory
from tasks.training.groups.group import Prompt
from tasks.training.prompt_options import CurriculumConfig, PromptsConfig

NO_CHANGES = PromptsConfig()


class PromptStream:
    """An endless stream of prompts; one that is up-sampled stands in it several times an epoch.

    The first epoch follows the mixture's order; each later one is a shuffle seeded by (seed, epoch). A prompt whose
    group was lost or dropped for staleness is put back and comes first.

    Args:
        options: what may change this order: a curriculum, and what earlier groups say of a prompt.
        steps: of the run.

    Attributes:
        history: what earlier groups say of each prompt.
    """

    def __init__(
        self, prompts: Sequence[Prompt], seed: int, options: PromptsConfig = NO_CHANGES, steps: int = 1
    ) -> None:
        if not prompts:
            raise ValueError("the mixture holds no prompts to train on")
        rates = {prompt.pass_rate for prompt in prompts}
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
        self._ordered, self._ordered_for = self._prompts, -1  # the order of one epoch, and which one
        self.history = PromptHistory(options, steps)

    @property
    def by_id(self) -> dict[str, Prompt]:
        """Every prompt of the mixture by its id."""
        return self._by_id

    @property
    def epoch(self) -> float:
        """How often the mixture has been drawn, as a fraction."""
        return self._drawn / len(self._prompts)

    @property
    def is_exhausted(self) -> bool:
        """Whether no prompt is left to sample."""
        retired, excluded, total = self.history.retired, self._excluded, len(self._by_id)
        if len(retired) + len(excluded) < total:
            return False
        return len(retired | excluded) == total

    def next(self) -> Prompt:
        """The next prompt to sample.

        Raises:
            ValueError: the stream is exhausted.
        """
        while self._returned:
            if not self._is_left_out(prompt := self._returned.popleft()):
                return prompt
        if self.is_exhausted:
            raise ValueError("every prompt of the mixture is excluded or retired: there is nothing left to train on")
        while deferred := self.history.take_deferred():
            if deferred not in self._excluded:
                return self._by_id[deferred]
        while True:
            epoch, position = divmod(self._drawn, len(self._prompts))
            self._drawn += 1
            prompt = self._order(epoch)[position]
            if not self._is_left_out(prompt):
                self.history.drawn(prompt.prompt_id)
                return prompt

    def _is_left_out(self, prompt: Prompt) -> bool:
        return prompt.prompt_id in self._excluded or prompt.prompt_id in self.history.retired

    def put_back(self, prompt: Prompt) -> None:
        """Sample `prompt` again, before anything new, unless it has retired meanwhile."""
        if not self._is_left_out(prompt):
            self._returned.append(prompt)

    def exclude(self, prompt: Prompt) -> None:
        """Never sample `prompt` again."""
        self._excluded.add(prompt.prompt_id)

    def state(self) -> dict[str, Any]:
        """What a restart needs."""
        again = [prompt.prompt_id for prompt in self._returned]
        return {
            "drawn": self._drawn,
            "again": again,
            "excluded": sorted(self._excluded),
            "visits": self.history.state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue where `state` was taken.

        Raises:
            ValueError: the state speaks of prompts that this mixture does not hold.
        """
        visits = state["visits"]
        known = (*state["again"], *state["excluded"], *visits["retired"], *visits["failed"], *visits["solved"])
        unknown = [identity for identity in known if identity not in self._by_id]
        if unknown:
            raise ValueError(f"the checkpoint holds prompts that the mixture lacks, such as {unknown[0]}")
        self._drawn = state["drawn"]
        self._returned = deque(self._by_id[identity] for identity in state["again"])
        self._excluded = set(state["excluded"])
        self.history.restore(visits)

    def _order(self, epoch: int) -> list[Prompt]:
        if epoch != self._ordered_for:
            self._ordered_for = epoch
            self._ordered = list(self._prompts)
            if epoch > 0:
                random.Random(f"{self._seed}:{epoch}").shuffle(self._ordered)
            curriculum = self._curriculum
            if curriculum and (curriculum.epochs is None or epoch < curriculum.epochs):
                self._ordered = easy_to_hard(self._ordered, curriculum, f"{self._seed}:{epoch}:curriculum")
        return self._ordered


def easy_to_hard(prompts: Sequence[Prompt], curriculum: CurriculumConfig, seed: str) -> list[Prompt]:
    """Prompts in the order of their pass rates, each less than `band` of them away from its place in it."""
    chance = random.Random(seed)
    ranked = sorted(prompts, key=lambda prompt: -prompt.pass_rate)
    width = curriculum.band * len(prompts)
    keys = [rank + width * chance.random() for rank in range(len(ranked))]
    return [ranked[rank] for rank in sorted(range(len(ranked)), key=keys.__getitem__)]
