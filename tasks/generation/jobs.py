"""A prompt that is being sampled: which of its responses exist, and which come next."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from tasks.generation.config import SamplingConfig
from tasks.generation.judging import is_group_prompt
from tasks.generation.rollout_cache import RolloutCache, known_scores

Remaining = Callable[[Sequence[float | None]], int]
"""A function that returns how many samples of a prompt to draw next, given the scores of those so far; 0: no more."""


@dataclass
class Job:
    """A prompt that is being sampled.

    Attributes:
        workload: number of its workload, from 0.
        row: of `PROMPTS`.
        key: of its responses in the cache.
        sampling: options of the sampling.
        cache: the cache of its responses.
        remaining: as for `sample`.
        present: the numbers of the responses that exist.
        scores: scores of those of them that were judged.
        taken: number of its first responses that count.
        texts: by number, the responses that are judged together once all exist; None where each is judged by itself.
    """

    workload: int
    row: dict[str, Any]
    key: str
    sampling: SamplingConfig
    cache: RolloutCache
    remaining: Remaining | None
    present: set[int]
    scores: dict[int, float | None]
    taken: int = 0
    texts: dict[int, str] | None = None

    @classmethod
    def of(
        cls,
        workload: int,
        row: dict[str, Any],
        key: str,
        sampling: SamplingConfig,
        cache: RolloutCache,
        remaining: Remaining | None,
    ) -> Job:
        """The job of a prompt with its cached responses, which count as far as they are complete."""
        present = {sample for sample in range(sampling.samples) if (key, sample) in cache.responses}
        scores: dict[int, float | None] = {}
        texts: dict[int, str] | None = {} if is_group_prompt(row) else None
        remaining = None if texts is not None else remaining
        if remaining is not None and present:
            scores = known_scores(row["prompt_id"], key, sorted(present), cache)
        job = cls(workload, row, key, sampling, cache, remaining, present, scores, texts=texts)
        job.take_present()
        return job

    def next(self) -> range:
        """The numbers of the samples that come next; empty where the prompt has enough."""
        if self.remaining is None or self.taken == self.sampling.samples:
            return range(self.taken, self.sampling.samples)
        count = self.remaining([self.scores.get(number) for number in range(self.taken)])
        return range(self.taken, self.taken + count)

    @property
    def missing(self) -> list[int]:
        """The numbers of those of the next samples that do not exist yet."""
        return [number for number in self.next() if number not in self.present]

    def take_present(self) -> None:
        """Count existing responses, until one is missing or the prompt has enough."""
        while self.next() and not self.missing:
            self.taken = self.next().stop


def interleaved(verifiers: Sequence[str]) -> list[int]:
    """Order prompts so that each verifier's come at an even pace, and in their own order; return their indices.

    A slow verifier, such as a model that judges, so works while engines generate for the others. In the order of a
    table, which goes by source, it would idle at first, and the engines at last.

    Args:
        verifiers: the verifier of every prompt.
    """
    sizes = Counter(verifiers)
    positions: defaultdict[str, count[int]] = defaultdict(count)
    progress = [(next(positions[verifier]) + 0.5) / sizes[verifier] for verifier in verifiers]
    return sorted(range(len(verifiers)), key=progress.__getitem__)
