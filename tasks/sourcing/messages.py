"""Parses the messages of a row's prompt."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from tasks.sourcing.columns import Columns
from tasks.sourcing.values import UnusableError, parse_structure, require_value
from tasks.tables.schemas import Message

ROLES = ("system", "user", "assistant")
"""The roles that a message may have."""


class Chat(NamedTuple):
    """The messages of a prompt.

    Attributes:
        messages: the messages. The last one is a user message.
        extras: the fields of each message other than role and content.
        answers: the number of assistant messages after the last user message, which are removed.
    """

    messages: list[Message]
    extras: list[dict[str, Any]]
    answers: int = 0


def build_chat(row: Mapping[str, Any], columns: Columns, tests: str = "", asked: str = "") -> Chat:
    """Return the prompt of a row as `columns` map it.

    Args:
        row: the values of the row by column.
        columns: the column of the prompt, the template and the system message.
        tests: the text that replaces `{tests}` in the template.
        asked: text that is appended to the question.

    Raises:
        UnusableError: the row has no prompt that a policy could answer.
    """
    value = require_value(row, columns.prompt)
    read = _try_parse(value)
    # A prompt that happens to be JSON is still text.
    is_chat = isinstance(read, list) and bool(read) and all(isinstance(turn, dict) and "role" in turn for turn in read)
    chat = _parse_turns(read if is_chat else value)
    messages = chat.messages
    if not messages[-1]["content"].strip():
        raise UnusableError("the prompt is empty", value)
    if asked:
        messages[-1]["content"] += f"\n\n{asked}"
    if columns.template is not None:
        pieces = {"{prompt}": messages[-1]["content"], "{tests}": tests}
        messages[-1]["content"] = re.sub(r"\{prompt\}|\{tests\}", lambda match: pieces[match[0]], columns.template)
    if columns.system is not None:
        if messages[0]["role"] == "system":
            raise UnusableError("the prompt already has a system message, and there is columns.system", value)
        messages.insert(0, {"role": "system", "content": columns.system})
        chat.extras.insert(0, {})
    return chat


def _try_parse(value: Any) -> Any:
    try:
        return parse_structure(value)
    except UnusableError:
        if re.search(r"""['"]role['"]""", value):
            raise
        return value


def _parse_turns(value: Any) -> Chat:
    """Parse text or a list of messages, and check roles, content, and that the last message kept is the user's."""
    if isinstance(value, str):
        return Chat([{"role": "user", "content": value}], [{}])
    if not isinstance(value, list) or not value:
        raise UnusableError("the prompt is neither text nor a list of messages", value)
    for turn in value:
        if not isinstance(turn, dict) or turn.get("role") not in ROLES or not isinstance(turn.get("content"), str):
            raise UnusableError(f"a message needs a role ({', '.join(ROLES)}) and text as content", turn)
    end = len(value)
    while end and value[end - 1]["role"] == "assistant":
        end -= 1
    if not end or value[end - 1]["role"] != "user":
        raise UnusableError("the last message is not the user's", value)
    return Chat(
        [{"role": turn["role"], "content": turn["content"]} for turn in value[:end]],
        [_collect_extra(turn) for turn in value[:end]],
        len(value) - end,
    )


def _collect_extra(turn: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a message other than role and content, as JSON values. Times and the like become text."""
    beside = {key: item for key, item in turn.items() if key not in ("role", "content") and item not in (None, "", [])}
    extra: dict[str, Any] = json.loads(json.dumps(beside, default=str))
    return extra
