"""Adds the nodes that read the questions of benchmarks, for all workflows that use or count them."""

from collections.abc import Sequence
from typing import Any

from tasks.flyte.stages import config_digest
from tasks.inputs.benchmarks import BenchmarkFile
from tasks.sourcing.loaders import divide_into_batches
from tasks.sourcing.task import source_prompts


def sourced_questions(benchmarks: Sequence[BenchmarkFile], pod: dict[str, Any]) -> list[Any]:
    """Add the nodes that read the benchmarks' questions, in pods with these overrides, and return their outputs."""
    return [
        source_prompts(
            batch=batch, content=config_digest(batch), max_prompt_chars=benchmark.max_prompt_chars
        ).with_overrides(node_name=f"ask-{number}", **pod)
        for number, benchmark in enumerate(benchmarks)
        for batch in divide_into_batches([benchmark.source])
    ]
