"""Converts the turns of an episode to table rows: the role and content of each turn, and its tokens."""

from __future__ import annotations

from typing import Any

from tasks.generation.interface import Completion
from tasks.tables.parquet import storable


def make_turn_rows(completion: Completion) -> list[dict[str, Any]]:
    """Return the turns of an episode after its prompt as rows of `EPISODE_TURNS`. A single response has no rows."""
    rows: list[dict[str, Any]] = []
    begins = 0
    for turn in completion.turns:
        anew = turn.context is not None
        between = (turn.context if turn.context is not None else completion.token_ids[begins : turn.start]).tolist()
        inserted = [_make_row(message["role"], message["content"], anew=anew) for message in turn.inserted]
        if inserted:  # tokens that the template adds around several messages cannot be told apart
            inserted[-1]["token_ids"] = between
        rows += inserted
        rows.append(
            _make_row("assistant", turn.text, completion.token_ids[turn.start : turn.end].tolist(), sampled=True)
        )
        begins = turn.end
    return rows


def _make_row(
    role: str, content: str, token_ids: list[int] | None = None, *, sampled: bool = False, anew: bool = False
) -> dict[str, Any]:
    return {
        "role": role,
        "content": storable(content),
        "sampled": sampled,
        "anew": anew,
        "token_ids": token_ids or [],
    }
