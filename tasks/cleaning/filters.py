"""What a prompt must be by itself: its length, its language, and a ground truth that its own verifier takes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tasks.cleaning.spec import Filters
from tasks.config import SpecError
from tasks.tables import texts
from tasks.tables.schemas import Kind

if TYPE_CHECKING:
    from py3langid.langid import LanguageIdentifier

    from tasks.verifiers import VerifierPool

LANGUAGE_CHARS = 4096
"""Of a prompt, so much is read to tell its language."""


@dataclass(frozen=True)
class Finding:
    """Why a prompt is set aside: its row in the table, the kind and the reason; `value` where it is not the prompt."""

    row: int
    kind: Kind
    reason: str
    value: str | None = None


def lengths(prompts: pa.Table, filters: Filters) -> Iterator[Finding]:
    """The prompts with too few or too many words."""
    if filters.min_words is None and filters.max_words is None:
        return
    _, offsets = texts.words(texts.questions(prompts.column("messages")))
    counts = np.diff(offsets)
    least, most = filters.min_words or 0, filters.max_words or np.iinfo(np.int64).max
    for row in np.flatnonzero((counts < least) | (counts > most)).tolist():
        bound = f"fewer than min_words {least}" if counts[row] < least else f"more than max_words {most}"
        yield Finding(row, "length", f"prompt of {counts[row]} words, {bound}")


class Languages:
    """Tells the language of prompts."""

    def __init__(self, accepted: list[str]) -> None:
        """Load the model, which lies in the package.

        Raises:
            SpecError: a language that it does not know, or the package is not installed.
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
            if language not in known:
                raise SpecError(f"cleaning.filters.languages: {language!r} is none of {', '.join(known)}")

    def others(self, prompts: pa.Table) -> Iterator[Finding]:
        """The prompts that are most likely of a language that is not accepted."""
        for row, text in enumerate(texts.questions(prompts.column("messages")).to_pylist()):
            language, probability = self._model.classify(text[:LANGUAGE_CHARS])
            if language not in self._accepted:
                accepted = ", ".join(sorted(self._accepted))
                yield Finding(
                    row,
                    "language",
                    f"its language is {language} with probability {probability:.2f}, none of {accepted}",
                )


def wrong_ground_truths(prompts: pa.Table, pool: VerifierPool) -> Iterator[Finding]:
    """The prompts whose ground truth `math` does not take for an answer to itself; of several answers, none of them.

    Raises:
        RuntimeError: a ground truth could not be judged, by no fault of its own.
    """
    from tasks.verifiers import Call

    asked: list[tuple[int, list[Call]]] = []
    verifiers, truths = (prompts.column(name).to_pylist() for name in ("verifier", "ground_truth"))
    for row, (verifier, text) in enumerate(zip(verifiers, truths, strict=True)):
        for truth in _of_mathematics(verifier, json.loads(text)):
            asked.append((row, [Call("math", response, truth) for response in _responses(truth)]))
    scores = iter(pool.score_many(call for _, calls in asked for call in calls))
    found: dict[int, str] = {}
    for row, calls in asked:
        judged = [next(scores) for _ in calls]
        for call, score in zip(calls, judged, strict=True):
            if score.error is not None:
                raise RuntimeError(f"the ground truth {call.ground_truth!r:.200} could not be judged: {score.error}")
        if not any(score.passed for score in judged):
            found.setdefault(row, judged[0].detail)
    for row, detail in found.items():
        yield Finding(row, "ground_truth", f"its own verifier rejects it: {detail}", truths[row])


def _of_mathematics(verifier: str, truth: Any) -> Iterator[Any]:
    """The ground truths for `math` among those of a prompt."""
    if verifier == "math":
        yield truth
    elif verifier == "weighted":
        for reward in truth["rewards"]:
            yield from _of_mathematics(reward["verifier"], reward["ground_truth"])


def _responses(truth: Any) -> Iterator[str]:
    """Each accepted answer as a response: in a box, or after `####` as the mode `gsm8k` reads it."""
    answers, mode = (truth["answer"], truth.get("mode")) if isinstance(truth, dict) else (truth, None)
    for answer in [answers] if isinstance(answers, str) else answers:
        if mode == "gsm8k":
            yield f"#### {answer}"
        else:
            yield answer if "\\boxed" in answer else f"\\boxed{{{answer}}}"
