"""Finds prompts that contain a question of an evaluation set."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tasks.cleaning.spec import Contamination
from tasks.tables import texts


@dataclass(frozen=True)
class Overlap:
    """An overlap of a prompt with a question of an evaluation set.

    Attributes:
        row: the row number of the prompt in its table.
        evaluation_set: the name of the set.
        question: the `prompt_id` of the question.
        text: the text of the question.
        share: the share of the question's words that are found in the prompt, in (0, 1].
    """

    row: int
    evaluation_set: str
    question: str
    text: str
    share: float


class Questions:
    """An n-gram index of the questions of evaluation sets, used to search prompts for them."""

    def __init__(self, prompts: pa.Table, spec: Contamination) -> None:
        """Index the questions.

        Args:
            prompts: the questions, a table of `PROMPTS`; the names of their sets are the sources.
            spec: the n-gram length, and the share of words above which a prompt contains a question.
        """
        self._spec = spec
        self._names, self._ids = (prompts.column(name).to_pylist() for name in ("source", "prompt_id"))
        self._messages = prompts.column("messages")
        hashes, offsets = texts.words(texts.questions(self._messages))
        self._words = np.diff(offsets)
        runs, starts = texts.ngrams(hashes, offsets, spec.ngram)
        owners = np.repeat(np.arange(len(self._words)), np.diff(starts))
        order = np.argsort(runs, kind="stable")
        self._runs, self._owners = runs[order], owners[order]
        self._at = (np.arange(len(runs)) - np.repeat(starts[:-1], np.diff(starts)))[order]

    def overlaps(self, prompts: pa.Table) -> Iterator[Overlap]:
        """Yield the question with the largest overlap for each contaminated prompt, in row order."""
        hashes, offsets = texts.words(texts.questions(prompts.column("messages")))
        runs, starts = texts.ngrams(hashes, offsets, self._spec.ngram)
        rows = np.repeat(np.arange(prompts.num_rows), np.diff(starts))
        low, high = (np.searchsorted(self._runs, runs, side) for side in ("left", "right"))
        words_in: dict[tuple[int, int], set[int]] = defaultdict(set)
        for hit in np.flatnonzero(high > low).tolist():
            for entry in range(low[hit], high[hit]):
                question = int(self._owners[entry])
                at = int(self._at[entry])
                words_in[int(rows[hit]), question].update(range(at, min(at + self._spec.ngram, self._words[question])))
        best: dict[int, tuple[float, int]] = {}
        for (row, question), covered in words_in.items():
            share = len(covered) / int(self._words[question])
            if share > self._spec.overlap and (share, -question) > best.get(row, (0.0, 0)):
                best[row] = (share, -question)
        for row in sorted(best):
            share, question = best[row][0], -best[row][1]
            text = self._messages[question].as_py()[-1]["content"]
            yield Overlap(row, self._names[question], self._ids[question], text, share)


def overlap_counts(batches: Iterable[pa.Table], questions: pa.Table, spec: Contamination) -> Counter[tuple[str, str]]:
    """Return the number of prompts that contain a question, by evaluation set and by the prompt's source.

    Args:
        batches: tables of `PROMPTS`.
        questions: the questions, a table of `PROMPTS`; the names of their sets are the sources.
        spec: the rule that decides whether a prompt contains a question.
    """
    index, counts = Questions(questions, spec), Counter[tuple[str, str]]()
    for batch in batches:
        sources = batch.column("source").to_pylist()
        counts.update((overlap.evaluation_set, sources[overlap.row]) for overlap in index.overlaps(batch))
    return counts
