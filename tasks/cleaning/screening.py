"""Prompts of one source, each by itself: too long, of another language, contaminated, with a wrong ground truth."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack

import numpy as np
import pyarrow as pa

from tasks.cleaning.contamination import Questions
from tasks.cleaning.filters import Finding, Languages, lengths, wrong_ground_truths
from tasks.cleaning.spec import ScreeningSpec
from tasks.tables.parquet import table_from_rows
from tasks.tables.schemas import SET_ASIDE, set_aside_row
from tasks.verifiers import open_pool
from tasks.verifiers.config import DEFAULTS, VerifiersConfig

Asked = Callable[[pa.Table], Iterator[tuple[Finding, str | None]]]
"""A question to prompts: whom it sets aside, and for which prompt in its place."""


def screen(
    batches: Iterable[pa.Table], questions: pa.Table, spec: ScreeningSpec, verifiers: VerifiersConfig = DEFAULTS
) -> Iterator[tuple[pa.Table, pa.Table]]:
    """The prompts that stay and the rows set aside, batch after batch.

    What is cheap to find is looked for first, and a prompt is set aside for one reason.

    Args:
        batches: tables of `PROMPTS`.
        questions: table of `PROMPTS`: the evaluation sets, by their names as sources.
        spec: what is asked.
        verifiers: how ground truths are judged.

    Yields:
        A table of `PROMPTS` and one of `SET_ASIDE`.

    Raises:
        SpecError: see `Languages`.
    """
    with ExitStack() as stack:
        asked: list[Asked] = [_alone(lambda prompts: lengths(prompts, spec.filters))]
        if questions.num_rows:
            asked.append(_contaminated(Questions(questions, spec.contamination)))
        if spec.filters.languages:
            asked.append(_alone(Languages(spec.filters.languages).others))
        if spec.filters.ground_truths:
            pool = stack.enter_context(open_pool(spec.verifier_workers, verifiers, {"math"}))
            asked.append(_alone(lambda prompts: wrong_ground_truths(prompts, pool)))
        for batch in batches:
            stays, aside = batch, []
            for question in asked:
                found = list(question(stays))
                aside += [_set_aside(stays.slice(each.row, 1).to_pylist()[0], each, clash) for each, clash in found]
                keep = np.ones(stays.num_rows, bool)
                keep[[each.row for each, _ in found]] = False
                stays = stays.filter(pa.array(keep)) if found else stays
            yield stays, table_from_rows(aside, SET_ASIDE, "set-aside prompts")


def _alone(find: Callable[[pa.Table], Iterator[Finding]]) -> Asked:
    return lambda prompts: ((found, None) for found in find(prompts))


def _contaminated(questions: Questions) -> Asked:
    def find(prompts: pa.Table) -> Iterator[tuple[Finding, str]]:
        for each in questions.overlaps(prompts):
            reason = f"{each.share:.0%} of the words of a question of {each.evaluation_set!r}"
            yield Finding(each.row, "contaminated", reason), each.question

    return find


def _set_aside(prompt: dict, found: Finding, clash: str | None) -> dict:
    return set_aside_row(
        "cleaning",
        found.kind,
        prompt["source"],
        json.loads(prompt["metadata"]).get("row", -1),
        found.reason,
        prompt["messages"][-1]["content"] if found.value is None else found.value,
        prompt_id=prompt["prompt_id"],
        clashed_with=clash,
    )
