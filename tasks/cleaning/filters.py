"""Filters single prompts by length, by language, and by checking that the verifier accepts the ground truth."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tasks.cleaning.spec import Filters
from tasks.config.loading import SpecError, check_choice
from tasks.tables import texts
from tasks.tables.schemas import Kind

if TYPE_CHECKING:
    from py3langid.langid import LanguageIdentifier

    from tasks.verifiers import VerifierPool

LANGUAGE_CHARS = 4096
"""Maximum number of characters of a prompt that are used to detect its language."""


@dataclass(frozen=True)
class Finding:
    """A prompt that a filter drops.

    Attributes:
        row: its row number in the table.
        kind: the kind of the error.
        reason: the error, to show to the user.
        value: the invalid value. If None, the prompt's last message.
        clashed_with, clashed_text: the id and the text of the question that the prompt contains, if any.
    """

    row: int
    kind: Kind
    reason: str
    value: str | None = None
    clashed_with: str | None = None
    clashed_text: str | None = None


def check_lengths(prompts: pa.Table, filters: Filters) -> Iterator[Finding]:
    """Yield the prompts with fewer words than `min_words` or more than `max_words`."""
    if filters.min_words is None and filters.max_words is None:
        return
    counts = texts.word_counts(texts.extract_questions(prompts.column("messages")))
    least, most = filters.min_words or 0, filters.max_words or np.iinfo(np.int64).max
    for row in np.flatnonzero((counts < least) | (counts > most)).tolist():
        bound = f"fewer than min_words {least}" if counts[row] < least else f"more than max_words {most}"
        yield Finding(row, "length", f"prompt of {counts[row]} words, {bound}")


class Languages:
    """Detects the language of prompts with py3langid."""

    def __init__(self, accepted: list[str]) -> None:
        """Load the model, which is part of the package.

        Args:
            accepted: ISO 639 language codes.

        Raises:
            SpecError: the model does not know one of the languages, or the package is not installed.
        """
        self._accepted = set(accepted)
        try:
            from py3langid.langid import MODEL_FILE, LanguageIdentifier
        except ImportError:
            raise SpecError(
                "cleaning.filters.languages: py3langid is not installed; pip install '.[data]' installs it"
            ) from None
        self._model: LanguageIdentifier = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
        known = sorted(set(map(str, self._model.nb_classes)))
        for language in accepted:
            check_choice(language, known, "cleaning.filters.languages", "language")

    def check(self, prompts: pa.Table) -> Iterator[Finding]:
        """Yield the prompts whose most likely language is not accepted."""
        for row, text in enumerate(texts.extract_questions(prompts.column("messages")).to_pylist()):
            language, probability = self._model.classify(text[:LANGUAGE_CHARS])
            if language not in self._accepted:
                accepted = ", ".join(sorted(self._accepted))
                yield Finding(
                    row,
                    "language",
                    f"its language is {language} with probability {probability:.2f}, none of {accepted}",
                )


def check_ground_truths(prompts: pa.Table, pool: VerifierPool) -> Iterator[Finding]:
    """Yield the prompts whose ground truth the verifier `math` rejects if it is given as the response.

    If a ground truth has several answers, one of them must be accepted.

    Raises:
        RuntimeError: a ground truth could not be verified.
    """
    from tasks.verifiers import Call

    asked: list[tuple[int, list[Call]]] = []
    verifiers, truths = (prompts.column(name).to_pylist() for name in ("verifier", "ground_truth"))
    for row, (verifier, text) in enumerate(zip(verifiers, truths, strict=True)):
        for truth in _find_math_truths(verifier, json.loads(text)):
            asked.append((row, [Call("math", response, truth) for response in _format_responses(truth)]))
    scores = iter(pool.score_many(call for _, calls in asked for call in calls))
    rejected: dict[int, str] = {}
    for row, calls in asked:
        judged = [next(scores) for _ in calls]
        for call, score in zip(calls, judged, strict=True):
            if score.error is not None:
                raise RuntimeError(f"the ground truth {call.ground_truth!r:.200} could not be scored: {score.error}")
        if not any(score.passed for score in judged):
            rejected.setdefault(row, judged[0].detail)
    for row, detail in rejected.items():
        yield Finding(row, "ground_truth", f"its own verifier rejects it: {detail}", truths[row])


def _find_math_truths(verifier: str, truth: Any) -> Iterator[Any]:
    """Yield the ground truths of a prompt that the verifier `math` uses."""
    if verifier == "math":
        yield truth
    elif verifier == "weighted":
        for reward in truth["rewards"]:
            yield from _find_math_truths(reward["verifier"], reward["ground_truth"])


def _format_responses(truth: Any) -> Iterator[str]:
    """Yield each accepted answer as a response, in a box, or after `####` for the mode `gsm8k`."""
    answers, mode = (truth["answer"], truth.get("mode")) if isinstance(truth, dict) else (truth, None)
    for answer in [answers] if isinstance(answers, str) else answers:
        if mode == "gsm8k":
            yield f"#### {answer}"
        else:
            yield answer if "\\boxed" in answer else f"\\boxed{{{answer}}}"
