"""Defines the pydantic models of `columns:`, which map the columns of a row to the parts of a prompt."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Literal, get_args

from pydantic import AfterValidator, WithJsonSchema, field_validator

from tasks.config.loading import Config, close_match
from tasks.tables.schemas import Domain
from tasks.verifiers.scores import OWN, is_own

BuiltInVerifier = Literal["math", "code", "precise_if", "chat_reference", "chat_open"]
"""Name of a built-in verifier. With `row_verifier` it determines the domain of a row."""
NamedVerifier = Literal[BuiltInVerifier, "function", "reward_model", "environment"]
"""Name of a source's verifier that is not an import path. With `function` and `reward_model` only the `rewards` score a
response, with `environment` the reward that the source's environment returns."""
VERIFIERS: tuple[NamedVerifier, ...] = get_args(NamedVerifier)


def _check_name(name: str, names: Sequence[str]) -> str:
    if name in names or is_own(name):
        return name
    accepted = ", ".join(names)
    raise ValueError(
        f"there is no such verifier{close_match(name, names)}; accepted: {accepted}, and the import path of a custom "
        "one, such as my_verifiers.chess"
    )


def _make_schema(names: Sequence[str]) -> WithJsonSchema:
    return WithJsonSchema({"anyOf": [{"enum": [*names], "type": "string"}, {"pattern": f"^{OWN}$", "type": "string"}]})


Verifier = Annotated[str, AfterValidator(partial(_check_name, names=VERIFIERS)), _make_schema(VERIFIERS)]
"""Name of a source's verifier, or the import path of a custom verifier (`tasks.verifiers.custom`)."""
RewardVerifier = Annotated[
    str, AfterValidator(partial(_check_name, names=get_args(BuiltInVerifier))), _make_schema(get_args(BuiltInVerifier))
]
"""Name of an additional verifier of a source, or the import path of a custom one."""

IN_REWARDS = ("function", "reward_model")
"""Verifiers of a source that is scored by its `rewards` only. The first of these is of this kind."""

OF_ANY_DOMAIN = (*IN_REWARDS, "environment")
"""Verifiers that can be used with any domain."""

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
"""The column settings that only some verifiers read. A custom verifier reads the same ones as `function`."""

NO_COLUMNS = {"ground_truth_pattern", "integer_answers"}
"""The column settings whose value is a pattern or a switch instead of the name of a column."""


def list_columns(verifier: str) -> tuple[str, ...]:
    """Return the column settings that a verifier reads, out of `COLUMNS_OF`."""
    return COLUMNS_OF.get(verifier, COLUMNS_OF["function"])


class Columns(Config):
    """Maps the columns of a row to the parts of a prompt. The defaults are the columns that the generators produce.

    A column is a name or a path into a column, such as `reward_model.ground_truth` or `choices.0`. Text columns that
    contain JSON are parsed when a list or an object is expected (`tasks.sourcing.values`).
    """

    prompt: str = "prompt"
    """Column of the prompt: text, or a list of messages `{role, content}`. Assistant messages at the end are removed.
    Fields of a message other than role and content are stored in the prompt's metadata."""
    system: str | None = None
    """Optional. Text of a system message (the text itself, not a column) that is added at the start of every prompt. If
    null, no message is added."""
    template: str | None = None
    """Optional. Text that replaces the last user message; `{prompt}` in it is replaced by that message and `{tests}`,
    for code, by the tests. If null, the message is used as it is."""
    ground_truth: str = "ground_truth"
    """Column of the expected answer: text, a number, or for math also a list of texts, any of which may match. For
    `verifier: function` and for your own verifier, it may be any JSON value, which they get as `ground_truth`. They get
    null if this option is not set and the rows have no such column."""
    ground_truth_pattern: str | None = None
    """Optional. Regular expression that extracts the answer from the column `ground_truth`: its group if it has one,
    its last match if there are several (GSM8K: `#### (.+)`). If null, the answer is the whole value."""
    integer_answers: bool = False
    """Use only whole-number answers, which cannot be misread, as DAPO does (arXiv:2503.14476, section 3.5). If the
    answer is a fraction, the prompt asks for the sum of its numerator and denominator. Rows with other answers are
    dropped."""
    instruction_ids: str = "instruction_ids"
    """Column of the list of constraint ids (`tasks.verifiers.instructions.arguments`), for precise_if."""
    kwargs: str = "kwargs"
    """Column of the list of the constraints' arguments, one object per constraint. Nulls in the objects are dropped."""
    tests: str = "tests"
    """Column of the tests, for code, in one of the formats of `tasks.sourcing.code_tests`."""
    setup: str | None = None
    """Optional. Column of code, or of a list of its lines, that runs before the assertions. If null, there is none."""
    given: str | None = None
    """Optional. Column of code that runs before the response, as text or a list of lines. The response may use what it
    defines, such as BigCodeBench's program stubs and LeetCode's node classes. What `setup` defines is only visible to
    the tests."""
    keep: list[str] = []  # noqa: RUF012 (pydantic copies defaults)
    """Columns whose values are kept in the prompt's metadata, under `columns`. `strata.by` of the mixture reads
    them."""

    @field_validator("template")
    @classmethod
    def _check_template(cls, template: str | None) -> str | None:
        if template is not None and "{prompt}" not in template:
            raise ValueError("must contain {prompt}")
        return template

    @field_validator("ground_truth_pattern")
    @classmethod
    def _check_pattern(cls, pattern: str | None) -> str | None:
        if pattern is not None:
            try:
                groups = re.compile(pattern).groups
            except re.error as error:
                raise ValueError(f"not a regular expression: {error}") from None
            if groups > 1:
                raise ValueError(f"has {groups} groups; at most one may contain the answer")
        return pattern
