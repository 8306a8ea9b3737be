"""Parses the text of YAML files, and shows the place of an error in it."""

from __future__ import annotations

from typing import Any

import yaml

from tasks.failures import one_line

SHOWN = 100
"""Maximum number of characters of a line that are shown around an error."""


class YamlError(ValueError):
    """Raised if a text is not YAML, or a key occurs twice. The message has the line and, below it, a caret."""


def parse_yaml(text: str) -> Any:
    """Return the value of a YAML text as PyYAML's safe loader does, but refuse keys that occur twice in a mapping.

    Raises:
        YamlError: the text is not valid YAML, or a key occurs twice in a mapping.
    """
    try:
        return yaml.load(text, Loader=_UniqueKeyLoader)  # noqa: S506 (a SafeLoader)
    except yaml.MarkedYAMLError as error:
        raise YamlError(_add_place(error, text)) from None
    except yaml.YAMLError as error:  # a character that YAML does not allow
        raise YamlError(f"not valid YAML: {one_line(error)}") from None


class _UniqueKeyLoader(yaml.SafeLoader):
    """A YAML loader that refuses duplicate keys in a mapping, while PyYAML silently uses the last one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            if isinstance(key_node, yaml.ScalarNode) and key_node.tag != "tag:yaml.org,2002:merge":
                key = key_node.value
                if key in seen:
                    raise yaml.MarkedYAMLError(
                        problem=f"the key {key!r} occurs twice", problem_mark=key_node.start_mark
                    )
                seen.add(key)
        return super().construct_mapping(node, deep)


def _add_place(error: yaml.MarkedYAMLError, text: str) -> str:
    """Return the problem with its line and column, the line, and a caret below the column."""
    begin, mark = error.context_mark, error.problem_mark or error.context_mark
    lines = text.rstrip().splitlines() or [""]
    problem = one_line(error.problem or error.context or error)
    if error.context and error.problem:
        since = f" that begins in line {begin.line + 1}" if begin and begin.line < len(lines) else ""
        problem += f" ({one_line(error.context)}{since})"
    if mark is None:
        return f"not valid YAML: {problem}"
    row, column = (mark.line, mark.column) if mark.line < len(lines) else (len(lines) - 1, len(lines[-1]))
    line = lines[row]
    left = max(0, column - SHOWN // 2)
    shown = "".join(letter if letter.isprintable() else " " for letter in line[left : left + SHOWN])
    caret = " " * (column - left) + "^"
    return f"not valid YAML: line {row + 1}, column {column + 1}: {problem}\n  {shown}\n  {caret}"
