"""Somebody who was not there and has the report alone: what its text says, without its code."""

import re
from html.parser import HTMLParser

BLOCKS = {"p", "div", "li", "tr", "h1", "h2", "h3", "dt", "dd", "section", "summary", "pre", "details", "header", "nav"}
CELLS = {"td", "th", "small"}
"""What conflicts with the text before it."""
SILENT = {"style", "svg", "script", "head"}


class Reader(HTMLParser):
    """The page as lines of text; the cells of a row are separated by tabs, and preformatted texts are kept whole.

    Attributes:
        lines: in the order of the page.
        texts: preformatted texts by what stands above them.
    """

    def __init__(self, page: str) -> None:
        super().__init__()
        self._silent = 0
        self._in_text = False
        self._written = [""]
        self.texts: dict[str, str] = {}
        self.feed(page)
        self.lines = [line.strip() for line in "".join(self._written).splitlines() if line.strip()]

    def handle_starttag(self, tag, attrs):
        self._silent += tag in SILENT
        if tag == "pre":
            self._above, self._in_text = self._last(), True
            self.texts[self._above] = ""
        if not self._silent and tag in BLOCKS | CELLS:
            self._written.append("\n" if tag in BLOCKS else "\t")

    def handle_endtag(self, tag):
        self._silent -= tag in SILENT
        self._in_text = self._in_text and tag != "pre"
        if not self._silent and tag in BLOCKS:
            self._written.append("\n")

    def handle_data(self, data):
        if self._in_text:
            self.texts[self._above] += data
        if not self._silent:
            self._written.append(data if self._in_text else re.sub(r"\s+", " ", data))

    def _last(self):
        return [line for line in "".join(self._written).splitlines() if line.strip()][-1].strip()

    def after(self, words: str) -> list[str]:
        """The line below the one that is `words`, its small print apart."""
        return _cells(self.lines[self.lines.index(words) + 1])

    def row(self, *cells: str) -> list[str]:
        """The only row of a table that begins with `cells`."""
        rows = [_cells(line) for line in self.lines if "\t" in line]
        [found] = [row for row in rows if row[: len(cells)] == list(cells)]
        return found

    def text(self, name: str) -> str:
        """The preformatted text below what begins with `name`."""
        [found] = [text for above, text in self.texts.items() if above.startswith(name)]
        return found

    def stages(self) -> dict[str, bool]:
        """By stage, whether it came from the cache."""
        times = [i for i, line in enumerate(self.lines) if re.fullmatch(r".*, (ran|from the cache)", line)]
        return {self.lines[i - 1]: self.lines[i].endswith("from the cache") for i in times}


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.split("\t")]
