"""Finds frames: text that many prompts of a source share around their own text, such as templates, examples and rules.

    a sample of each source ─► its common n-grams ─► paths of n-grams that nearly always follow each other
                            ─► frames: the paths whose neighbours differ from prompt to prompt

Copies of one question with small edits also share most of their n-grams, but no frame: at each of their words, most of
them agree. Genome assembly tells repeats from copies with errors in the same way (Pevzner, Tang and Waterman 2001,
https://doi.org/10.1073/pnas.171285098).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.tables import texts
from tasks.tables.schemas import PROMPTS

NGRAM = 5
"""Number of words in an n-gram of a frame."""
SAMPLE = 1024
"""Maximum number of prompts of a source that are searched for frames."""
SHARE = 0.02
"""Minimum share of the sampled prompts that contain an n-gram of a frame."""
FEWEST = 8
"""Minimum number of the sampled prompts that contain an n-gram of a frame."""
ROUNDS = 2
"""Number of searches. The second finds the parts that only some variants of a frame have, once the rest is removed."""
FRAMED = pa.schema([PROMPTS.field(name) for name in ("source", "prompt_id", "messages")])
"""The columns of `PROMPTS` that frames are found in."""


class Frames:
    """The frames of prompts, and the prompts' own words outside of them."""

    def __init__(self, rounds: Sequence[texts.Hashes] = ()) -> None:
        """Create the frames from their n-grams.

        Args:
            rounds: n-grams of words, one array for each search. Each search was made without the words of the earlier
                ones.
        """
        self._rounds = [np.unique(ngrams) for ngrams in rounds if len(ngrams)]

    def own(self, words: texts.Hashes, offsets: texts.Offsets) -> texts.Mask:
        """Return for each word whether it belongs to no frame.

        Args:
            words: hashes of the words of all texts (`tasks.tables.texts.words`).
            offsets: the index of the first word of each text, then the number of words.
        """
        own = np.ones(len(words), bool)
        for ngrams in self._rounds:
            own[own] = _find_uncovered(*texts.selected(words, offsets, own), ngrams)
        return own


def find_frames(batches: Iterable[pa.Table], templates: Iterable[str] = ()) -> Frames:
    """Return the frames that many prompts share, and the frames that `templates` put around prompts.

    The result does not depend on the order of the prompts. At most 2 * `SAMPLE` prompts of each source are in memory.

    Args:
        batches: tables with the columns of `FRAMED`.
        templates: templates of sources, with `{prompt}` and `{tests}` in the place of a row's own text.
    """
    samples: dict[str, _Sample] = {}
    for batch in batches:
        for source in pc.unique(batch.column("source")).to_pylist():
            own = batch.filter(pc.equal(batch.column("source"), source))
            samples.setdefault(source, _Sample()).add(own)
    rounds: list[list[texts.Hashes]] = [[_collect_template_ngrams(templates)], *([] for _ in range(1, ROUNDS))]
    for _, sample in sorted(samples.items()):
        words, offsets = sample.words()
        for frames in rounds:
            frames.append(_find_frame_ngrams(words, offsets))
            words, offsets = texts.selected(words, offsets, _find_uncovered(words, offsets, frames[-1]))
    return Frames([np.concatenate([np.empty(0, np.uint64), *frames]) for frames in rounds])


class _Sample:
    """A random sample of prompts: the prompts with the smallest ids, which are hashes, whatever their order."""

    def __init__(self) -> None:
        self._tables: list[pa.Table] = []
        self._rows = 0
        self._last: str | None = None

    def add(self, prompts: pa.Table) -> None:
        if self._last is not None:
            prompts = prompts.filter(pc.less(prompts.column("prompt_id"), self._last))
        self._tables.append(prompts.select(["prompt_id", "messages"]))
        self._rows += prompts.num_rows
        if self._rows > 2 * SAMPLE:
            self._shrink()

    def words(self) -> tuple[texts.Hashes, texts.Offsets]:
        """Return the words of the sampled prompts and their offsets. Prompts with equal texts count once."""
        self._shrink()
        return texts.words(texts.extract_questions(self._tables[0].column("messages")).unique())

    def _shrink(self) -> None:
        table = pa.concat_tables(self._tables).sort_by("prompt_id").slice(0, SAMPLE).combine_chunks()
        self._tables, self._rows = [table], table.num_rows
        if table.num_rows == SAMPLE:
            self._last = table.column("prompt_id")[-1].as_py()


