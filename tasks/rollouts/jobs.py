"""Tracks the sampling of a prompt: which of its responses exist, and which to generate next."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from tasks.generation.config import SamplingConfig
from tasks.generation.interface import sample_seed
from tasks.rollouts.judging import is_group_prompt
from tasks.rollouts.rollout_cache import RolloutCache, find_scores
from tasks.tables.schemas import messages_key

Remaining = Callable[[Sequence[float | None]], int]
"""A function that returns how many more samples of a prompt to generate, given the scores of the samples so far.

It returns 0 if the prompt has enough.
"""


@dataclass
class Job:
    """A prompt that is being sampled.

    Attributes:
        workload: index of its workload, from 0.
        row: its row of `PROMPTS`.
        key: key of its responses in the cache.
        sampling: options of the sampling.
        cache: the cache of its responses.
        remaining: as for `sample`, or None for a prompt with a reward for the whole group.
        present: indices of the responses that exist.
        scores: scores of existing responses, by index. Responses that have not been scored are missing.
        taken: number of responses that count, from the first one on.
        texts: by index, the responses that are scored together once all exist, or None if each is scored separately.
    """

    workload: int
    row: dict[str, Any]
    key: str
    sampling: SamplingConfig
    cache: RolloutCache
    remaining: Remaining | None
    present: set[int] = field(init=False)
    scores: dict[int, float | None] = field(init=False, default_factory=dict)
    taken: int = field(init=False, default=0)
    texts: dict[int, str] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        """Add the cached responses, which count up to the first missing one."""
        self.present = {sample for sample in range(self.sampling.samples) if (self.key, sample) in self.cache.responses}
        if is_group_prompt(self.row):
            self.texts, self.remaining = {}, None
        if self.remaining is not None and self.present:
            self.scores = find_scores(self.row, self.key, sorted(self.present), self.cache)
        self.take_present()

    def next(self) -> range:
        """Return the indices of the samples to take next. Empty if the prompt has enough."""
        if self.remaining is None or self.taken == self.sampling.samples:
            return range(self.taken, self.sampling.samples)
        count = self.remaining([self.scores.get(number) for number in range(self.taken)])
        return range(self.taken, self.taken + count)

    def compute_seed(self, number: int) -> int | None:
        """Return the seed of a sample, or None without a base seed.

        It depends on the prompt alone, as the key of an episode also depends on code. Prompts with the same messages
        and different environments have different seeds, as different games may begin with the same messages.
        """
        if self.sampling.seed is None:
            return None
        prompt = messages_key(self.row["messages"]) if self.row["environment"] is None else self.row["prompt_id"]
        return sample_seed(self.sampling.seed, prompt, number)

    @property
    def missing(self) -> list[int]:
        """Indices of the next samples that do not exist yet."""
        return [number for number in self.next() if number not in self.present]

    def take_present(self) -> None:
        """Count existing responses, until one is missing or the prompt has enough."""
        while self.next() and not self.missing:
            self.taken = self.next().stop


def interleave(verifiers: Sequence[str]) -> list[int]:
    """Return the indices of prompts, ordered so that the prompts of each verifier are evenly distributed.

    The prompts of one verifier keep their order. A slow verifier, such as an LLM judge, then works while engines
    generate for the others. In the order of the table, which is sorted by source, the slow verifier would be idle at
    the beginning and the engines would be idle at the end.

    Args:
        verifiers: the verifier of every prompt.
    """
    sizes = Counter(verifiers)
    positions: defaultdict[str, count[int]] = defaultdict(count)
    progress = [(next(positions[verifier]) + 0.5) / sizes[verifier] for verifier in verifiers]
    return sorted(range(len(verifiers)), key=progress.__getitem__)
