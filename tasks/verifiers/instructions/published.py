"""Runs the published checkers of IFEval and IFBench from the package `if-verifiable`, patched for any response.

They read text through the cached functions of `texts`. Sampling an argument at random is an error: all arguments must
be given (`arguments`), so that scores are deterministic.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from typing import Any

from tasks.verifiers.instructions import package, texts
from tasks.verifiers.instructions.arguments import LANGUAGES


class _NoRandom:
    """A stand-in for `random` in the package's modules that raises on any use."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"a checker draws an argument at random ({name})")

    def __call__(self, num_keywords: int) -> Any:
        raise AssertionError(f"a checker draws {num_keywords} keywords at random")


def _make_utilities(family: str) -> types.ModuleType:
    """Return a stand-in for the utility module of a family of checkers, with the functions of `texts`.

    IFBench has split sentences with NLTK since August 2026.
    """
    module = types.ModuleType(f"{package.NAME}.{family}.instructions_util")
    sentences = texts.split_nltk_sentences if family == "ifbench" else texts.split_published_sentences
    vars(module).update(
        LANGUAGE_CODES={code: code for code in LANGUAGES},
        count_sentences=texts.count_sentences,
        count_stopwords=texts.count_stop_words,
        count_words=texts.count_words,
        generate_keywords=_NoRandom(),
        nltk=types.SimpleNamespace(word_tokenize=texts.tokens),
        split_into_sentences=lambda text: list(sentences(text)),
    )
    return module


def _load_registry(family: str) -> dict[str, type]:
    utilities = _make_utilities(family)
    registry = package.load(f"{package.NAME}.{family}.instructions_registry", {utilities.__name__: utilities})
    registry.instructions.random = _NoRandom()
    return registry.INSTRUCTION_DICT


REGISTRY: dict[str, type] = _load_registry("ifeval") | _load_registry("ifbench")
"""The package's checker classes by constraint id, 25 of IFEval and 58 of IFBench."""


def check(name: str, arguments: Mapping[str, Any]) -> Callable[[str], bool]:
    """Return the check of one constraint.

    Each call creates a new checker object, because some of the package's checkers modify themselves.
    """
    checker: Any = REGISTRY[name](name)
    checker.build_description(**arguments)
    return checker.check_following
