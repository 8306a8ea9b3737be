"""What the columns of a row mean: the pydantic models behind `columns:`."""

from __future__ import annotations

import re
from typing import Literal, get_args

from pydantic import field_validator

from tasks.config import Config
from tasks.tables.schemas import Domain

Verifier = Literal["math", "code", "precise_if", "chat_reference", "chat_open"]
VERIFIERS: tuple[Verifier, ...] = get_args(Verifier)

MODES_OF: dict[Verifier, tuple[str, ...]] = {"math": ("sympy", "gsm8k", "exact"), "precise_if": ("strict", "loose")}

VERIFIERS_OF: dict[Domain, tuple[Verifier, ...]] = {
    "math": ("math",),
    "code": ("code",),
    "precise_if": ("precise_if",),
    "chat": ("chat_reference", "chat_open"),
}

DOMAIN_OF: dict[Verifier, Domain] = {each: domain for domain, each_of in VERIFIERS_OF.items() for each in each_of}

COLUMNS_OF: dict[Verifier, tuple[str, ...]] = {
    "math": ("ground_truth", "ground_truth_pattern", "integer_answers"),
    "code": ("tests", "setup"),
    "precise_if": ("instruction_ids", "kwargs"),
    "chat_reference": ("ground_truth", "ground_truth_pattern"),
    "chat_open": (),
}
"""The column settings that only some verifiers read."""

NO_COLUMNS = {"ground_truth_pattern", "integer_answers"}
"""Those of them that name no column."""


class Columns(Config):
    """Which column of a row means what; the defaults are the columns that the generators give.

    A column is a name, or a path into one: `reward_model.ground_truth`, `choices.0`. Columns that hold JSON as text are
    read where a list or an object is wanted (`tasks.sourcing.values`).
    """

    prompt: str = "prompt"
    """The prompt: text, or a list of messages `{role, content}`. Turns of the assistant at its end are left off; what
    messages hold beside role and content goes into the prompt's metadata."""
    system: str | None = None
    """A system prompt (the text itself, not a column) put before every prompt."""
    template: str | None = None
    """Text in which `{prompt}` (and `{tests}`, for code) is replaced; applied to the last user message."""
    ground_truth: str = "ground_truth"
    """The expected answer: text, a number, or for math also a list of texts of which one must match."""
    ground_truth_pattern: str | None = None
    """Regular expression that finds the answer inside that column: its group if it has one, its last match if it has
    several (GSM8K: `#### (.+)`)."""
    integer_answers: bool = False
    """As DAPO does (arXiv:2503.14476, section 3.5), ask for whole numbers, which cannot be misread: a fraction's prompt
    asks for the sum of its two parts, and rows with other answers are set aside."""
    instruction_ids: str = "instruction_ids"
    """List of constraint ids (`tasks.verifiers.instructions.arguments`)."""
    kwargs: str = "kwargs"
    """List of the arguments of these constraints; nulls in them are dropped."""
    tests: str = "tests"
    """The tests, in one of the forms of `tasks.sourcing.code_tests`."""
    setup: str | None = None
    """Code that runs before the assertions, or a list of its lines; no column means none."""
    keep: list[str] = []  # noqa: RUF012 (pydantic copies defaults)
    """Columns that are carried along in the prompt's metadata."""

    @field_validator("template")
    @classmethod
    def _template_holds_the_prompt(cls, template: str | None) -> str | None:
        if template is not None and "{prompt}" not in template:
            raise ValueError("must contain {prompt}")
        return template

    @field_validator("ground_truth_pattern")
    @classmethod
    def _pattern_compiles(cls, pattern: str | None) -> str | None:
        if pattern is not None:
            try:
                groups = re.compile(pattern).groups
            except re.error as error:
                raise ValueError(f"not a regular expression: {error}") from None
            if groups > 1:
                raise ValueError(f"has {groups} groups; at most one may hold the answer")
        return pattern
