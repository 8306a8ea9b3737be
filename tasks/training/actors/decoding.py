"""Measures the decoding work of an engine between two optimizer steps, from readings of its statistics."""

from __future__ import annotations

from dataclasses import dataclass

from tasks.generation.interface import EngineStatistics


@dataclass
class Decoding:
    """Work of one engine, summed over the time while it had something to generate.

    Attributes:
        tokens: number of generated tokens.
        busy_seconds: time while it had something to generate.
        sequence_seconds: number of concurrently decoded sequences, integrated over that time.
        gpu: name of its GPU at the last reading. Empty if it has none.
    """

    tokens: int = 0
    busy_seconds: float = 0.0
    sequence_seconds: float = 0.0
    gpu: str = ""

    def add(self, before: EngineStatistics, after: EngineStatistics, busy_seconds: float) -> None:
        """Add the time between two readings of one engine, which had something to generate for `busy_seconds` of it.

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
        """Mean number of concurrently decoded sequences, or 0 if the engine was never busy."""
        return self.sequence_seconds / self.busy_seconds if self.busy_seconds else 0.0
