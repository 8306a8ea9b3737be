"""Converts prompts to keys, words and n-grams of words for comparisons.

All functions work on Arrow and numpy arrays, for tables with a million prompts.
"""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Hashes = np.ndarray[tuple[int], np.dtype[np.uint64]]
"""Hashes of words, n-grams or texts, one after the other."""
Offsets = np.ndarray[tuple[int], np.dtype[np.int64]]
"""Index of the first hash of each text, then the number of hashes: `[texts + 1]`, as in an Arrow list array."""
Mask = np.ndarray[tuple[int], np.dtype[np.bool]]
"""A truth value for each of some words or hashes."""

WORDS = 2**16
"""Number of words whose hashes are kept for the next batch."""
SPARE_BITS = 6
"""Bits of the table in `match_hashes`, in addition to the bits of the hashes' number: one in 64 others is marked."""
MOST_BITS = 24
"""Maximum number of bits of that table, which then has 16 MiB."""
KEY_BYTES = 16
"""Number of bytes in the key of a prompt."""
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_SPACE = 32
_NOT_WORDS = r"[^\p{L}\p{M}\p{N}]+"
_ALONE = r"([\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}])"
"""Letters of scripts without spaces between words. Each letter counts as a word."""
_WORD_BYTES = bytes(byte if chr(byte).isalnum() or byte > 127 else _SPACE for byte in range(256))
"""For each byte of text in lower case: a space, if it is an ASCII character that is not part of a word."""
_ARITHMETIC_BYTES = bytes(byte if chr(byte) in "0123456789+<=>|~*/^!%()[]{}-" else _SPACE for byte in range(256))
"""For each ASCII character: a space, unless it is a number, operator or bracket (`_NOT_ARITHMETIC`)."""
_THOUSANDS = r"(\p{N}),(\p{N}{3})"
_HYPHEN = r"(\p{L})-(\p{L})"
_IRREGULAR = r"\s\s|[^\S ]|[\p{Zl}\p{Zp}\x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{202F}\x{205F}\x{3000}]"
"""White space other than single spaces."""
_SUPERSCRIPT = r"([\x{B2}\x{B3}\x{B9}\x{2B0}-\x{2B8}\x{2E0}-\x{2E4}\x{1D2C}-\x{1D61}\x{2070}-\x{207F}]+)"
_SUBSCRIPT = r"([\x{1D62}-\x{1D6A}\x{2080}-\x{209C}]+)"
_UNIT = r"\d\s?([a-zµμ]{0,2}[A-ZΩ][A-Za-zΩ]{0,2})(?![A-Za-z])"
"""A number and up to three letters with a capital: milliwatts and megawatts differ in case."""
_BLOCK = r"[:{][ \t]*\r?\n[ \t]*\S"
"""A line of code that begins a block."""
_HAS_MARKS = r"\d\s?[a-zµμ]{0,2}[A-ZΩ]|" + _BLOCK
"""The beginning of such a unit, or a block."""
_NOT_ARITHMETIC = r"[^\p{N}\p{Sm}*/^!%()\[\]{}-]+"


def compute_prompt_keys(messages: pa.ChunkedArray) -> list[bytes]:
    """Return `KEY_BYTES` bytes for each prompt, equal for equal turns regardless of case, white space and verifier.

    The case of units after a number counts (`5 mW`, `5 MW`), and so does the nesting of lines of code.

    Args:
        messages: the column `messages` of a table of `PROMPTS`.
    """
    keys: list[bytes] = []
    for chunk in messages.chunks:
        written = _extract_contents(chunk)
        content = _normalize_spaces(pc.utf8_lower(_compose(written)))
        marks, has_marks = extract_units_and_blocks(written)
        if len(marks):
            marked = pc.binary_join_element_wise(content.filter(has_marks), marks, "\x1f")
            content = pc.replace_with_mask(content, has_marks, marked)
        turns = pc.binary_join_element_wise(pc.struct_field(chunk.flatten(), "role"), content, ": ")
        keys += [
            hashlib.blake2b(text.encode(), digest_size=KEY_BYTES).digest()
            for text in _join_turns(chunk, turns, "\n").to_pylist()
        ]
    return keys


def extract_questions(messages: pa.ChunkedArray) -> pa.Array:
    """Return the text of each prompt in lower case, without its system message, which many prompts usually share."""
    chunks = []
    for chunk in messages.chunks:
        is_system = pc.equal(pc.struct_field(chunk.flatten(), "role"), "system")
        content = pc.if_else(is_system, "", _extract_contents(chunk))
        chunks.append(_join_turns(chunk, normalize(content), "\n"))
    return pa.chunked_array(chunks, pa.string()).combine_chunks()


def extract_last_contents(messages: pa.ChunkedArray) -> pa.Array:
    """Return the last message of each prompt as it is written."""
    chunks = []
    for chunk in messages.chunks:
        ends = np.cumsum(pc.list_value_length(chunk).to_numpy())
        chunks.append(_extract_contents(chunk).take(pa.array(ends - 1)))
    return pa.chunked_array(chunks, pa.string()).combine_chunks()


