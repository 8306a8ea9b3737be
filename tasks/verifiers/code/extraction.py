"""Extracts the program from a response."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Collection, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

from tasks.verifiers.code.syntax import parse
from tasks.verifiers.responses import strip_thinking

_FENCE = re.compile(
    r"^(?P<before>[ \t]*+(?=~)|(?:[^\n`]|`{1,2}(?!`))*+)(?P<ticks>`{3,}+|~{3,}+)[ \t]*+(?P<language>[^\s`]*+)[^\n`]*+$",
    re.MULTILINE,
)
_LIST_MARKER = re.compile(r"\s*(?:[-*+]|[0-9]{1,9}[.)])?\s*")
_GLUED = re.compile(r"`{3,}+[ \t]*$", re.MULTILINE)
_INDENT = re.compile(r"\n*([ \t]*)")
_PYTHON = ("python", "py", "python3", "py3")
MAX_PROGRAM_CHARS = 200_000
"""Maximum length of a program that is run, in characters; a longer one scores 0."""
_CLOSING_INDENT = 3
"""Maximum indentation of a closing fence relative to the opening one, in characters (CommonMark)."""


def extract_program(response: str, names: Collection[str] = ()) -> str | None:
    """Return the last fenced block of Python, or the last block without a language if there is none.

    Blocks that define more of the `names`, which the tests use, are preferred: a block with a call of the function, or
    with its output, is not a program. A block that is never closed, as in a truncated response, extends to the end. A
    response without any fence is used as a program as a whole, because prose does not compile. The same applies to a
    response whose fences are within strings and comments of a program. If no block contains a program, a program
    outside of the blocks is used. Returns None if there is none.
    """
    text = strip_thinking(response)
    blocks, outside = _find_blocks(text)
    if not blocks or _is_program(text):
        return text or None
    last_first = [(language, content) for language, content in reversed(blocks) if content.strip()]
    ranked = [content for accepted in (_PYTHON, ("",)) for language, content in last_first if language in accepted]
    if ranked:
        return max(ranked, key=lambda content: _count_defined(content, names)) if len(ranked) > 1 else ranked[0]
    return next(filter(_is_program, reversed(outside)), None)


def find_used_names(ground_truth: dict[str, Any]) -> frozenset[str]:
    """Return the names that tests use, and that neither they nor their setup define; empty for standard input."""
    return _collect_used_names(json.dumps([ground_truth.get("setup") or "", *ground_truth.get("tests", [])]))


@lru_cache(maxsize=4096)
def _collect_used_names(codes: str) -> frozenset[str]:
    nodes = [node for code in json.loads(codes) for node in ast.walk(parse(code))]
    used = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    return frozenset(used.difference(name for node in nodes for name in _find_bound_names(node)))


def _find_bound_names(node: ast.AST) -> Iterator[str]:
    """Yield the names that a statement or an argument binds, except imports."""
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
            yield name


def _count_defined(program: str, names: Collection[str]) -> int:
    """Return how many of the names a program defines at its top level, or 0 if it is not valid Python."""
    try:
        body = parse(program).body if names and len(program) <= MAX_PROGRAM_CHARS else []
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return 0
    targets = (node for line in body if isinstance(line, ast.Assign | ast.AnnAssign) for node in ast.walk(line))
    return len({name for node in (*body, *targets) for name in _find_bound_names(node)}.intersection(names))


class _Opening(NamedTuple):
    """An opening fence.

    Attributes:
        fence: its match.
        language: the language after the fence, in lower case.
        indent: characters of white space or of a list marker before it, or 0 if words precede it.
    """

    fence: re.Match[str]
    language: str
    indent: int


def _find_blocks(text: str) -> tuple[list[tuple[str, str]], list[str]]:
    """Return the language and the content of each fenced block, and the texts before them.

    The rules for fences are CommonMark's and two more. A fence may follow words on its line. If the last fence closes a
    block that was never opened, the program is the text before it.
    """
    blocks: list[tuple[str, str]] = []
    outside: list[str] = []
    opening: _Opening | None = None
    closed = 0
    for fence in _FENCE.finditer(text):
        if opening is None:
            opening = _match_opening(fence)
            if opening is not None:
                outside.append(text[closed : fence.start("ticks")])
        elif _is_closing(fence, opening):
            blocks.append((opening.language, _extract_content(text[opening.fence.end() + 1 : fence.start()])))
            opening, closed = None, fence.end()
    if opening is not None:
        content = _extract_content(_GLUED.split(text[opening.fence.end() + 1 :], maxsplit=1)[0])
        if not opening.language and _is_program(outside[-1]) and not _is_program(content):
            content = outside[-1]
        blocks.append((opening.language, content))
    return blocks, outside


def _match_opening(fence: re.Match[str]) -> _Opening | None:
    """Return the fence as an opening one, or None if the words before it show that it is not."""
    before, language = fence["before"], fence["language"].lower()
    if _LIST_MARKER.fullmatch(before):
        return _Opening(fence, language, len(before))
    return _Opening(fence, language, 0) if language in (*_PYTHON, "") else None


def _is_closing(fence: re.Match[str], opening: _Opening) -> bool:
    before = fence["before"]
    within = not before.strip() and len(before) <= opening.indent + _CLOSING_INDENT
    return within and fence["ticks"].startswith(opening.fence["ticks"]) and not fence["language"]


def _extract_content(text: str) -> str:
    """Return the lines of a block without the indentation of its first line, as in blocks of a list."""
    indent = _INDENT.match(text)
    width = len(indent[1]) if indent else 0
    return re.sub(rf"^[ \t]{{1,{width}}}", "", text, flags=re.MULTILINE) if width else text


def _is_program(text: str) -> bool:
    """Return True if a text is Python that does something, and not just a name, as a word of prose is."""
    try:
        body = parse(text).body if len(text) <= MAX_PROGRAM_CHARS else []
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return any(not isinstance(node, ast.Expr) or isinstance(node.value, ast.Call) for node in body)
