"""Which prompts are the same, or nearly so: exactly by their text, nearly by MinHash.

    tables of prompts ─► `Comparison.add` ─► a key and a signature of each ─► `Comparison.found`: who is like whom

A signature is 126 numbers of 4 bytes (Broder 1997): the share of them that two prompts have in common estimates the
Jaccard similarity of their sets of runs of words. Only prompts that agree in all numbers of some band are compared
(locality-sensitive hashing; Leskovec, Rajaraman and Ullman, Mining of Massive Datasets, section 3.4), each with the
first few of its band that are kept, so that time grows with the number of prompts and not with its square.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.cleaning.spec import NearDuplicates
from tasks.tables import texts

HASHES = 126
"""Of a signature: 21 bands of 6, 18 of 7, 14 of 9."""
RECALL = 0.99
"""Of pairs as alike as the threshold, the share that some band brings together."""
LEADERS = 8
"""Prompts of a band that a later one is compared with."""
SEED = 42

Positions = np.ndarray[tuple[int], np.dtype[np.int64]]
Signatures = np.ndarray[tuple[int, int], np.dtype[np.uint32]]


@dataclass(frozen=True)
class Likeness:
    """Who is like whom, by place in the order in which prompts were added.

    Attributes:
        stays: the place of the prompt that stays in the place of this one; its own where it stays itself.
        leader: the place of the first prompt that this one is like, whether it stays itself or not.
        similarity: to the leader; 1 where they are the same.
    """

    stays: Positions
    leader: Positions
    similarity: np.ndarray[tuple[int], np.dtype[np.float32]]


class Comparison:
    """Collects what prompts are compared by: about 550 bytes of each."""

    def __init__(self, near: NearDuplicates | None, *, by_text: bool = True) -> None:
        """Start without prompts.

        Args:
            near: how near duplicates are found; None: not at all.
            by_text: the same prompt is one of the same text; otherwise, of the same `prompt_id`.
        """
        self._near, self._by_text = near, by_text
        self._keys: list[bytes] = []
        self._texts = self._keys if by_text else []
        self._signatures = bytearray()  # grows in place, where an array would be there twice
        self._apart: list[texts.Hashes] = []

    def add(self, prompts: pa.Table) -> None:
        """Take in some prompts: a table of `PROMPTS`."""
        self._texts += texts.prompt_keys(prompts.column("messages"))
        if not self._by_text:
            self._keys += [identity.encode() for identity in prompts.column("prompt_id").to_pylist()]
        if self._near is not None and prompts.num_rows:
            asked = texts.questions(prompts.column("messages"))
            self._signatures += signatures(
                *texts.ngrams(*texts.words(asked), self._near.ngram, open_ends=True)
            ).tobytes()
            self._apart.append(_apart(prompts, asked, self._near))

    def found(self, order: Positions) -> Likeness:
        """Who is like whom; of those that are alike, the first in `order` stays.

        Args:
            order: the places of all prompts.
        """
        same, similarity = _same(self._keys, order), np.ones(len(order), np.float32)
        leader = same.copy()
        if self._near is not None and self._signatures:
            alone = order[same[order] == order]
            found = np.frombuffer(self._signatures, np.uint32).reshape(-1, HASHES)
            near = _Near(found, np.concatenate(self._apart), self._near.threshold)
            for place, other, share in near.pairs(alone):
                leader[place], similarity[place] = other, share
            # What is the same as a prompt that has a leader has that one.
            leader, similarity = leader[leader], similarity[same]
        together = self._near is not None and self._near.action == "keep_together"
        return Likeness(same if together else leader, leader, similarity)

    def are_the_same(self, place: int, other: int) -> bool:
        """Whether two prompts are the same, and not only alike."""
        return self._keys[place] == self._keys[other]

    def text_key(self, place: int) -> bytes:
        """The key of a prompt's text (`tasks.tables.texts.prompt_keys`)."""
        return self._texts[place]


def signatures(ngrams: texts.Hashes, offsets: texts.Offsets) -> Signatures:
    """The MinHash signature of each text, `[texts, HASHES]`.

    Args:
        ngrams, offsets: what `tasks.tables.texts.ngrams` gives.
    """
    from rensa import RMinHash

    matrix = RMinHash.digest_matrix_from_flat_token_hashes(ngrams, offsets.astype(np.uint64), HASHES, SEED)
    return np.array(matrix.to_rows(), np.uint32).reshape(-1, HASHES)


def rows_of_a_band(threshold: float) -> int:
    """The most hashes that a band may have, for `RECALL` of the pairs as alike as `threshold` to share one."""
    return max(rows for rows in range(1, HASHES + 1) if 1 - (1 - threshold**rows) ** (HASHES // rows) >= RECALL)


def _apart(prompts: pa.Table, asked: pa.Array, near: NearDuplicates) -> texts.Hashes:
    """What keeps prompts apart however alike their words are."""
    apart = texts.arithmetic(asked) if near.same_numbers else np.zeros(len(asked), np.uint64)
    constrained = pc.equal(prompts.column("domain"), "precise_if")
    truths = pc.if_else(constrained, prompts.column("ground_truth"), "").combine_chunks()
    return texts.combined(apart, texts.text_hashes(truths))


def _same(keys: list[bytes], order: Positions) -> Positions:
    """For each place, the first in `order` with the same key."""
    first_of: dict[bytes, int] = {}
    first = np.empty(len(order), np.int64)
    for place in order.tolist():
        first[place] = first_of.setdefault(keys[place], place)
    return first


class _Near:
    def __init__(self, found: Signatures, apart: texts.Hashes, threshold: float) -> None:
        self._signatures, self._apart, self._threshold = found, apart, threshold
        self._rows = rows_of_a_band(threshold)

    def pairs(self, order: Positions) -> list[tuple[int, int, float]]:
        """Place, the place of the prompt that stays, and how alike they are, for each that is like an earlier one."""
        # Texts without a word have no runs, and are like nothing.
        order = order[self._signatures[order, 0] != np.iinfo(np.uint32).max]
        groups = self._groups(order)
        members = np.flatnonzero((groups >= 0).any(axis=1))
        leaders: dict[int, list[int]] = defaultdict(list)
        found = []
        for place, row in zip(order[members].tolist(), groups[members], strict=True):
            own = row[row >= 0].tolist()
            candidates = sorted({each for group in own for each in leaders[group]})
            leader, share = self._most_alike(place, candidates)
            if share >= self._threshold:
                found.append((place, leader, share))
                continue
            for group in own:
                if len(leaders[group]) < LEADERS:
                    leaders[group].append(place)
        return found

    def _most_alike(self, place: int, candidates: list[int]) -> tuple[int, float]:
        if not candidates:
            return place, 0.0
        shares = (self._signatures[candidates] == self._signatures[place]).mean(axis=1)
        best = int(shares.argmax())
        return candidates[best], float(shares[best])

    def _groups(self, order: Positions) -> np.ndarray[tuple[int, int], np.dtype[np.int32]]:
        """Which prompts agree in a band: a number for each place of `order` and band, -1 where none agrees with it."""
        bands = HASHES // self._rows
        groups = np.full((len(order), bands), -1, np.int32)
        numbered = 0
        for band in range(bands):
            keys = self._apart[order]
            for column in range(band * self._rows, (band + 1) * self._rows):
                keys = texts.combined(keys, self._signatures[order, column].astype(np.uint64))
            _, group, sizes = np.unique(keys, return_inverse=True, return_counts=True)
            shared = sizes[group] > 1
            groups[shared, band] = group[shared] + numbered
            numbered += len(sizes)
        return groups
