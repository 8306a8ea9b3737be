"""The turns of episodes in tables: who said what, and the tokens of the policy's turns."""

from __future__ import annotations

from typing import Any

from tasks.generation.interface import Completion
from tasks.tables.parquet import storable


def turns_of(completion: Completion) -> list[dict[str, Any]]:
    """Return the turns of an episode after its prompt as rows of `EPISODE_TURNS`; none for a single response."""
    rows: list[dict[str, Any]] = []
    begins = 0
    for turn in completion.turns:
        anew = turn.context is not None
        between = (turn.context if turn.context is not None else completion.token_ids[begins : turn.start]).tolist()
        inserted = [_row(message["role"], message["content"], anew=anew) for message in turn.inserted]
        if inserted:  # the template's tokens around several messages are not told apart
            inserted[-1]["token_ids"] = between
        rows += inserted
        rows.append(_row("assistant", turn.text, completion.token_ids[turn.start : turn.end].tolist(), sampled=True))
        begins = turn.end
    return rows


def _row(
    role: str, content: str, token_ids: list[int] | None = None, *, sampled: bool = False, anew: bool = False
) -> dict[str, Any]:
    return {
        "role": role,
        "content": storable(content),
        "sampled": sampled,
        "anew": anew,
        "token_ids": token_ids or [],
    }
