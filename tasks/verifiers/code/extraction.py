"""Extraction of the program from a response."""

from __future__ import annotations

import re

from tasks.verifiers.responses import strip_thinking

_FENCE = re.compile(r"^[ ]{0,3}(`{3,}+|~{3,}+)[ \t]*+([^\s`]*+)[^\n`]*+$", re.MULTILINE)
_PYTHON = ("python", "py", "python3", "py3")


def extract_program(response: str) -> str | None:
    """Return the last fenced block of Python; where there is none, the last block that names no language.

    A block that is never closed, as in a response that was cut off, reaches to the end. A response without any fence is
    taken for a program as a whole: prose does not compile. None where there is no program.
    """
    text = strip_thinking(response)
    blocks = _blocks(text)
    for accepted in (_PYTHON, ("",)):
        for language, content in reversed(blocks):
            if language in accepted and content.strip():
                return content
    return text if text and not blocks else None


def _blocks(text: str) -> list[tuple[str, str]]:
    """Return the language (lower case) and the content of each fenced block, by CommonMark's rules for fences."""
    blocks: list[tuple[str, str]] = []
    opened: re.Match[str] | None = None
    for fence in _FENCE.finditer(text):
        if opened is None:
            opened = fence
        elif fence[1].startswith(opened[1]) and not fence[2]:
            blocks.append((opened[2].lower(), text[opened.end() + 1 : fence.start()]))
            opened = None
    if opened is not None:
        blocks.append((opened[2].lower(), text[opened.end() + 1 :]))
    return blocks
