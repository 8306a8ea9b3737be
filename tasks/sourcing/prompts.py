"""Turns the rows of a source into the table of prompts.

Every row that is read becomes either a prompt or a row of the table `set_aside`, with its kind and reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa

from tasks.config.loading import SpecError
from tasks.sourcing.files import Malformed
from tasks.sourcing.ground_truths import ask_for_integer, build_environment, choose_verifier, drop_free_tests, graded
from tasks.sourcing.loaders import Row, open_rows
from tasks.sourcing.messages import Chat, build_chat
from tasks.sourcing.reading import Reading
from tasks.sourcing.spec import SourceSpec
from tasks.sourcing.values import UnusableError, get_value
from tasks.tables.parquet import build_table
from tasks.tables.schemas import (
    DUPLICATE_OF,
    PROMPTS,
    SET_ASIDE,
    canonical_json,
    prompt_id_of_texts,
    set_aside_row,
)

BATCH = 4096
"""Number of rows in a part. They are Python objects until they are converted to an Arrow table."""

DUPLICATE = "duplicate"
"""The category of rows that repeat an earlier row of their source."""


@dataclass(frozen=True)
class SourcedPrompts:
    """The result of reading one source.

    Attributes:
        prompts: table of `PROMPTS`, in the order of the source.
        set_aside: table of `SET_ASIDE`, in the order of the source.
        counts: `read` rows, of these `usable` became prompts and `set_aside` were dropped, including `duplicates`;
            `answers_left_off` counts the prompts that were followed by an assistant message; `tests_not_tried`, if any,
            counts the prompts whose tests might pass without a response, which only a sandbox can check.
        reasons: the number of rows dropped per category of reasons, the most common first.
        read: the counts of what was read (`tasks.sourcing.reading.Reading.facts`).
    """

    prompts: pa.Table
    set_aside: pa.Table
    counts: dict[str, int]
    reasons: dict[str, int]
    read: dict[str, Any]


class Prompt(NamedTuple):
    """A row that became a prompt.

    Attributes:
        columns: the row of `PROMPTS`.
        answered: True if the prompt was followed by an assistant message, which was removed.
        tried: False if there was no sandbox to check that its tests need a response.
    """

    columns: dict[str, Any]
    answered: bool
    tried: bool


def build_prompts(source: SourceSpec, max_prompt_chars: int) -> SourcedPrompts:
    """Read `source` as `PromptReader` does, and return whole tables."""
    reader = PromptReader(source, max_prompt_chars)
    prompts, set_aside = zip(*reader.parts(), strict=True)
    return SourcedPrompts(
        pa.concat_tables(prompts).combine_chunks(),
        pa.concat_tables(set_aside).combine_chunks(),
        reader.counts,
        reader.reasons,
        reader.read,
    )


class PromptReader:
    """Reads a source and maps its rows to prompts, part by part. Equal inputs give equal rows.

    Of a prompt that was read, only 16 bytes of its id and its row number stay in memory.
    """

    def __init__(self, source: SourceSpec, max_prompt_chars: int) -> None:
        """Read nothing yet: `parts` does.

        Args:
            source: the spec of the source.
            max_prompt_chars: maximum number of characters of all messages of a prompt; a row with more is dropped.
        """
        self._source, self._max_prompt_chars = source, max_prompt_chars
        self._first_row_of: dict[bytes, int] = {}
        self._reasons: Counter[str] = Counter()
        self._answered = self._untried = 0
        self._reading = Reading()

    def parts(self) -> Iterator[tuple[pa.Table, pa.Table]]:
        """Yield tables of `PROMPTS` and of `SET_ASIDE`, in the order of the source. There is at least one part.

        Raises:
            SpecError: the source cannot be opened, or none of its rows is usable.
        """
        prompts: list[dict[str, Any]] = []
        set_aside: list[dict[str, Any]] = []
        for row in open_rows(self._source, self._reading):
            try:
                made = self._make_prompt(row)
            except UnusableError as error:
                set_aside.append(self._set_aside(row.index, error))
                self._reasons[error.category] += 1
            else:
                prompts.append(made.columns)
                self._answered += made.answered
                self._untried += not made.tried
            if len(prompts) + len(set_aside) == BATCH:
                yield self._tables(prompts, set_aside)
                prompts, set_aside = [], []
        if not self._first_row_of:
            raise SpecError(_describe_reasons(self._source, self._reasons))
        yield self._tables(prompts, set_aside)

    @property
    def counts(self) -> dict[str, int]:
        """The counts of the rows that were read (`SourcedPrompts`)."""
        return {
            "read": len(self._first_row_of) + self._reasons.total(),
            "usable": len(self._first_row_of),
            "set_aside": self._reasons.total(),
            "duplicates": self._reasons[DUPLICATE],
            "answers_left_off": self._answered,
            **({"tests_not_tried": self._untried} if self._untried else {}),
        }

    @property
    def reasons(self) -> dict[str, int]:
        """The number of rows dropped per category of reasons, the most common first."""
        return dict(self._reasons.most_common())

    @property
    def read(self) -> dict[str, Any]:
        """The counts of what was read (`tasks.sourcing.reading.Reading.facts`)."""
        return self._reading.facts(self._source.seed)

    def _make_prompt(self, row: Row) -> Prompt:
        """Return the prompt of a row.

        Raises:
            UnusableError: the row cannot become a prompt, or repeats the prompt of an earlier one.
        """
        if isinstance(row.content, Malformed):
            raise UnusableError(row.content.reason, row.content.value, row.content.category, kind="malformed")
        made = _make_prompt(row.index, row.content, self._source, self._max_prompt_chars)
        identity, question = made.columns["prompt_id"], made.columns["messages"][-1]["content"]
        first = self._first_row_of.setdefault(bytes.fromhex(identity), row.index)
        if first != row.index:
            reason = f"{DUPLICATE_OF}{first}"
            raise UnusableError(reason, question, DUPLICATE, kind="duplicate", prompt_id=identity)
        return made

    def _set_aside(self, row: int, error: UnusableError) -> dict[str, Any]:
        first = {"prompt_id": error.prompt_id, "clashed_with": error.prompt_id}
        return set_aside_row("sourcing", error.kind, self._source.name, row, error.reason, error.value, **first)

    def _tables(self, prompts: list[dict[str, Any]], set_aside: list[dict[str, Any]]) -> tuple[pa.Table, pa.Table]:
        name = self._source.name
        return build_table(prompts, PROMPTS, name), build_table(set_aside, SET_ASIDE, name)


def _make_prompt(index: int, row: Mapping[str, Any], source: SourceSpec, max_prompt_chars: int) -> Prompt:
    columns = source.columns
    own = choose_verifier(row, source)
    verifier, truth = graded(row, source)
    by_tests = None if own != "code" else truth["rewards"][0]["ground_truth"] if source.rewards else truth
    tests = "\n".join(map(str, by_tests.get("tests") or by_tests["cases"])) if by_tests else ""
    chat = build_chat(row, columns, tests, ask_for_integer(row, own, columns))
    _check_length(chat, max_prompt_chars)
    metadata = _collect_metadata(row, chat, columns.keep)
    shown = by_tests is None or drop_free_tests(by_tests)
    try:
        truth_text, metadata_text = canonical_json(truth), canonical_json(metadata) if metadata else "{}"
        metadata_text.encode()  # the other texts are encoded for the id
        environment = build_environment(row, source)
        identity = prompt_id_of_texts(chat.messages, verifier, truth_text, environment)
    except UnicodeEncodeError as error:
        raise UnusableError("text that is not valid Unicode", error.object) from None
    except (TypeError, ValueError) as error:
        raise _find_json_error(row, source, error) from None
    return Prompt(
        {
            "prompt_id": identity,
            "domain": source.get_domain(own),
            "source": source.name,
            "row": index,
            "messages": chat.messages,
            "verifier": verifier,
            "ground_truth": truth_text,
            "metadata": metadata_text,
            "environment": environment,
        },
        answered=chat.answers > 0,
        tried=shown,
    )


def _find_json_error(row: Mapping[str, Any], source: SourceSpec, error: Exception) -> UnusableError:
    """Return the error of a row whose column contains a value that does not exist in JSON, such as NaN or a date."""
    # An answer may be a decimal. The other columns are passed on as they are.
    for path in sorted(source.paths(), key=lambda path: path == source.columns.ground_truth):
        value = _try_get_value(row, path)
        try:
            canonical_json(value)
        except (TypeError, ValueError) as reason:
            category = f"column {path!r} is not a JSON value"
            return UnusableError(f"{category}: {reason}", str(value), category)
    return UnusableError(f"a value that JSON does not have: {error}", None, "a value that JSON does not have")


def _check_length(chat: Chat, max_prompt_chars: int) -> None:
    chars = sum([len(message["content"]) for message in chat.messages])
    if chars > max_prompt_chars:
        raise UnusableError(
            f"prompt of {chars} characters, more than max_prompt_chars {max_prompt_chars}",
            chat.messages[-1]["content"],
            "prompt longer than max_prompt_chars",
            kind="length",
        )


def _collect_metadata(row: Mapping[str, Any], chat: Chat, columns: list[str]) -> dict[str, Any]:
    """Return the columns that the user keeps, and the fields of the messages other than role and content."""
    metadata: dict[str, Any] = {}
    if columns:
        metadata["columns"] = {name: _try_get_value(row, name) for name in columns}
    if any(chat.extras):
        metadata["messages"] = chat.extras
    if chat.answers:
        metadata["answers_left_off"] = chat.answers
    return metadata


def _try_get_value(row: Mapping[str, Any], path: str) -> Any:
    try:
        return get_value(row, path)
    except KeyError:
        return None


def _describe_reasons(source: SourceSpec, reasons: Counter[str]) -> str:
    if not reasons:
        return f"source {source.name!r}: it has no rows"
    common = "; ".join(f"{count} times: {reason}" for reason, count in reasons.most_common(3))
    return f"source {source.name!r}: none of its {reasons.total()} rows is usable: {common}"
