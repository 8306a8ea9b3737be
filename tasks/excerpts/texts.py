"""Shortens texts in the middle, so that a page of many of them stays small, and makes them harmless on a terminal."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from markupsafe import escape

MOST_CHARS = 8_000
"""Characters of the longest text that is held whole; of a longer one half of them from either end."""


@dataclass(frozen=True)
class Excerpt:
    """A text, or both ends of a longer one.

    Attributes:
        head: the text, or its beginning.
        tail: its end; empty where nothing is left out.
        left_out: number of characters between the two.
    """

    head: str
    tail: str = ""
    left_out: int = 0

    @classmethod
    def of(cls, text: str, most: int = MOST_CHARS) -> Excerpt:
        """Return `text`, or of a longer one than `most` characters as many from both ends together."""
        if len(text) <= most:
            return cls(text)
        end = most // 2
        return cls(text[: most - end], text[len(text) - end :], len(text) - most)

    @property
    def line(self) -> str:
        """The text as one line for a terminal; `[…]` stands for what is left out."""
        ends = f"{self.head} […] {self.tail}" if self.left_out else self.head
        return line_of(ends)

    @property
    def size(self) -> int:
        """Bytes of it in a page, where what HTML reserves is escaped."""
        return size(self.head) + size(self.tail)

    def within(self, limit: int) -> Excerpt:
        """Return it with so much of its middle left out that its size is at most `limit` bytes."""
        excerpt, most = self, limit
        while excerpt.size > limit:
            excerpt = self._ends(most)
            most = most * limit // max(excerpt.size, 1)
        return excerpt

    def _ends(self, most: int) -> Excerpt:
        """Return at most `most` characters of it, from both ends."""
        if not self.left_out:
            return Excerpt.of(self.head, most)
        held = len(self.head) + len(self.tail)
        most = min(most, held)
        end = most // 2
        return Excerpt(self.head[: most - end], self.tail[len(self.tail) - end :], self.left_out + held - most)


def size(text: str) -> int:
    """Return the bytes of a text in a page."""
    return len(escape(text).encode())


def printable(text: str) -> str:
    """Return a text without the characters that would move a terminal's cursor, or command it; line ends stay."""
    return "".join(c for c in text if c == "\n" or c.isprintable())


def line_of(text: str) -> str:
    """Return a text as one line for a terminal: runs of white space are a blank."""
    return printable(" ".join(text.split()))


def limit_of(sizes: Iterable[int], total: int) -> int:
    """Return the largest limit under which texts of these sizes take at most `total` bytes together."""
    ordered = sorted(sizes)
    rest = max(total, 0)
    for position, one in enumerate(ordered):
        share = rest // (len(ordered) - position)
        if one > share:
            return share
        rest -= one
    return ordered[-1] if ordered else 0
