"""Screens single prompts: length, language, questions of evaluation sets, control tokens, ground truths."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from tasks.cleaning.contamination import Questions
from tasks.cleaning.control_tokens import NO_TOKENS, ControlTokens
from tasks.cleaning.filters import Finding, Languages, check_ground_truths, check_lengths
from tasks.cleaning.frames import Frames
from tasks.cleaning.spec import ScreeningSpec
from tasks.tables.parquet import build_table
from tasks.tables.schemas import SET_ASIDE, set_aside_prompt
from tasks.verifiers import open_pool
from tasks.verifiers.config import DEFAULTS, VerifiersConfig

Check = Callable[[pa.Table], Iterator[Finding]]
"""A check of a table of prompts. It yields the prompts to drop."""


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
        checks: list[Check] = [partial(check_lengths, filters=spec.filters)]
        if spec.control_tokens == "set_aside":
            checks.append(partial(_check_control_tokens, control=control))
        if questions.num_rows:
            checks.append(partial(_check_overlaps, questions=Questions(questions, spec.contamination, frames)))
        if spec.filters.languages:
            checks.append(Languages(spec.filters.languages).check)
        if spec.filters.ground_truths:
            pool = stack.enter_context(open_pool(spec.verifier_workers, verifiers, {"math"}))
            checks.append(partial(check_ground_truths, pool=pool))
        for batch in batches:
            stays, aside = batch, []
            for check in checks:
                findings = list(check(stays))
                aside += [_set_aside(stays, finding) for finding in findings]
                keep = np.ones(stays.num_rows, bool)
                keep[[finding.row for finding in findings]] = False
                stays = stays.filter(pa.array(keep)) if findings else stays
            if spec.control_tokens == "escape":
                stays = control.escape(stays)
            yield stays, build_table(aside, SET_ASIDE, "set-aside prompts")


def _check_control_tokens(prompts: pa.Table, control: ControlTokens) -> Iterator[Finding]:
    for row, token in control.find_first_tokens(prompts).items():
        yield Finding(row, "control_tokens", f"its text contains {token!r}, a control token of the model")


def _check_overlaps(prompts: pa.Table, questions: Questions) -> Iterator[Finding]:
    for overlap in questions.find_overlaps(prompts):
        reason = f"{overlap.share:.0%} of the words of a question of {overlap.evaluation_set!r}"
        clash = {"clashed_with": overlap.question, "clashed_text": overlap.text}
        yield Finding(overlap.row, "contaminated", reason, **clash)


def _set_aside(prompts: pa.Table, finding: Finding) -> dict[str, Any]:
    [prompt] = prompts.slice(finding.row, 1).to_pylist()
    clash = {"clashed_with": finding.clashed_with, "clashed_text": finding.clashed_text}
    return set_aside_prompt("cleaning", finding.kind, prompt, finding.reason, finding.value, **clash)
