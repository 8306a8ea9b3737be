"""Detects answers that address their grader, by named rules.

The prompt is built so that such an answer has no effect (`prompt_parts`). The rules are a second line of defence: they
flag the answer, or remove its reward. A rule that also matches the conversation does not count, because the subject is
then grading or prompts. Grades of films, pupils and games are common in honest answers, so a rule requires more than a
grade: the answer must refer to itself, or address its reader as a grader.
"""

from __future__ import annotations

import re
import unicodedata
from functools import cache
from pathlib import Path

from tasks.config.yaml_text import parse_yaml
from tasks.verifiers.chat.config import RULES, Rule
from tasks.verifiers.chat.prompt_parts import find_encoded_text, remove_invisible

_PART = re.compile(r"\{([a-z]+)\}")
_TAGS = {0xE0000 + code: chr(code) for code in range(0x20, 0x7F)}


def find_injections(answer: str, conversation: str = "") -> list[Rule]:
    """Return the names of the rules that match `answer` but not `conversation`, in the order of the rules."""
    texts = [_normalize(answer), *(_normalize(content) for _, content in find_encoded_text(remove_invisible(answer)))]
    context = _normalize(conversation)
    return [
        name
        for name, rule in _load_rules().items()
        if any(map(rule.search, texts)) and not (context and rule.search(context))
    ]


@cache
def _load_rules() -> dict[Rule, re.Pattern[str]]:
    """Return the patterns of the rules, in the order of the rules."""
    data = parse_yaml(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
    assert tuple(data["rules"]) == RULES, "each rule has a pattern"
    parts: dict[str, str] = {}

    def fill_in(pattern: str) -> str:
        return _PART.sub(lambda part: parts[part[1]], "".join(pattern.splitlines()))

    for name, pattern in data["parts"].items():
        parts[name] = fill_in(pattern)
    return {rule: re.compile(fill_in(data["rules"][rule])) for rule in RULES}


def _normalize(text: str) -> str:
    """Return the text as a reader would see it: invisible letters made visible, width and case variants unified."""
    shown = remove_invisible(text.translate(_TAGS))
    return " ".join(unicodedata.normalize("NFKC", shown).casefold().split())
