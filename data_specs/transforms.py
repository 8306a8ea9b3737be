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


def english_first_turn(row: dict[str, Any]) -> dict[str, Any] | None:
    """Return WildChat's row up to its first answer; None for one that is not in English or is toxic."""
    if row.get("language") != "English" or row.get("toxic"):
        return None
    return row | {"conversation": row["conversation"][:1]}
