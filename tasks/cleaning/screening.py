"""Screens single prompts: length, language, questions of evaluation sets, control tokens, ground truths."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pyarrow as pa

from tasks.cleaning.contamination import Questions
from tasks.cleaning.control_tokens import NO_TOKENS, ControlTokens
from tasks.cleaning.filters import Finding, Languages, check_ground_truths, check_lengths
from tasks.cleaning.frames import Frames
from tasks.cleaning.spec import ScreeningSpec
from tasks.tables.parquet import build_table
from tasks.tables.schemas import SET_ASIDE, set_aside_row
from tasks.verifiers import open_pool
from tasks.verifiers.config import DEFAULTS, VerifiersConfig

Clash = tuple[str, str] | None
"""The id and the text of the question that a prompt contains, if any."""

Check = Callable[[pa.Table], Iterator[tuple[Finding, Clash]]]
"""A check of a table of prompts. It yields its findings, each with its `Clash`."""


def screen(
    batches: Iterable[pa.Table],
    questions: pa.Table,
    spec: ScreeningSpec,
    frames: Frames,
    verifiers: VerifiersConfig = DEFAULTS,
    control: ControlTokens = NO_TOKENS,
) -> Iterator[tuple[pa.Table, pa.Table]]:
    """Divide prompts, batch by batch, into prompts that are kept and prompts that are dropped.

    The cheapest checks run first, and a prompt is dropped for the first reason found.

    Args:
        batches: tables of `PROMPTS`.
        questions: the questions of the evaluation sets, a table of `PROMPTS`; the names of the sets are the sources.
        spec: the filters, and the rule that decides whether a prompt contains a question.
        frames: the frames of prompts and questions.
        verifiers: the options of the verifiers that check ground truths.
        control: the search for the control tokens of the model.

    Yields:
        A table of `PROMPTS` and one of `SET_ASIDE`.

    Raises:
        SpecError: `spec.filters.languages` contains an unknown language, or the package that detects languages is not
            installed.
    """
    with ExitStack() as stack:
        checks: list[Check] = [_make_check(lambda prompts: check_lengths(prompts, spec.filters))]
        if spec.control_tokens == "set_aside":
            checks.append(_make_check(lambda prompts: _check_control_tokens(prompts, control)))
        if questions.num_rows:
            checks.append(_make_contamination_check(Questions(questions, spec.contamination, frames)))
        if spec.filters.languages:
            checks.append(_make_check(Languages(spec.filters.languages).check))
        if spec.filters.ground_truths:
            pool = stack.enter_context(open_pool(spec.verifier_workers, verifiers, {"math"}))
            checks.append(_make_check(lambda prompts: check_ground_truths(prompts, pool)))
        for batch in batches:
            stays, aside = batch, []
            for check in checks:
                findings = list(check(stays))
                aside += [_set_aside(stays, finding, clash) for finding, clash in findings]
                keep = np.ones(stays.num_rows, bool)
                keep[[finding.row for finding, _ in findings]] = False
                stays = stays.filter(pa.array(keep)) if findings else stays
            if spec.control_tokens == "escape":
                stays = control.escape(stays)
            yield stays, build_table(aside, SET_ASIDE, "set-aside prompts")


def _make_check(find: Callable[[pa.Table], Iterator[Finding]]) -> Check:
    return lambda prompts: ((finding, None) for finding in find(prompts))


def _check_control_tokens(prompts: pa.Table, control: ControlTokens) -> Iterator[Finding]:
    for row, token in control.find_first_tokens(prompts).items():
        yield Finding(row, "control_tokens", f"its text contains {token!r}, a control token of the model")


def _make_contamination_check(questions: Questions) -> Check:
    def find(prompts: pa.Table) -> Iterator[tuple[Finding, Clash]]:
        for overlap in questions.find_overlaps(prompts):
            reason = f"{overlap.share:.0%} of the words of a question of {overlap.evaluation_set!r}"
            yield Finding(overlap.row, "contaminated", reason), (overlap.question, overlap.text)

    return find


def _set_aside(prompts: pa.Table, finding: Finding, clash: Clash) -> dict[str, Any]:
    prompt = prompts.slice(finding.row, 1).to_pylist()[0]
    return set_aside_row(
        "cleaning",
        finding.kind,
        prompt["source"],
        prompt["row"],
        finding.reason,
        prompt["messages"][-1]["content"] if finding.value is None else finding.value,
        prompt_id=prompt["prompt_id"],
        clashed_with=None if clash is None else clash[0],
        clashed_text=None if clash is None else clash[1],
    )
