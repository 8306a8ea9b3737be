"""Transforms of rows that the data files here name, and patterns for your own (`transform:` of a source)."""

from __future__ import annotations

import re
from typing import Any

_TURN = re.compile(r"^(system|user|assistant): ", re.MULTILINE | re.IGNORECASE)


def turns(row: dict[str, Any]) -> dict[str, Any]:
    """Return the row with its `prompt`, the text of a chat with a role before each turn (`user: ...`), as messages.

    The Dolci mixtures hold prompts in this form, as open-instruct gave them to the policy. Text that begins with no
    role is the user's.
    """
    text = row["prompt"]
    starts = list(_TURN.finditer(text))
    if not starts or starts[0].start() > 0:
        return row
    ends = [*(start.start() for start in starts[1:]), len(text)]
    messages = [
        {"role": start[1].lower(), "content": text[start.end() : end].strip()}
        for start, end in zip(starts, ends, strict=True)
    ]
    return row | {"prompt": messages}


def first_turn(row: dict[str, Any]) -> dict[str, Any]:
    """Return WildChat's row up to its first answer."""
    return row | {"conversation": row["conversation"][:1]}


def with_task_type(row: dict[str, Any]) -> dict[str, Any]:
    """Return SYNTHETIC-2's row with its kind of task as `task_type`: what its `problem_id` has before its number."""
    kind, _, number = (row.get("problem_id") or "").rpartition("_")
    return row | {"task_type": kind if number.isdigit() else ""}