def _collect_template_ngrams(templates: Iterable[str]) -> texts.Hashes:
    """Return the n-grams of the parts of templates before, between and after the placeholders."""
    parts = sorted({part for template in templates for part in re.split(r"\{prompt\}|\{tests\}", template)})
    words, offsets = texts.words(texts.normalize(pa.array(parts, pa.string())))
    runs, starts = texts.ngrams(words, offsets, NGRAM)
    # A part with fewer words has one n-gram, which is padded and found nowhere else.
    return runs[np.repeat(np.diff(offsets) >= NGRAM, np.diff(starts))]


def _find_uncovered(words: texts.Hashes, offsets: texts.Offsets, ngrams: texts.Hashes) -> texts.Mask:
    """Return for each word whether it is in none of `ngrams`, which are sorted."""
    own = np.ones(len(words), bool)
    if len(words) < NGRAM:
        return own
    hits = texts.match_hashes(texts.ngrams(words, np.array([0, len(words)]), NGRAM)[0], ngrams)
    for step in range(1, NGRAM):  # the n-grams that begin in one text and end in the next
        before = offsets[1:-1] - step
        hits[before[(before >= 0) & (before < len(hits))]] = False
    for step in range(NGRAM):
        own[step : step + len(hits)] &= ~hits
    return own


def _find_frame_ngrams(words: texts.Hashes, offsets: texts.Offsets) -> texts.Hashes:
    """Return the n-grams of the frames of one source's prompts."""
    graph = _Graph(*texts.ngrams(words, offsets, NGRAM))
    return graph.ngrams[sorted(node for path in graph.paths() if graph.is_open(path) for node in path)]


class _Graph:
    """The common n-grams of texts as nodes, and the pairs of n-grams that follow each other as edges.

    Attributes:
        ngrams: the n-gram of each node.
    """

    def __init__(self, runs: texts.Hashes, starts: texts.Offsets) -> None:
        prompts = len(starts) - 1
        self.ngrams, nodes = np.unique(runs, return_inverse=True)
        owners = np.repeat(np.arange(prompts), np.diff(starts))
        containing = np.unique(nodes * prompts + owners) // max(prompts, 1)
        counts = np.bincount(containing, minlength=len(self.ngrams))
        self._common = counts >= max(FEWEST, math.ceil(SHARE * prompts))
        self._total = np.bincount(nodes, minlength=len(self.ngrams))
        # The edge of a text's end leads to the node -1, as does that of its beginning in the opposite direction.
        before, after = np.r_[-1, nodes[:-1]], np.r_[nodes[1:], -1]
        before[starts[:-1][np.diff(starts) > 0]] = -1
        after[starts[1:][np.diff(starts) > 0] - 1] = -1
        self._next, self._previous = (self._find_majority(nodes, other) for other in (after, before))

    def paths(self) -> Iterator[list[int]]:
        """Yield the paths of common nodes that are next to each other in most of their occurrences."""
        for node in np.flatnonzero(self._common).tolist():
            if self._is_linked(self._previous.get(node, -2), node):
                continue
            path = [node]
            while self._is_linked(path[-1], following := self._next.get(path[-1], -2)):
                path.append(following)
            yield path

    def is_open(self, path: Sequence[int]) -> bool:
        """Return True if the texts differ before or after the path: no neighbour is in most of them."""
        return path[0] not in self._previous or path[-1] not in self._next

    def _is_linked(self, node: int, following: int) -> bool:
        return self._next.get(node) == following >= 0 and self._previous.get(following) == node

    def _find_majority(self, nodes: texts.Offsets, others: texts.Offsets) -> dict[int, int]:
        """Return for each common node the neighbour that most of its occurrences have, if there is one."""
        own = self._common[nodes]
        size = len(self.ngrams) + 1
        edges, counts = np.unique(nodes[own] * size + others[own] + 1, return_counts=True)
        node, other = edges // size, edges % size - 1
        most = counts * 2 > self._total[node]
        return dict(zip(node[most].tolist(), other[most].tolist(), strict=True))
