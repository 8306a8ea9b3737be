"""Finds duplicate prompts by their text, and near duplicates by MinHash.

    prompts ─► `Comparison.add` ─► a key and a signature of each ─► `Comparison.find_duplicates` ─► the duplicates

A signature consists of 126 numbers of 4 bytes (Broder 1997). The share of equal numbers of two prompts estimates the
Jaccard similarity of their sets of n-grams. Only prompts that agree in all numbers of some band are compared
(locality-sensitive hashing; Leskovec, Rajaraman and Ullman, Mining of Massive Datasets, section 3.4). Each is only
compared with the first few prompts of its band that are kept, so that the time is not quadratic in the number of
prompts.

Signatures are of the prompts' own words, without the frames that many prompts share (`tasks.cleaning.frames`): prompts
are near duplicates if their own words are, and if whole prompts are, too.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.cleaning.frames import Frames
from tasks.cleaning.spec import NearDuplicates
from tasks.tables import texts

HASHES = 126
"""Number of hashes in a signature: 21 bands of 6, 18 of 7, 14 of 9."""
RECALL = 0.99
"""Share of the pairs with a similarity equal to the threshold that agree in some band."""
LEADERS = 8
"""Maximum number of prompts of a band that a later one is compared with."""
SEED = 42
"""Seed of the hash functions of MinHash."""
COMPARED = ("prompt_id", "messages", "domain", "ground_truth")
"""The columns of `PROMPTS` that are compared."""

Indices = np.ndarray[tuple[int], np.dtype[np.int64]]
"""Indices of prompts, from 0, in the order of addition to a `Comparison`."""
Signatures = np.ndarray[tuple[int, int], np.dtype[np.uint32]]
"""MinHash signatures, `[prompts, HASHES]`."""


@dataclass(frozen=True)
class Likeness:
    """The duplicates among the prompts of a `Comparison`, as arrays over all prompts, `[prompts]`.

    Attributes:
        stays: the index of the prompt that is kept instead of this one; its own index if it is kept.
        leader: the index of the first prompt that this one is similar to, even if this one is kept.
        similarity: the estimated similarity to the leader; 1 for exact duplicates.
    """

    stays: Indices
    leader: Indices
    similarity: np.ndarray[tuple[int], np.dtype[np.float32]]


class Comparison:
    """Collects a key and a signature of each prompt, about 550 bytes, and finds duplicates."""

    def __init__(self, near: NearDuplicates | None, *, by_text: bool = True, frames: Frames | None = None) -> None:
        """Start without prompts.

        Args:
            near: the rule for near duplicates. If None, only exact duplicates are found.
            by_text: if true, prompts with the same text are duplicates; otherwise, prompts with the same `prompt_id`.
            frames: optional. The frames of the prompts. If None, the prompts have none.
        """
        self._near, self._by_text, self._frames = near, by_text, frames or Frames()
        self._keys: list[bytes] = []
        # One list instead of two equal ones; `add` fills both through this name.
        self._texts = self._keys if by_text else []
        self._signatures = bytearray()  # grows in place; an array would need twice the memory
        self._framed, self._sizes = _FramesOfPrompts(), list[Indices]()
        self._apart: list[texts.Hashes] = []

    def add(self, prompts: pa.Table) -> None:
        """Add prompts from a table with the columns `COMPARED`."""
        self._texts += texts.compute_prompt_keys(prompts.column("messages"))
        if not self._by_text:
            self._keys += [identity.encode() for identity in prompts.column("prompt_id").to_pylist()]
        if self._near is not None and prompts.num_rows:
            asked = texts.extract_questions(prompts.column("messages"))
            words, offsets = texts.words(asked)
            own = self._frames.own(words, offsets)
            # With open ends, the first and the last word are in as many n-grams as the others: in a short prompt, each
            # word counts.
            ngrams = texts.ngrams(*texts.selected(words, offsets, own), self._near.ngram, open_ends=True)
            self._signatures += compute_signatures(*ngrams).tobytes()
            self._sizes.append(np.diff(ngrams[1]))
            self._framed.add(*texts.selected(words, offsets, ~own))
            self._apart.append(_compute_apart_hashes(prompts, asked, self._near))

    def find_duplicates(self, order: Indices) -> Likeness:
        """Find the duplicates. The first of them in `order` is kept.

        Args:
            order: the indices of all prompts.
        """
        same, similarity = _find_first_equal(self._keys, order), np.ones(len(order), np.float32)
        leader = same.copy()
        if self._near is not None and self._signatures:
            # One prompt of each group of exact duplicates is enough.
            alone = order[same[order] == order]
            all_signatures = np.frombuffer(self._signatures, np.uint32).reshape(-1, HASHES)
            sizes, apart = np.concatenate(self._sizes), np.concatenate(self._apart)
            near = _Near(all_signatures, sizes, self._framed, apart, self._near)
            for index, other, share in near.pairs(alone):
                leader[index], similarity[index] = other, share
            # An exact duplicate of a prompt with a leader has the same leader.
            leader, similarity = leader[leader], similarity[same]
        # Near duplicates that are kept together all stay; only exact ones are dropped.
        together = self._near is not None and self._near.action == "keep_together"
        return Likeness(same if together else leader, leader, similarity)

    def is_exact_duplicate(self, index: int, other: int) -> bool:
        """Return True for exact duplicates, and False for near duplicates."""
        return self._keys[index] == self._keys[other]

    def get_text_key(self, index: int) -> bytes:
        """Return the key of a prompt's text (`tasks.tables.texts.compute_prompt_keys`)."""
        return self._texts[index]


