"""Adds to rollouts the answers that a verifier extracts from them, and the groups of equal answers of a prompt."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import pyarrow as pa

from tasks.tables.schemas import EVALUATION_ROLLOUTS, TEXT
from tasks.verifiers import VerifierPool, stated_answer
from tasks.verifiers.equal_answers import group_equal_answers


def add_answers(
    rollouts: pa.Table,
    prompts: pa.Table,
    benchmark: str,
    *,
    grouped: bool = False,
    open_pool: Callable[[], AbstractContextManager[VerifierPool]] | None = None,
) -> pa.Table:
    """Return `ROLLOUTS` as `EVALUATION_ROLLOUTS` of a benchmark, with the answer of every response to a math prompt.

    Args:
        rollouts: the rollouts of one policy, by prompt and sample.
        prompts: a table of `PROMPTS` that contains the prompts of the rollouts.
        benchmark: the name of the benchmark.
        grouped: if true, `answer_class` contains the classes of equal answers, which takes a comparison for each pair
            of different answers of a prompt. Otherwise it is null.
        open_pool: opens the verifiers that compare answers, for `grouped`.
    """
    asked = zip(*(prompts.column(name).to_pylist() for name in ("prompt_id", "verifier", "ground_truth")), strict=True)
    truths = {prompt: json.loads(truth) for prompt, verifier, truth in asked if verifier == "math"}
    ids, texts = rollouts.column("prompt_id").to_pylist(), rollouts.column("response").to_pylist()
    answers = [
        stated_answer("math", text, truths[prompt]) if prompt in truths else None
        for prompt, text in zip(ids, texts, strict=True)
    ]
    classes: list[int | None] = [None] * len(answers)
    if grouped and open_pool is not None:
        with open_pool() as pool:
            classes = asyncio.run(_find_classes(ids, answers, truths, pool))
    columns = {
        "benchmark": pa.array([benchmark] * len(ids), pa.string()),
        "answer": pa.array(answers, TEXT),
        "answer_class": pa.array(classes, pa.int32()),
    }
    for name, column in columns.items():
        rollouts = rollouts.append_column(EVALUATION_ROLLOUTS.field(name), column)
    return rollouts.select(EVALUATION_ROLLOUTS.names)


async def _find_classes(
    ids: Sequence[str], answers: Sequence[str | None], truths: dict[str, Any], pool: VerifierPool
) -> list[int | None]:
    """Return the class of each answer among the answers of its prompt, by the equivalence of the prompt's verifier."""
    classes: list[int | None] = [None] * len(ids)
    of_prompt: dict[str, list[int]] = defaultdict(list)
    for index, prompt in enumerate(ids):
        of_prompt[prompt].append(index)
    for prompt, indices in of_prompt.items():
        if prompt in truths:
            labels = await group_equal_answers([answers[index] for index in indices], truths[prompt], pool.score)
            for index, label in zip(indices, labels, strict=True):
                classes[index] = label
    return classes
