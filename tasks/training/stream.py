"""The order in which prompts are sampled: the mixture's own, epoch after epoch, and it survives a restart."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from typing import Any

from tasks.training.rollouts import Prompt


class PromptStream:
    """An endless stream of prompts; one that is up-sampled stands in it several times an epoch.

    The first epoch follows the mixture's order; each later one is a shuffle seeded by (seed, epoch). A prompt whose
    group was lost or dropped for staleness is put back and comes first.
    """

    def __init__(self, prompts: Sequence[Prompt], seed: int) -> None:
        if not prompts:
            raise ValueError("the mixture holds no prompts to train on")
        self._prompts = list(prompts)
        self._by_id = {prompt.prompt_id: prompt for prompt in prompts}
        self._seed = seed
        self._drawn = 0
        self._returned: deque[Prompt] = deque()
        self._excluded: set[str] = set()
        self._shuffled, self._shuffled_for = self._prompts, 0  # the order of one epoch, and which one

    @property
    def by_id(self) -> dict[str, Prompt]:
        """Every prompt of the mixture by its id."""
        return self._by_id

    @property
    def epoch(self) -> float:
        """How often the mixture has been drawn, as a fraction."""
        return self._drawn / len(self._prompts)

    def next(self) -> Prompt:
        """The next prompt to sample.

        Raises:
            ValueError: every prompt is excluded.
        """
        if self._returned:
            return self._returned.popleft()
        if len(self._excluded) == len(self._by_id):
            raise ValueError("every prompt of the mixture is excluded: there is nothing left to train on")
        while True:
            epoch, position = divmod(self._drawn, len(self._prompts))
            self._drawn += 1
            prompt = self._order(epoch)[position]
            if prompt.prompt_id not in self._excluded:
                return prompt

    def put_back(self, prompt: Prompt) -> None:
        """Sample `prompt` again, before anything new."""
        self._returned.append(prompt)

    def exclude(self, prompt: Prompt) -> None:
        """Never sample `prompt` again."""
        self._excluded.add(prompt.prompt_id)

    def state(self) -> dict[str, Any]:
        """What a restart needs."""
        again = [prompt.prompt_id for prompt in self._returned]
        return {"drawn": self._drawn, "again": again, "excluded": sorted(self._excluded)}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue where `state` was taken.

        Raises:
            ValueError: the state speaks of prompts that this mixture does not hold.
        """
        unknown = [identity for identity in (*state["again"], *state["excluded"]) if identity not in self._by_id]
        if unknown:
            raise ValueError(f"the checkpoint holds prompts that the mixture lacks, such as {unknown[0]}")
        self._drawn = state["drawn"]
        self._returned = deque(self._by_id[identity] for identity in state["again"])
        self._excluded = set(state["excluded"])

    def _order(self, epoch: int) -> list[Prompt]:
        if epoch != self._shuffled_for:
            self._shuffled_for = epoch
            self._shuffled = list(self._prompts)
            random.Random(f"{self._seed}:{epoch}").shuffle(self._shuffled)  # noqa: S311 reproducibility, not secrecy
        return self._shuffled
