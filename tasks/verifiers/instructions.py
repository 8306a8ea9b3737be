"""`precise_if`: does a response hold every constraint that its prompt states?

The checkers are the 25 of IFEval (Zhou et al. 2023, https://arxiv.org/abs/2311.07911) as `if-verifiable` ships them.
The loop over them is ours: it takes no unknown constraint, no missing argument and no missing data in silence.

A ground truth is `{"instruction_ids": [...], "kwargs": [{...}, ...]}`, one object of arguments per constraint; null
arguments count as absent. An optional `"mode": "loose"` asks for IFEval's loose accuracy: a constraint then holds if it
holds for the response or for one of its variants without first line, last line or asterisks. The default is `"strict"`.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Mapping, Sequence
from typing import Any

import langdetect
import nltk

from tasks.verifiers.responses import strip_thinking
from tasks.verifiers.scores import CannotJudge, GroundTruthError, Score

REPEAT_PROMPT = "combination:repeat_prompt"

PUNKT = "tokenizers/punkt_tab/english"
NLTK_NEEDS = {
    "change_case:capital_word_frequency": PUNKT,
    "length_constraints:number_sentences": PUNKT,
}
"""The constraints that read NLTK data, and which. It is looked for where `NLTK_DATA` points and never downloaded."""

MODES = ("strict", "loose")


def _load_checkers() -> dict[str, type]:
    """The package's registry, without its `__init__`, which imports `datasets`: seconds and 100 MB in every worker."""
    if "if_verifiable" in sys.modules:
        return importlib.import_module("if_verifiable.ifeval.instructions_registry").INSTRUCTION_DICT
    spec = importlib.util.find_spec("if_verifiable")
    if spec is None:
        raise ImportError("precise_if needs the package if-verifiable")
    bare = types.ModuleType("if_verifiable")
    bare.__path__ = list(spec.submodule_search_locations or [])
    sys.modules["if_verifiable"] = bare
    try:
        return importlib.import_module("if_verifiable.ifeval.instructions_registry").INSTRUCTION_DICT
    finally:
        del sys.modules["if_verifiable"]  # whoever imports the package itself later gets all of it


CHECKERS = _load_checkers()
"""Constraint id -> checker class, the 25 of IFEval."""

langdetect.DetectorFactory.seed = 0  # it samples n-grams; unseeded, one response can score 1 and then 0


def check_ground_truth(ground_truth: Any) -> None:
    """Raise `GroundTruthError` that names the constraint and the argument at fault."""
    for name, arguments in _constraints(ground_truth):
        _checker(name, arguments)


def missing_resources(ground_truth: Any) -> list[str]:
    """The constraints of a ground truth whose NLTK data is not on this machine, each with the resource it lacks."""
    return [
        f"{name} needs the NLTK resource {NLTK_NEEDS[name]}: set NLTK_DATA to a folder that holds it"
        for name, _ in _constraints(ground_truth)
        if name in NLTK_NEEDS and not _found(NLTK_NEEDS[name])
    ]


def judge(response: str, ground_truth: Any, messages: Sequence[Mapping[str, str]] | None) -> Score:
    """1 if the response holds all constraints, else 0; an empty response holds none. `detail` names the broken ones.

    `messages` is read only by `combination:repeat_prompt`, and only where its `prompt_to_repeat` is absent: the prompt
    to repeat is then the last user message.
    """
    constraints = [
        (name, {"prompt_to_repeat": _last_prompt(messages)} if name == REPEAT_PROMPT and not arguments else arguments)
        for name, arguments in _constraints(ground_truth)
    ]
    checkers = [(name, _checker(name, arguments)) for name, arguments in constraints]
    if missing := missing_resources(ground_truth):
        raise CannotJudge("; ".join(missing))
    text = strip_thinking(response)
    if not text:
        return Score.binary(False, "empty response")
    candidates = _loose_variants(text) if ground_truth.get("mode") == "loose" else [text]
    broken = [name for name, checker in checkers if not any(checker.check_following(c) for c in candidates)]
    if broken:
        return Score.binary(False, f"broken: {', '.join(broken)}")
    return Score.binary(True, f"holds all of {len(checkers)}")


