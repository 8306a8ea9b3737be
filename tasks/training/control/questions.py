"""Loads the questions of the benchmarks that validation uses."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa

from tasks.config.cache_keys import non_default_options
from tasks.failures import MistakeError
from tasks.generation import chat_template
from tasks.generation.benchmark_sampling import AskedBenchmark
from tasks.recipe.run import TrainingConfig
from tasks.rollouts.judging import split_judgeable
from tasks.storage.model_folder import convert_load_errors
from tasks.tables.schemas import json_digest
from tasks.training.control.validation_figures import Question
from tasks.training.groups.group import Prompt
from tasks.verifiers import VerifiersConfig

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Benchmark:
    """A benchmark for validation: its name, its sampling options, and its questions, a table of `schemas.PROMPTS`."""

    asked: AskedBenchmark
    questions: pa.Table

    @cached_property
    def digest(self) -> str:
        """Digest of everything that its scores depend on except the policy: sampling, questions and ground truths."""
        columns = self.questions.select(["prompt_id", "messages", "verifier", "ground_truth"])
        content = [non_default_options(self.asked), columns.to_pylist()]
        return json_digest(content)


def load_questions(
    config: TrainingConfig, model: Path, benchmarks: Sequence[Benchmark], verifiers: VerifiersConfig
) -> list[Question]:
    """Return the questions of all benchmarks, tokenised by the model's tokenizer.

    A question that this machine cannot verify, or that leaves no room for a response in the engine's context, is
    skipped. A warning states the number of such questions.

    Raises:
        MistakeError: no question of a benchmark can be used.
        RolloutError: none of a benchmark's questions can be verified on this machine.
        ModelError: the tokenizer cannot be loaded.
        ChatTemplateError: the chat template refuses a question, or has no variable of `sampling.chat_template_kwargs`.
    """
    if not benchmarks:
        return []
    from transformers import AutoTokenizer

    with convert_load_errors(model):
        tokenizer = AutoTokenizer.from_pretrained(model)
    return [
        question for benchmark in benchmarks for question in _make_questions(config, benchmark, tokenizer, verifiers)
    ]


def _make_questions(
    config: TrainingConfig, benchmark: Benchmark, tokenizer: Any, verifiers: VerifiersConfig
) -> list[Question]:
    asked, limit = benchmark.asked, config.actors.engine.max_model_len
    table, set_aside = split_judgeable(benchmark.questions, verifiers, "evaluation")
    if set_aside.num_rows:
        reason = set_aside["reason"][0].as_py()
        logger.warning("validation on %s: %d questions are left out: %s", asked.name, set_aside.num_rows, reason)
    sampling = asked.sampling
    if sampling.seed is None:
        sampling = sampling.model_copy(update={"seed": config.seed})
    rows = table.to_pylist()
    token_ids = chat_template.encode(tokenizer, rows, sampling.chat_template_kwargs)
    questions = [
        Question(Prompt.from_row(row, tokens), sampling, asked.name, asked.has_majority)
        for row, tokens in zip(rows, token_ids, strict=True)
        if len(tokens) + sampling.max_tokens <= limit
    ]
    if not questions:
        raise MistakeError(
            f"validation: benchmark {asked.name!r} has no question that fits with its sampling.max_tokens = "
            f"{sampling.max_tokens} (actors.engine.max_model_len is {limit})"
        )
    if len(questions) < len(rows):
        logger.warning(
            "validation on %s: %d questions are left out: they do not fit with its sampling.max_tokens = %d "
            "(actors.engine.max_model_len is %d)",
            asked.name,
            len(rows) - len(questions),
            sampling.max_tokens,
            limit,
        )
    return questions
