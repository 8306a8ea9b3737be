"""Work of an engine between two optimizer steps, from readings of its statistics."""

from __future__ import annotations

from dataclasses import dataclass

from tasks.generation.interface import EngineStatistics


@dataclass
class Decoding:
    """Work of one engine, summed over the time between readings of its statistics in which it had something to do.

    Attributes:
        tokens: tokens that it generated.
        busy_seconds: time in which it had something to generate.
        sequence_seconds: sequences that it decoded at a time, summed over that time.
        gpu: name of its GPU at the last reading; empty: it has none.
    """

    tokens: int = 0
    busy_seconds: float = 0.0
    sequence_seconds: float = 0.0
    gpu: str = ""

    def add(self, before: EngineStatistics, after: EngineStatistics, busy_seconds: float) -> None:
        """Add the time between two readings of one engine, of which it had something to generate `busy_seconds`.

        The number of sequences in this time is the mean of both readings, and at least 1.
        """
        tokens = after.generated_tokens - before.generated_tokens
        if tokens > 0 and busy_seconds > 0:
            self.tokens += tokens
            self.busy_seconds += busy_seconds
            self.sequence_seconds += busy_seconds * max((before.running + after.running) / 2, 1)
        self.gpu = after.gpu

    @property
    def sequences(self) -> float:
        """Mean number of sequences that were decoded at a time; 0 without any time."""
        return self.sequence_seconds / self.busy_seconds if self.busy_seconds else 0.0
