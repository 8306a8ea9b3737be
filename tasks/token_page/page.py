"""Renders an HTML page with responses token by token, coloured by a difference of log-probabilities or by advantage.

The page is self-contained (inline style, no script, no requests). It has at most `MOST_RESPONSES` responses and
`MOST_TOKENS` tokens, and states what it leaves out. The values of a token appear at the bottom of the window if the
pointer or the keyboard's focus is on the token. Texts of tokens are untrusted, and the template escapes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from numpy.typing import NDArray

from tasks.excerpts.texts import compute_limit
from tasks.token_page.decoding import TokenTexts
from tasks.token_page.responses import StepRead, TokenRow

MOST_RESPONSES = 64
"""Maximum number of responses on a page."""
MOST_TOKENS = 30_000
"""Maximum number of tokens on a page. Each takes about 130 bytes. Longer responses are cut in the middle."""
LEVELS = 6
"""Number of shades of each of the two colours."""
FULL = 99.0
"""Percentile of the absolute values that has the full colour."""


@dataclass(frozen=True)
class ShownToken:
    """A token on the page.

    Attributes:
        text: its text.
        style: class of its colour: `p1` to `p6`, `n1` to `n6`, `m` outside the mask, or "" without colour.
        values: its values in words.
    """

    text: str
    style: str
    values: str


@dataclass(frozen=True)
class ShownTokens:
    """A response on the page.

    Attributes:
        row: its row.
        head: its tokens, or the first ones if it is cut.
        tail: the last ones if it is cut.
        left_out: number of tokens between the two.
    """

    row: TokenRow
    head: list[ShownToken]
    tail: list[ShownToken]
    left_out: int

    @property
    def mean(self) -> float | None:
        """Mean absolute difference over the tokens in the loss, nats, or None if there are none."""
        return float(np.abs(self.row.differences).sum() / self.row.mask.sum()) if self.row.mask.any() else None

    @property
    def largest(self) -> float:
        """Largest absolute difference, nats."""
        return float(np.abs(self.row.differences).max(initial=0))


def render(read: StepRead, texts: TokenTexts, *, by_advantage: bool = False) -> str:
    """Return the page as HTML.

    Args:
        read: the responses of a step, at least one.
        texts: the texts of tokens.
        by_advantage: whether colours show advantages instead of differences.
    """
    chosen = choose(read.rows)
    limit = compute_limit((len(row.ids) for row in chosen), MOST_TOKENS)
    full = _find_full_value(chosen, by_advantage=by_advantage)
    shown = [_make_response(row, texts, limit, full, by_advantage=by_advantage) for row in chosen]
    in_loss = sum(int(row.mask.sum()) for row in read.rows)
    total = sum(float(np.abs(row.differences, dtype=np.float64).sum()) for row in read.rows)
    return _load_template().render(
        read=read,
        by_advantage=by_advantage,
        groups=[list(rows) for _, rows in groupby(shown, key=lambda one: one.row.about["group"])],
        kept_groups=len({row.about["group"] for row in read.rows}),
        mean=total / in_loss if in_loss else None,
        in_loss=in_loss,
        full=full,
        levels=range(1, LEVELS + 1),
        left_out=len(read.rows) - len(chosen),
        tokens_left_out=sum(one.left_out for one in shown),
        cut=sum(one.left_out > 0 for one in shown),
    )


def choose(rows: Sequence[TokenRow]) -> list[TokenRow]:
    """Return at most `MOST_RESPONSES` responses: whole groups, those with the largest difference first.

    A group that does not fit is cut.
    """
    groups = [list(of_one) for _, of_one in groupby(rows, key=lambda row: row.about["group"])]
    largest = [max(float(np.abs(row.differences).max(initial=0)) for row in group) for group in groups]
    order = sorted(range(len(groups)), key=lambda index: -largest[index])
    return [row for index in order for row in groups[index]][:MOST_RESPONSES]


def _find_full_value(rows: Sequence[TokenRow], *, by_advantage: bool) -> float:
    """Return the absolute value that has the full colour, or 0 if all values are 0."""
    if by_advantage:
        return max((float(np.abs(row.advantages).max(initial=0)) for row in rows), default=0.0)
    values = [np.abs(row.differences[row.mask]) for row in rows]
    together = np.concatenate(values) if values else np.zeros(0)
    return float(np.percentile(together, FULL)) if len(together) else 0.0


def _make_response(row: TokenRow, texts: TokenTexts, limit: int, full: float, *, by_advantage: bool) -> ShownTokens:
    count = len(row.ids)
    tail = limit // 2 if count > limit else 0
    head = limit - tail if count > limit else count
    values = row.advantages if by_advantage else row.differences
    first, last = (
        _make_tokens(row, texts, values, full, part) for part in (slice(0, head), slice(count - tail, count))
    )
    return ShownTokens(row, first, last, count - head - tail)


def _make_tokens(row: TokenRow, texts: TokenTexts, values: NDArray[Any], full: float, part: slice) -> list[ShownToken]:
    columns = (row.ids, row.engine, row.learner, row.mask, values, row.advantages)
    ids, engine, learner, mask, shown, advantages = (column[part].tolist() for column in columns)
    return [
        ShownToken(
            text,
            _choose_style(value, full) if in_loss else "m",
            _format_values(number, one, other, advantage, in_loss=in_loss),
        )
        for text, number, one, other, in_loss, value, advantage in zip(
            texts(ids), ids, engine, learner, mask, shown, advantages, strict=True
        )
    ]


def _choose_style(value: float, full: float) -> str:
    """Return the class of a value: the sign, and a level from 1 to `LEVELS`, or "" for values near 0."""
    level = min(LEVELS, round(LEVELS * abs(value) / full)) if full else 0
    return f"{'p' if value > 0 else 'n'}{level}" if level else ""


def _format_values(number: int, engine: float, learner: float, advantage: float, *, in_loss: bool) -> str:
    if not in_loss:
        return f"id {number}, not in the loss" + (f", engine {engine:.4f}" if engine else "")
    return (
        f"id {number}, learner {learner:.4f}, engine {engine:.4f}, difference {learner - engine:+.4f} nats, "
        f"advantage {advantage:+.3g}"
    )


@cache
def _load_template() -> Any:
    jinja = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    jinja.filters["count"] = "{:,}".format
    jinja.filters["nats"] = "{:.2g}".format
    return jinja.get_template("page.html.j2")
