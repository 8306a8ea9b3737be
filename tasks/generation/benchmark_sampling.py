"""Defines the benchmarks that policies answer, and their sampling options."""

from __future__ import annotations

from tasks.config.loading import Config
from tasks.generation.config import SamplingConfig


class AskedBenchmark(Config):
    """A benchmark and the sampling options of its questions."""

    name: str
    """Name of the benchmark."""
    sampling: SamplingConfig
    """Sampling options of its questions."""
    has_majority: bool = False
    """True if equal answers to a question are counted, for majority@k."""


class AskedBenchmarks(Config):
    """The benchmarks that policies answer in addition to the held-out prompts."""

    benchmarks: list[AskedBenchmark] = []  # noqa: RUF012 (pydantic copies defaults)
    """The benchmarks, in the order of their tables of questions."""
