"""Counts phrases of our own dialect in the prose of the code: what the field says otherwise, and that may only fall.

python -m tests.words            prints the rates, beside those of the field
python -m tests.words --write    stores the counts, after some have fallen
"""

from __future__ import annotations

import ast
import io
import json
import re
import sys
import tokenize
from collections.abc import Iterator
from functools import cache

from tests.paths import ROOT

COUNTS = ROOT / "tests/word_counts.json"
"""The file of the counts, by phrase."""
FOLDERS = ("tasks", "workflows", "images")
PHRASES = {
    "; None:": r";\s+(?:None|empty|0|True|False|\{\}|\"\"):",
    "where": r"\bwhere\b",
    "of which": r"\b(?:of|by|with|from|in|to) which\b",
    "those of": r"\bthose (?:of|that|in|which)\b",
    "one that": r"\bones? that\b",
    "is no": r"\b(?:is|are) no \w+",
    "beside": r"\bbeside\b",
    "anew": r"\banew\b",
    "figures": r"\bfigures?\b",
    "holds": r"\bholds?\b",
    "judge": r"\bjudg\w+",
    "ask": r"\bask(?:s|ed|ing)?\b",
    "a user's own": r"\bof (?:a|the) user's own\b|\bof (?:its|their|our) own\b",
    "by itself": r"\bby (?:itself|themselves)\b",
    "for people": r"\bfor people\b|\ba person\b",
    "made-up": r"\bmade-up\b",
    "fate": r"\bfates?\b|\bwhat became of\b",
    "set aside": r"\bset aside\b",
    "drawn": r"\bdrawn\b",
    "sentence": r"\bsentences?\b",
    "stands beside": r"\bstands? (?:beside|for|in)\b",
    "goes on": r"\bgo(?:es)? on\b",
    "turns of a GPU": r"\bin turns\b|\btakes? turns\b",
    "template of processes": r"\bwarm template\b",
    "lane": r"\blanes?\b|\bgrants?\b",
    "piece": r"\bpieces?\b",
    "spread": r"\bspread\b",
    "attached": r"\battached\b",
    "mistake": r"\bmistakes?\b",
    "the other end": r"\bother ends?\b|\bcontroller's end\b",
}
"""Regular expressions of the phrases, by a name for each; case is ignored."""
FIELD = {"where": "6-10", "if": "25-81"}
"""Occurrences per 10,000 words in prime-rl, TRL, tinker-cookbook, open-instruct and torchtitan."""


def main() -> None:
    """Print the rates of "where" and "if", or store the counts of all phrases."""
    if sys.argv[1:] == ["--write"]:
        COUNTS.write_text(json.dumps(counts(), indent=1) + "\n")
        return
    words = len(re.findall(r"\w+", prose()))
    rates = {word: 1e4 * len(re.findall(rf"\b{word}\b", prose(), re.IGNORECASE)) / words for word in FIELD}
    shown = ", ".join(f"{rate:.1f} {word} (elsewhere {FIELD[word]})" for word, rate in rates.items())
    print(f"words: {shown} per 10,000 of {words:,}; {sum(counts().values()):,} phrases that may only become fewer")


def counts() -> dict[str, int]:
    """Return how often each phrase is in the prose of the code."""
    return {name: len(re.findall(pattern, prose(), re.IGNORECASE)) for name, pattern in PHRASES.items()}


@cache
def prose() -> str:
    """Return all docstrings and comments of the code."""
    paths = (path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py")))
    return "\n".join(text for path in paths for text in _texts(path.read_text()))


def _texts(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)
        for line in body if isinstance(body, list) else []:
            if (
                isinstance(line, ast.Expr)
                and isinstance(line.value, ast.Constant)
                and isinstance(line.value.value, str)
            ):
                yield line.value.value
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string


if __name__ == "__main__":
    main()
