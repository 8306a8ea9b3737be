"""Benchmarks as a policy answers them: their names and their sampling."""

from __future__ import annotations

from tasks.config import Config
from tasks.generation.config import SamplingConfig


class AskedBenchmark(Config):
    """A benchmark as a policy answers it."""

    name: str
    """Name of the benchmark."""
    sampling: SamplingConfig
    """Options of the sampling of its questions."""
    has_majority: bool = False
    """True if equal answers to a question are counted, for majority@k."""


class AskedBenchmarks(Config):
    """The benchmarks that policies answer beside the held-out prompts."""

    benchmarks: list[AskedBenchmark] = []  # noqa: RUF012 (pydantic copies defaults)
    """The benchmarks, in the order of their tables of questions."""
