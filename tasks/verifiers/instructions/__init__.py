"""Verifies instruction following (`precise_if`): 1 if a response satisfies every constraint of its prompt, else 0.

There are 112 constraints (`arguments`): 25 of IFEval, 29 that IF-RLVR trains on and 58 of IFBench. Unknown constraints,
missing arguments and missing data are errors.

A ground truth is `{"instruction_ids": [...], "kwargs": [{...}, ...]}`, with one object of arguments per constraint;
null arguments count as absent. The optional `mode` is one of:

strict  the default: the response must satisfy all constraints.
loose   IFEval's loose accuracy: a constraint is satisfied if the response satisfies it, or one of its variants without
        the first line, the last line or asterisks.
both    the strict score, with the fractions of constraints that are satisfied strictly and loosely as rewards of weight
        0. The four metrics of IFEval (Zhou et al. 2023, arXiv:2311.07911) can be computed from them.

Importing this package loads no checkers; the first call of `judge`, or `warm_up`, loads them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tasks.verifiers.instructions import needs
from tasks.verifiers.instructions.arguments import SCHEMAS, ArgumentsError, normalize
from tasks.verifiers.responses import strip_thinking
from tasks.verifiers.scores import CannotJudge, GroundTruthError, Reward, Score

REPEAT_PROMPT = "combination:repeat_prompt"
"""The only constraint whose argument may come from the messages."""

MODES = ("strict", "loose", "both")
"""Accepted values of `mode` in a ground truth."""

Check = tuple[str, Callable[[str], bool]]
"""The name of a constraint, and a function that returns True if a text satisfies it."""


def check_ground_truth(ground_truth: Any) -> None:
    """Raise a `GroundTruthError` that names the invalid constraint and argument, unless the ground truth is valid."""
    _parse_constraints(ground_truth)


def missing_resources(ground_truth: Any) -> list[str]:
    """Return a message for each package or NLTK resource that the constraints need and this machine lacks."""
    return [reason for name, _ in _parse_constraints(ground_truth) for reason in needs.find_missing(name)]


def judge(response: str, ground_truth: Any, messages: Sequence[Mapping[str, str]] | None) -> Score:
    """Score 1 if the response satisfies all constraints, else 0; an empty response satisfies none.

    `Score.detail` names the broken constraints. `messages` is used only by `combination:repeat_prompt`, and only if its
    `prompt_to_repeat` is absent: the prompt to repeat is then the last user message. In mode `both` the rewards are the
    strict score with weight 1, and the fractions `strict` and `loose`, in [0, 1], with weight 0.

    Raises:
        GroundTruthError: If the ground truth is malformed.
        CannotJudge: If data, a package or the prompt to repeat is missing.
    """
    constraints = [
        (
            name,
            {"prompt_to_repeat": _find_last_prompt(messages)} if name == REPEAT_PROMPT and not arguments else arguments,
        )
        for name, arguments in _parse_constraints(ground_truth)
    ]
    if missing := [reason for name, _ in constraints for reason in needs.find_missing(name)]:
        raise CannotJudge("; ".join(missing))
    from tasks.verifiers.instructions import checkers

    checks = [(name, checkers.check(name, arguments)) for name, arguments in constraints]
    text, mode = strip_thinking(response), ground_truth.get("mode", "strict")
    broken = _find_broken(checks, _make_loose_variants(text) if mode == "loose" else [text] if text else [])
    score = _score_all_or_nothing(text, broken, len(checks))
    if mode != "both":
        return score
    # The variants include the text itself, so only broken ones differ.
    loosely = _find_broken(broken, _make_loose_variants(text))
    return _score_both_ways(score, len(checks) - len(broken), len(checks) - len(loosely), len(checks))


def warm_up() -> None:
    """Load the checkers, the language profiles and, if their data is installed, tokenizer, tagger and stop words."""
    from tasks.verifiers.instructions import texts

    texts.detect_language("Every profile is loaded by the first call.")
    for resource, load in (
        (needs.PUNKT, texts.tokens),
        (needs.PUNKT, texts.count_sentences),
        (needs.TAGGER, texts.starts_with_verb),
        (needs.STOP_WORDS, texts.count_stop_words),
    ):
        if needs.has_data(needs.PUNKT) and needs.has_data(resource):
            load("Loads what it reads.")
    from tasks.verifiers.instructions import checkers  # noqa: F401 (its import loads the published checkers)


def _find_broken(checks: Sequence[Check], candidates: Sequence[str]) -> list[Check]:
    """Return the checks that no candidate passes."""
    return [(name, check) for name, check in checks if not any(check(candidate) for candidate in candidates)]


def _score_all_or_nothing(text: str, broken: Sequence[Check], count: int) -> Score:
    """Return the score of a text that breaks the given constraints out of `count`."""
    if not text:
        return Score.binary(False, "empty response")
    if broken:
        return Score.binary(False, f"broken: {', '.join(name for name, _ in broken)}")
    return Score.binary(True, f"satisfies all of {count}")


def _score_both_ways(score: Score, strictly: int, loosely: int, count: int) -> Score:
    """Return the strict score with the fractions of the `count` constraints satisfied, as rewards of weight 0."""
    shares = (Reward("strict", 0.0, strictly / count), Reward("loose", 0.0, loosely / count))
    return replace(score, rewards=(Reward("precise_if", 1.0, score.value), *shares))


def _parse_constraints(ground_truth: Any) -> list[tuple[str, dict[str, Any]]]:
    """Check a ground truth, and return its constraints with their arguments."""
    if not isinstance(ground_truth, dict) or not {"instruction_ids", "kwargs"} <= set(ground_truth):
        raise GroundTruthError(f"expected an object with 'instruction_ids' and 'kwargs', got {ground_truth!r:.200}")
    if unknown := set(ground_truth) - {"instruction_ids", "kwargs", "mode"}:
        raise GroundTruthError(f"unknown keys {sorted(unknown)}; accepted: instruction_ids, kwargs, mode")
    if ground_truth.get("mode", "strict") not in MODES:
        raise GroundTruthError(f"mode is {ground_truth['mode']!r}; accepted: {', '.join(MODES)}")
    names, arguments = ground_truth["instruction_ids"], ground_truth["kwargs"]
    if not isinstance(names, list) or not isinstance(arguments, list) or not names or len(names) != len(arguments):
        raise GroundTruthError("'instruction_ids' and 'kwargs' must be two lists of one length, at least 1")
    return [(name, _parse_arguments(name, given)) for name, given in zip(names, arguments, strict=True)]


def _parse_arguments(name: Any, given: Any) -> dict[str, Any]:
    """Return the arguments of one constraint. Only `repeat_prompt` may take its argument from the messages."""
    if not isinstance(name, str) or name not in SCHEMAS:
        raise GroundTruthError(f"unknown constraint {name!r}; accepted: {', '.join(SCHEMAS)}")
    if name == REPEAT_PROMPT and isinstance(given, dict) and all(value is None for value in given.values()):
        return {}
    try:
        return normalize(name, given)
    except ArgumentsError as reason:
        raise GroundTruthError(f"{reason}, got {given!r:.200}") from None


def _find_last_prompt(messages: Sequence[Mapping[str, str]] | None) -> str:
    prompt = next((turn["content"] for turn in reversed(messages or ()) if turn["role"] == "user"), "")
    if not prompt:
        raise CannotJudge(f"{REPEAT_PROMPT} needs the prompt: give prompt_to_repeat, or messages with a user's turn")
    return prompt


def _make_loose_variants(text: str) -> list[str]:
    """Return the response and the variants that IFEval's loose accuracy accepts instead, without empty ones."""
    lines = text.split("\n")
    cuts = [text, *("\n".join(part).strip() for part in (lines[1:], lines[:-1], lines[1:-1]))]
    return [each for each in dict.fromkeys(v for cut in cuts for v in (cut, cut.replace("*", ""))) if each.strip()]