def normalize(texts: pa.Array) -> pa.Array:
    """Return the texts in lower case, with compatible characters replaced by one of them (NFKC).

    Superscripts and subscripts are marked before: 3² becomes 3^2, and x₂ becomes x[2].
    """
    plain = pc.string_is_ascii(texts)
    if not pc.all(plain, min_count=0).as_py():
        marked = pc.replace_substring_regex(texts.filter(pc.invert(plain)), _SUPERSCRIPT, r"^\1")
        marked = pc.replace_substring_regex(marked, _SUBSCRIPT, r"[\1]")
        texts = pc.replace_with_mask(texts, pc.invert(plain), marked)
    return pc.utf8_lower(pc.utf8_normalize(texts, "NFKC"))


def extract_units_and_blocks(texts: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return what tells texts apart that only differ in case or white space, and which texts have it.

    This is the case of units after a number, and the depth of each line if the text has blocks of code.
    """
    may_have = pc.match_substring_regex(texts, _HAS_MARKS).to_numpy(zero_copy_only=False)
    marks = [
        (" ".join(re.findall(_UNIT, text)), _measure_depths(text))
        for text in texts.filter(pa.array(may_have)).to_pylist()
    ]
    has_marks = may_have.copy()
    has_marks[may_have] = [bool(units or depths) for units, depths in marks]
    return pa.array(["\x1f".join(mark) for mark in marks if any(mark)], pa.string()), pa.array(has_marks)


def _measure_depths(text: str) -> str:
    """Return the depth of each line in blocks of code, whatever the width of an indentation."""
    if not re.search(_BLOCK, text):
        return ""
    widths = [0]
    depths = []
    for line in filter(str.strip, text.expandtabs(4).splitlines()):
        width = len(line) - len(line.lstrip())
        while width < widths[-1]:
            widths.pop()
        if width > widths[-1]:
            widths.append(width)
        depths.append(str(len(widths) - 1))
    return "".join(depths).strip("0")


def words(texts: pa.Array) -> tuple[Hashes, Offsets]:
    """Return a hash of each word in each text, and the offsets: word i of text t is `hashes[offsets[t] + i]`."""
    flat, offsets = _split(texts)
    coded = flat.dictionary_encode()
    known = np.array([_word_hash(word) for word in coded.dictionary.to_pylist()], np.uint64)
    hashes = known[coded.indices.to_numpy()] if len(flat) else np.empty(0, np.uint64)
    return hashes, offsets


def word_counts(texts: pa.Array) -> Offsets:
    """Return the number of words in each text."""
    return np.diff(_split(texts)[1])


def ngrams(hashes: Hashes, offsets: Offsets, n: int, *, open_ends: bool = False) -> tuple[Hashes, Offsets]:
    """Return a hash of each n-gram of words in each text, in order, and the offsets.

    A text with fewer than `n` words has one n-gram, which is the whole text.

    Args:
        hashes: hashes of the words of all texts (`words`).
        offsets: index of the first word of each text, then the number of words.
        n: number of words in an n-gram.
        open_ends: let n-grams extend beyond the ends of a text, so that its first and last words are also in `n`
            n-grams.
    """
    counts = np.diff(offsets)
    beyond = n - 1 if open_ends else 0
    sizes = np.where(counts, np.maximum(counts + 2 * beyond, n), 0)
    starts = _compute_offsets(sizes)
    flat = np.zeros(int(starts[-1]) + n, np.uint64)
    flat[np.repeat(starts[:-1] + beyond - offsets[:-1], counts) + np.arange(len(hashes))] = hashes
    runs = _compute_polynomials(flat, n)[: int(starts[-1])]
    runs ^= runs >> np.uint64(31)
    runs *= _MULTIPLIER
    runs ^= runs >> np.uint64(29)
    runs_of_text = np.where(counts, sizes - n + 1, 0)
    first = _compute_offsets(runs_of_text)
    return runs[np.repeat(starts[:-1] - first[:-1], runs_of_text) + np.arange(int(first[-1]))], first


def _compute_polynomials(values: Hashes, n: int) -> Hashes:
    """Return for each n values in a row the sum of each times a power of `_MULTIPLIER`, of the last times 1."""
    sums, length = values.copy(), 1
    for bit in bin(n)[3:]:  # doubles the length, as in exponentiation by squaring
        power = np.uint64(pow(int(_MULTIPLIER), length, 2**64))
        sums = sums[: len(sums) - length] * power + sums[length:]
        length *= 2
        if bit == "1":
            sums = sums[:-1] * _MULTIPLIER + values[length:]
            length += 1
    return sums


def selected(hashes: Hashes, offsets: Offsets, chosen: Mask) -> tuple[Hashes, Offsets]:
    """Return the words of each text that are `chosen`, and their offsets.

    Args:
        hashes: hashes of the words of all texts (`words`).
        offsets: index of the first word of each text, then the number of words.
        chosen: for each word, whether it is returned.
    """
    if chosen.all():
        return hashes, offsets
    return hashes[chosen], _compute_offsets(chosen)[offsets]


def match_hashes(hashes: Hashes, known: Hashes) -> Mask:
    """Return for each hash whether it is in `known`, which is sorted.

    Only hashes with the lowest bits of a known one are searched for, because looking bits up in a table is faster.
    """
    if not len(known):
        return np.zeros(len(hashes), bool)
    bits = min(len(known).bit_length() + SPARE_BITS, MOST_BITS)
    lowest = np.uint64((1 << bits) - 1)
    table = np.zeros(1 << bits, bool)
    table[known & lowest] = True
    equal: Mask = table[hashes & lowest]
    candidates = hashes[equal]
    at = np.minimum(np.searchsorted(known, candidates), len(known) - 1)
    equal[equal] = known[at] == candidates
    return equal


def hash_formulas(texts: pa.Array) -> Hashes:
    """Return a hash of the formula in each text: its numbers, operators and brackets, in order."""
    divided = pc.match_substring_regex(texts, f"{_THOUSANDS}|{_HYPHEN}")
    plain = pc.replace_substring_regex(texts.filter(divided), _THOUSANDS, r"\1\2")
    plain = pc.replace_substring_regex(plain, _HYPHEN, r"\1\2")
    plain = pc.replace_with_mask(texts, divided, plain)
    has_others = pc.invert(pc.string_is_ascii(plain))
    others = pc.replace_substring_regex(plain.filter(has_others), _NOT_ARITHMETIC, " ")
    signs = pc.replace_with_mask(_replace_bytes(plain, _ARITHMETIC_BYTES), has_others, others)
    return np.array([_hash(" ".join(text.split())) for text in signs.to_pylist()], np.uint64)


def merge_hashes(first: Hashes, second: Hashes) -> Hashes:
    """Return one hash for each pair of hashes."""
    return (first * _MULTIPLIER) ^ second


def hash_texts(texts: pa.Array) -> Hashes:
    """Return a hash of each text."""
    return np.array([_hash(text) for text in texts.to_pylist()], np.uint64)


def _split(texts: pa.Array) -> tuple[pa.StringArray, Offsets]:
    """Return the words of all texts, which are in lower case, and the offsets."""
    listed = pc.ascii_split_whitespace(_replace_separators(texts))
    flat = listed.flatten()
    is_word = pc.not_equal(flat, "")
    return flat.filter(is_word), _compute_offsets(is_word.to_numpy(zero_copy_only=False))[listed.offsets.to_numpy()]


def _replace_separators(texts: pa.Array) -> pa.Array:
    """Return the texts, which are in lower case, with spaces in the place of everything that is not part of a word."""
    has_others = pc.invert(pc.string_is_ascii(texts))
    others = pc.replace_substring_regex(texts.filter(has_others), _ALONE, r" \1 ")
    others = pc.replace_substring_regex(others, _NOT_WORDS, " ")
    return pc.replace_with_mask(_replace_bytes(texts, _WORD_BYTES), has_others, others)


def _replace_bytes(texts: pa.StringArray, table: bytes) -> pa.StringArray:
    """Return the texts with other bytes, by `table`. This is much faster than a regular expression."""
    _, offsets, letters = texts.buffers()
    if letters is None:
        return texts
    translated = pa.py_buffer(letters.to_pybytes().translate(table))
    return pa.StringArray.from_buffers(len(texts), offsets, translated, offset=texts.offset)


def _extract_contents(messages: pa.ListArray) -> pa.Array:
    return pc.struct_field(messages.flatten(), "content").cast(pa.string())  # join kernels support no other type


def _compose(texts: pa.Array) -> pa.Array:
    """Return the texts with letters and their accents as one character each (NFC)."""
    has_others = pc.invert(pc.string_is_ascii(texts))
    return pc.replace_with_mask(texts, has_others, pc.utf8_normalize(texts.filter(has_others), "NFC"))


def _normalize_spaces(texts: pa.Array) -> pa.Array:
    """Return the texts without white space at their ends and with single spaces inside."""
    # Searching for texts that need a change is ten times as fast as rewriting every space.
    irregular = pc.match_substring_regex(texts, _IRREGULAR)
    rewritten = pc.binary_join(pc.utf8_split_whitespace(texts.filter(irregular)), " ")
    return pc.utf8_trim_whitespace(pc.replace_with_mask(texts, irregular, rewritten))


def _join_turns(messages: pa.ListArray, turns: pa.Array, separator: str) -> pa.Array:
    """Return the turns of each prompt as one text."""
    counts = pc.list_value_length(messages).to_numpy()
    return pc.binary_join(pa.ListArray.from_arrays(pa.array(_compute_offsets(counts), pa.int32()), turns), separator)


def _compute_offsets(counts: Offsets | Mask) -> Offsets:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())


_word_hash = lru_cache(maxsize=WORDS)(_hash)
