"""Shortens texts in the middle, so that pages with many texts stay small, and makes texts safe for terminals."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from markupsafe import escape

MOST_CHARS = 8_000
"""Maximum number of characters of a text. Of longer texts, half of them are from each end."""


@dataclass(frozen=True)
class Excerpt:
    """A text, or the beginning and end of a long text.

    Attributes:
        head: the text, or its beginning.
        tail: its end. Empty if nothing is left out.
        left_out: number of characters that are left out between the two.
    """

    head: str
    tail: str = ""
    left_out: int = 0

    @classmethod
    def from_text(cls, text: str, most: int = MOST_CHARS) -> Excerpt:
        """Return `text`, or `most` characters from both ends together if it is longer."""
        if len(text) <= most:
            return cls(text)
        end = most // 2
        return cls(text[: most - end], text[len(text) - end :], len(text) - most)

    @property
    def line(self) -> str:
        """The text as one line for a terminal, with `[…]` for the part that is left out."""
        ends = f"{self.head} […] {self.tail}" if self.left_out else self.head
        return format_line(ends)

    @property
    def size(self) -> int:
        """Number of bytes in a page, with HTML escapes."""
        return count_bytes(self.head) + count_bytes(self.tail)

    def within(self, limit: int) -> Excerpt:
        """Return the excerpt cut in the middle, so that its size is at most `limit` bytes."""
        excerpt, most = self, limit
        while excerpt.size > limit:
            excerpt = self._ends(most)
            most = most * limit // max(excerpt.size, 1)
        return excerpt

    def _ends(self, most: int) -> Excerpt:
        """Return at most `most` characters from both ends of the excerpt."""
        if not self.left_out:
            return Excerpt.from_text(self.head, most)
        held = len(self.head) + len(self.tail)
        most = min(most, held)
        end = most // 2
        return Excerpt(self.head[: most - end], self.tail[len(self.tail) - end :], self.left_out + held - most)


def count_bytes(text: str) -> int:
    """Return the number of bytes of a text in a page, with HTML escapes."""
    return len(escape(text).encode())


def make_printable(text: str) -> str:
    """Return a text without control characters for terminals. Line ends are kept."""
    return "".join(c for c in text if c == "\n" or c.isprintable())


def format_line(text: str) -> str:
    """Return a text as one line for a terminal, with single spaces instead of runs of white space."""
    return make_printable(" ".join(text.split()))


def shorten(text: str, limit: int) -> str:
    """Truncate the text to `limit` characters, and append the number of characters omitted."""
    return text if len(text) <= limit else f"{text[:limit]} … ({len(text) - limit:,} more characters)"


def first_chars(text: str, limit: int) -> str:
    """Return the first `limit` characters of a text as one line, with `[…]` after them if there are more."""
    line = " ".join(text.split())
    return line if len(line) <= limit else f"{line[:limit]} […]"


def compute_limit(sizes: Iterable[int], total: int) -> int:
    """Return the largest limit such that texts of these sizes, each cut to the limit, have at most `total` bytes."""
    ordered = sorted(sizes)
    rest = max(total, 0)
    for position, one in enumerate(ordered):
        share = rest // (len(ordered) - position)
        if one > share:
            return share
        rest -= one
    return ordered[-1] if ordered else 0