def warm_up() -> None:
    """Load the language profiles and, where it is installed, the sentence tokenizer."""
    langdetect.detect("Every profile is loaded by the first call.")
    if _found(PUNKT):
        nltk.word_tokenize("Loads the tokenizer. Twice.")


def _constraints(ground_truth: Any) -> list[tuple[str, dict[str, Any]]]:
    """The constraints of a ground truth with their arguments, shape and ids checked."""
    if not isinstance(ground_truth, dict) or not {"instruction_ids", "kwargs"} <= set(ground_truth):
        raise GroundTruthError(f"want an object with 'instruction_ids' and 'kwargs', got {ground_truth!r:.200}")
    if unknown := set(ground_truth) - {"instruction_ids", "kwargs", "mode"}:
        raise GroundTruthError(f"unknown keys {sorted(unknown)}; accepted: instruction_ids, kwargs, mode")
    if ground_truth.get("mode", "strict") not in MODES:
        raise GroundTruthError(f"mode is {ground_truth['mode']!r}; accepted: {', '.join(MODES)}")
    names, arguments = ground_truth["instruction_ids"], ground_truth["kwargs"]
    if not isinstance(names, list) or not isinstance(arguments, list) or not names or len(names) != len(arguments):
        raise GroundTruthError("'instruction_ids' and 'kwargs' must be two lists of one length, at least 1")
    for name, given in zip(names, arguments, strict=True):
        if not isinstance(name, str) or name not in CHECKERS:
            raise GroundTruthError(f"unknown constraint {name!r}; accepted: {', '.join(CHECKERS)}")
        if not isinstance(given, dict):
            raise GroundTruthError(f"{name}: arguments must be an object, got {given!r:.200}")
    return [(n, {k: v for k, v in given.items() if v is not None}) for n, given in zip(names, arguments, strict=True)]


def _checker(name: str, arguments: dict[str, Any]) -> Any:
    """The checker of one constraint, ready to check.

    The package draws a random value for an argument that is absent, which would make the constraint another one than
    the prompt states: all must be given. `repeat_prompt` alone may leave its argument to the messages.
    """
    checker = CHECKERS[name](name)
    if name == REPEAT_PROMPT and not arguments:
        return checker
    wanted = set(_argument_names(name))
    if set(arguments) != wanted:
        raise GroundTruthError(f"{name}: arguments are {sorted(arguments)}, must be {sorted(wanted)}")
    try:
        checker.build_description(**arguments)
    except (TypeError, ValueError, AttributeError) as error:
        raise GroundTruthError(f"{name}: {arguments!r:.200}: {error}") from None
    return checker


def _argument_names(name: str) -> list[str]:
    return CHECKERS[name](name).get_instruction_args_keys()


def _last_prompt(messages: Sequence[Mapping[str, str]] | None) -> str:
    prompt = next((turn["content"] for turn in reversed(messages or ()) if turn["role"] == "user"), "")
    if not prompt:
        raise CannotJudge(f"{REPEAT_PROMPT} needs the prompt: give prompt_to_repeat, or messages with a user's turn")
    return prompt


def _found(resource: str) -> bool:
    try:
        nltk.data.find(resource)
    except LookupError:
        return False
    return True


def _loose_variants(text: str) -> list[str]:
    """The response and what IFEval's loose accuracy also accepts in its place; empty ones left out."""
    lines = text.split("\n")
    cuts = [text, *("\n".join(part).strip() for part in (lines[1:], lines[:-1], lines[1:-1]))]
    return [variant for cut in cuts for variant in (cut, cut.replace("*", "")) if variant.strip()]
