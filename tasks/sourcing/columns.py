"""The pydantic models behind `columns:`, which map the columns of a row to the parts of a prompt."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Literal, get_args

from pydantic import AfterValidator, WithJsonSchema, field_validator

from tasks.config import Config, close_match
from tasks.tables.schemas import Domain
from tasks.verifiers.scores import OWN, is_own

BuiltInVerifier = Literal["math", "code", "precise_if", "chat_reference", "chat_open"]
"""Name of a verifier that this project has; with `row_verifier` it decides the domain of a row."""
NamedVerifier = Literal[BuiltInVerifier, "function", "reward_model", "environment"]
"""Name of a source's verifier that is no import path. `function` and `reward_model` stand for what is under `rewards`
alone, `environment` for the reward that the source's environment returns."""
VERIFIERS: tuple[NamedVerifier, ...] = get_args(NamedVerifier)


def _checked(name: str, names: Sequence[str]) -> str:
    if name in names or is_own(name):
        return name
    accepted = ", ".join(names)
    raise ValueError(
        f"no verifier is called so{close_match(name, names)}; accepted: {accepted}, and the import path of one of your "
        "own, such as my_verifiers.chess"
    )


def _schema(names: Sequence[str]) -> WithJsonSchema:
    return WithJsonSchema({"anyOf": [{"enum": [*names], "type": "string"}, {"pattern": f"^{OWN}$", "type": "string"}]})


Verifier = Annotated[str, AfterValidator(partial(_checked, names=VERIFIERS)), _schema(VERIFIERS)]
"""Name of a source's verifier, or the import path of one of the user's own (`tasks.verifiers.custom`)."""
RewardVerifier = Annotated[
    str, AfterValidator(partial(_checked, names=get_args(BuiltInVerifier))), _schema(get_args(BuiltInVerifier))
]
"""Name of a verifier beside a source's, or the import path of one of the user's own."""

IN_REWARDS = ("function", "reward_model")
"""Verifiers of a source that has none beside its `rewards`, of which the first is of this kind."""

OF_ANY_DOMAIN = (*IN_REWARDS, "environment")
"""Verifiers that fit any domain."""

MODES_OF: dict[str, tuple[str, ...]] = {
    "math": ("sympy", "gsm8k", "exact"),
    "precise_if": ("strict", "loose", "both"),
    "chat_reference": ("grade", "pairwise"),
}

VERIFIERS_OF: dict[Domain, tuple[BuiltInVerifier, ...]] = {
    "math": ("math",),
    "code": ("code",),
    "precise_if": ("precise_if",),
    "chat": ("chat_reference", "chat_open"),
}

DOMAIN_OF: dict[BuiltInVerifier, Domain] = {name: domain for domain, names in VERIFIERS_OF.items() for name in names}

COLUMNS_OF: dict[str, tuple[str, ...]] = {
    "math": ("ground_truth", "ground_truth_pattern", "integer_answers"),
    "code": ("tests", "setup"),
    "precise_if": ("instruction_ids", "kwargs"),
    "chat_reference": ("ground_truth", "ground_truth_pattern"),
    "chat_open": (),
    "function": ("ground_truth", "ground_truth_pattern"),
    "reward_model": (),
    "environment": (),
}
"""The column settings that only some verifiers read; one of the user's own reads those of `function`."""

NO_COLUMNS = {"ground_truth_pattern", "integer_answers"}
"""The column settings that hold a pattern or a switch instead of the name of a column."""


def columns_of(verifier: str) -> tuple[str, ...]:
    """Return the column settings that a verifier reads, of those that only some read."""
    return COLUMNS_OF.get(verifier, COLUMNS_OF["function"])


class Columns(Config):
    """Maps the columns of a row to the parts of a prompt; the defaults are the columns that the generators give.

    A column is a name, or a path into one: `reward_model.ground_truth`, `choices.0`. Columns that hold JSON as text are
    read where a list or an object is wanted (`tasks.sourcing.values`).
    """

    prompt: str = "prompt"
    """Column of the prompt: text, or a list of messages `{role, content}`. Turns of the assistant at its end are left
    off; what messages hold beside role and content goes into the prompt's metadata."""
    system: str | None = None
    """Text of a system message (the text itself, not a column) that is put before every prompt; None: no message."""
    template: str | None = None
    """Text that replaces the last user message, with `{prompt}` in it replaced by that message and `{tests}`, for code,
    by the tests; None: the message stays as it is."""
    ground_truth: str = "ground_truth"
    """Column of the expected answer: text, a number, or for math also a list of texts of which one must match. For
    `verifier: function`, and a verifier of your own, any JSON value, which they get as `ground_truth`; null where the
    column is left at its default and the rows have none."""
    ground_truth_pattern: str | None = None
    """Regular expression that finds the answer inside the column `ground_truth`: its group if it has one, its last
    match if it has several (GSM8K: `#### (.+)`); None: the answer is all of the column."""
    integer_answers: bool = False
    """Ask for whole numbers, which cannot be misread, as DAPO does (arXiv:2503.14476, section 3.5): the prompt of a
    fraction asks for the sum of its numerator and denominator, and rows with other answers are set aside."""
    instruction_ids: str = "instruction_ids"
    """Column of the list of constraint ids (`tasks.verifiers.instructions.arguments`), for precise_if."""
    kwargs: str = "kwargs"
    """Column of the list of these constraints' arguments, one object for each constraint; nulls in them are dropped."""
    tests: str = "tests"
    """Column of the tests, for code, in one of the forms of `tasks.sourcing.code_tests`."""
    setup: str | None = None
    """Column of the code, or of a list of its lines, that runs before the assertions; None: no such code."""
    given: str | None = None
    """Column of code that runs before the response, which may use what it defines, as BigCodeBench's beginnings of
    programs and LeetCode's node classes; text or a list of lines. What `setup` defines only the tests see."""
    keep: list[str] = []  # noqa: RUF012 (pydantic copies defaults)
    """Columns whose values are kept in the prompt's metadata, under `columns`; `strata.by` of the mixture reads
    them."""

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
