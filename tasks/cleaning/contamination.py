"""Finds prompts that contain a question of an evaluation set."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tasks.cleaning.frames import Frames
from tasks.cleaning.spec import Contamination
from tasks.tables import texts

PAIRS = 2**18
"""Number of common n-grams of prompts and questions that are compared at once."""

_Numbers = np.ndarray[tuple[int], np.dtype[np.int64]]
_Shares = np.ndarray[tuple[int], np.dtype[np.float64]]


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
    """An n-gram index of the questions of evaluation sets, used to search prompts for them.

    Only the own words of questions and prompts are compared, without the frames that many prompts or questions share. A
    question that consists of text that many prompts contain is compared with whole prompts instead.
    """

    def __init__(self, prompts: pa.Table, spec: Contamination, frames: Frames) -> None:
        """Index the questions.

        Args:
            prompts: the questions, a table of `PROMPTS`; the names of their sets are the sources.
            spec: the n-gram length, and the share of words above which a prompt contains a question.
            frames: the frames of the questions and of the prompts.
        """
        self._spec, self._frames = spec, frames
        self._names, self._ids = (prompts.column(name).to_pylist() for name in ("source", "prompt_id"))
        self._messages = prompts.column("messages")
        words, offsets = texts.words(texts.extract_questions(self._messages))
        own = self._frames.own(words, offsets)
        own_words, own_offsets = texts.selected(words, offsets, own)
        is_shared = (np.diff(own_offsets) == 0) & (np.diff(offsets) > 0)
        self._own = _Index(own_words, own_offsets, spec.ngram)
        self._shared = _Index(*texts.selected(words, offsets, np.repeat(is_shared, np.diff(offsets))), spec.ngram)

    def find_overlaps(self, prompts: pa.Table) -> Iterator[Overlap]:
        """Yield the question with the largest overlap for each contaminated prompt, in row order."""
        words, offsets = texts.words(texts.extract_questions(prompts.column("messages")))
        own = texts.selected(words, offsets, self._frames.own(words, offsets))
        shares = [*self._own.shares(*own), *self._shared.shares(words, offsets)]
        best: dict[int, tuple[float, int]] = {}
        for rows, questions, share in shares:
            high = np.flatnonzero(share > self._spec.overlap)
            for row, question, value in zip(*(part[high].tolist() for part in (rows, questions, share)), strict=True):
                best[row] = max(best.get(row, (0.0, 0)), (value, -question))
        for row in sorted(best):
            share_of_best, question = best[row][0], -best[row][1]
            text = self._messages[question].as_py()[-1]["content"]
            yield Overlap(row, self._names[question], self._ids[question], text, share_of_best)


class _Index:
    """The n-grams of texts, sorted, with the text and the position of each."""

    def __init__(self, words: texts.Hashes, offsets: texts.Offsets, ngram: int) -> None:
        self._ngram, self._words = ngram, np.diff(offsets)
        runs, starts = texts.ngrams(words, offsets, ngram)
        owners = np.repeat(np.arange(len(self._words)), np.diff(starts))
        order = np.argsort(runs, kind="stable")
        self._runs, self._owners = runs[order], owners[order]
        self._at = (np.arange(len(runs)) - np.repeat(starts[:-1], np.diff(starts)))[order]

    def shares(self, words: texts.Hashes, offsets: texts.Offsets) -> Iterator[tuple[_Numbers, _Numbers, _Shares]]:
        """Compare texts with the indexed ones: yield the pairs with common n-grams, in parts that fit into memory.

        A pair is a text, an indexed text, and the share of the indexed text's words that are in common n-grams. A part
        has `PAIRS` common n-grams, or one text.
        """
        runs, starts = texts.ngrams(words, offsets, self._ngram)
        hits = np.flatnonzero(texts.match_hashes(runs, self._runs))
        rows = np.repeat(np.arange(len(offsets) - 1), np.diff(starts))[hits]
        low, high = (np.searchsorted(self._runs, runs[hits], side) for side in ("left", "right"))
        counts = high - low
        before = (np.cumsum(counts) - counts)[np.searchsorted(rows, rows)]  # the common n-grams of earlier texts
        ends = np.flatnonzero(np.diff(before // PAIRS)) + 1
        for part in np.split(np.arange(len(hits)), ends) if len(hits) else ():
            yield self._compute_part_shares(rows[part], low[part], counts[part])

    def _compute_part_shares(
        self, rows: _Numbers, low: _Numbers, counts: _Numbers
    ) -> tuple[_Numbers, _Numbers, _Shares]:
        """Return the pairs of texts that have common n-grams, and the share of the indexed text's words in them.

        Args:
            rows: the text of each n-gram.
            low: the first occurrence of each n-gram in the index.
            counts: the number of its occurrences.
        """
        entries = np.repeat(low - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum())
        size = int(self._words.max()) + 1
        pairs = np.repeat(rows, counts) * len(self._words) + self._owners[entries]
        pairs, at = np.divmod(np.unique(pairs * size + self._at[entries]), size)
        row, indexed = np.divmod(pairs, len(self._words))
        # A word that several n-grams cover counts for the last of them.
        until_next = np.where(pairs[1:] == pairs[:-1], at[1:] - at[:-1], size)
        covered = np.minimum(np.minimum(np.r_[until_next, size], self._ngram), self._words[indexed] - at)
        first = np.flatnonzero(np.r_[True, pairs[1:] != pairs[:-1]])
        return row[first], indexed[first], np.add.reduceat(covered, first) / self._words[indexed[first]]


def count_overlaps(
    batches: Iterable[pa.Table], questions: pa.Table, spec: Contamination, frames: Frames
) -> Counter[tuple[str, str]]:
    """Return the number of prompts that contain a question, by evaluation set and by the prompt's source.

    Args:
        batches: tables of `PROMPTS`.
        questions: the questions, a table of `PROMPTS`; the names of their sets are the sources.
        spec: the rule that decides whether a prompt contains a question.
        frames: the frames of prompts and questions.
    """
    index, counts = Questions(questions, spec, frames), Counter[tuple[str, str]]()
    for batch in batches:
        sources = batch.column("source").to_pylist()
        counts.update((overlap.evaluation_set, sources[overlap.row]) for overlap in index.find_overlaps(batch))
    return counts