def compute_signatures(ngrams: texts.Hashes, offsets: texts.Offsets) -> Signatures:
    """Return the MinHash signature of each text, `[texts, HASHES]`.

    Args:
        ngrams: hashes of the n-grams of all texts (`tasks.tables.texts.ngrams`).
        offsets: the index of the first n-gram of each text, and the total number; `[texts + 1]`.
    """
    from rensa import RMinHash

    matrix = RMinHash.digest_matrix_from_flat_token_hashes(ngrams, offsets.astype(np.uint64), HASHES, SEED)
    return np.array(matrix.to_rows(), np.uint32).reshape(-1, HASHES)


def choose_band_size(threshold: float) -> int:
    """Return the largest band size for which `RECALL` of the pairs with similarity `threshold` agree in some band."""
    # Two prompts agree in a band with the probability t^rows, and in some band with 1 - (1 - t^rows)^bands.
    return max(rows for rows in range(1, HASHES + 1) if 1 - (1 - threshold**rows) ** (HASHES // rows) >= RECALL)


def _compute_apart_hashes(prompts: pa.Table, asked: pa.Array, near: NearDuplicates) -> texts.Hashes:
    """Hash the numbers, units, code and constraints of each prompt. Prompts that differ in them are no duplicates."""
    apart = np.zeros(len(asked), np.uint64)
    if near.same_numbers:
        apart = texts.hash_formulas(asked)
        marks, has_marks = texts.extract_units_and_blocks(texts.extract_last_contents(prompts.column("messages")))
        apart[has_marks.to_numpy(zero_copy_only=False)] ^= texts.hash_texts(marks)
    # Two prompts may set the same task under different constraints, which are in their ground truths.
    constrained = pc.equal(prompts.column("domain"), "precise_if")
    truths = pc.if_else(constrained, prompts.column("ground_truth"), "").combine_chunks()
    return texts.merge_hashes(apart, texts.hash_texts(truths))


def _find_first_equal(keys: list[bytes], order: Indices) -> Indices:
    """Return for each prompt the index of the first prompt in `order` with the same key."""
    first_of: dict[bytes, int] = {}
    first = np.empty(len(order), np.int64)
    for index in order.tolist():
        first[index] = first_of.setdefault(keys[index], index)
    return first


class _FramesOfPrompts:
    """The words of each prompt's frame. Prompts with the same frame share one entry."""

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {b"": 0}
        self._words: list[Counter[int]] = [Counter()]
        self._of_prompts: list[Indices] = []

    def add(self, words: texts.Hashes, offsets: texts.Offsets) -> None:
        """Add the frames of further prompts, as words and offsets (`tasks.tables.texts.words`)."""
        numbers = np.zeros(len(offsets) - 1, np.int64)
        for prompt in np.flatnonzero(np.diff(offsets)).tolist():
            frame = words[offsets[prompt] : offsets[prompt + 1]]
            numbers[prompt] = number = self._numbers.setdefault(frame.tobytes(), len(self._numbers))
            if number == len(self._words):
                self._words.append(Counter(frame.tolist()))
        self._of_prompts.append(numbers)

    def numbers(self) -> Indices:
        """Return the number of each prompt's frame. Prompts with equal frames have equal numbers."""
        return np.concatenate(self._of_prompts)

    def words(self, number: int) -> Counter[int]:
        """Return the words of a frame."""
        return self._words[number]


class _Near:
    """Finds near duplicates by their signatures. Prompts with different `apart` hashes are never compared."""

    def __init__(
        self,
        signatures: Signatures,
        sizes: Indices,
        framed: _FramesOfPrompts,
        apart: texts.Hashes,
        near: NearDuplicates,
    ) -> None:
        self._signatures, self._sizes, self._apart, self._near = signatures, sizes, apart, near
        self._framed, self._frame_of = framed, framed.numbers()
        self._rows = choose_band_size(near.threshold)

    def pairs(self, order: Indices) -> list[tuple[int, int, float]]:
        """Return (index, leader, similarity) for each prompt that is similar to an earlier one of `order`."""
        # Texts without a word have no n-grams, and are not similar to anything.
        order = order[self._signatures[order, 0] != np.iinfo(np.uint32).max]
        groups = self._groups(order)
        members = np.flatnonzero((groups >= 0).any(axis=1))
        leaders: dict[int, list[int]] = defaultdict(list)
        pairs = []
        for index, row in zip(order[members].tolist(), groups[members], strict=True):
            own = row[row >= 0].tolist()
            # Sorted, so that the first of equally similar leaders counts, whatever the order of the set.
            candidates = sorted({leader for group in own for leader in leaders[group]})
            leader, share = self._find_most_alike(index, candidates)
            if share >= self._near.threshold:
                pairs.append((index, leader, share))
                continue
            for group in own:
                # The limit keeps the time from growing with the square of the members of a band.
                if len(leaders[group]) < LEADERS:
                    leaders[group].append(index)
        return pairs

    def _find_most_alike(self, index: int, candidates: list[int]) -> tuple[int, float]:
        if not candidates:
            return index, 0.0
        shares = (self._signatures[candidates] == self._signatures[index]).mean(axis=1)
        for number in np.flatnonzero(self._frame_of[candidates] != self._frame_of[index]).tolist():
            shares[number] = self._compare_frames(index, candidates[number], float(shares[number]))
        best = int(shares.argmax())
        return candidates[best], float(shares[best])

    def _compare_frames(self, index: int, other: int, share: float) -> float:
        """Return the similarity of prompts with different frames whose own words have the similarity `share`.

        Words that each frame has instead of words of the other count as own words: they are the values of a template
        with few values. Then the whole prompts are compared. Only the smaller of both similarities counts.
        """
        frame, frame_of_other = (self._framed.words(int(self._frame_of[one])) for one in (index, other))
        alike = (frame & frame_of_other).total()
        only, only_other = frame.total() - alike, frame_of_other.total() - alike
        both = int(self._sizes[index] + self._sizes[other])
        # J = c / (a + b - c), so c = (a + b) J / (1 + J).
        common = both * share / (1 + share)
        # A word that differs is in up to `ngram` n-grams of either prompt, and none of these is in common.
        own = common / (both - common + 2 * self._near.ngram * min(only, only_other))
        return min(own, (common + alike) / (both - common + alike + only + only_other))

    def _groups(self, order: Indices) -> np.ndarray[tuple[int, int], np.dtype[np.int32]]:
        """Return the groups of prompts that agree in a band, `[prompts, bands]`; -1 for a prompt in no group."""
        bands = HASHES // self._rows
        groups = np.full((len(order), bands), -1, np.int32)
        numbered = 0
        for band in range(bands):
            # Beginning with these hashes, prompts that must stay apart never agree in a band.
            keys = self._apart[order]
            for column in range(band * self._rows, (band + 1) * self._rows):
                keys = texts.merge_hashes(keys, self._signatures[order, column].astype(np.uint64))
            _, group, sizes = np.unique(keys, return_inverse=True, return_counts=True)
            # Most prompts are alone in a band. Without them, few groups have to be kept in memory.
            shared = sizes[group] > 1
            # The numbers of all bands are different, so that one dictionary has the leaders of all.
            groups[shared, band] = group[shared] + numbered
            numbered += len(sizes)
        return groups
