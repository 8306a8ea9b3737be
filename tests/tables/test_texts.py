"""What prompts are compared by."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.tables import texts as stage
from tasks.tables.schemas import MESSAGES
from tasks.tables.texts import (
    compute_prompt_keys,
    extract_questions,
    hash_formulas,
    hash_texts,
    match_hashes,
    ngrams,
    word_counts,
    words,
)

ALPHABET = st.text(st.sampled_from("aB 1.,\n-é漢"), max_size=12)


def column(*texts, size=3):
    """The messages of one prompt each, in chunks, of which none begins at its array's beginning."""
    rows = [[{"role": "user", "content": "left out"}], *([{"role": "user", "content": text}] for text in texts)]
    whole = pa.array(rows, MESSAGES).slice(1)
    return pa.chunked_array([whole.slice(start, size) for start in range(0, max(len(whole), 1), size)])


@pytest.mark.long
@settings(deadline=None)
@given(st.lists(ALPHABET, max_size=8), st.integers(1, 4))
def test_words_and_their_runs_are_those_of_each_text_alone(texts, n):
    hashes, offsets = words(extract_questions(column(*texts)))
    runs, starts = ngrams(hashes, offsets, n)
    assert len(offsets) == len(starts) == len(texts) + 1
    for row, text in enumerate(texts):
        own, _ = words(pa.array([text.lower()]))
        assert hashes[offsets[row] : offsets[row + 1]].tolist() == own.tolist()
        count = len(own)
        expected = [tuple(own[at : at + n]) for at in range(max(count - n + 1, min(count, 1)))]
        found = runs[starts[row] : starts[row + 1]].tolist()
        assert len(found) == len(expected)
        assert len(set(found)) == len(set(expected))


@pytest.mark.long
@settings(deadline=None)
@given(st.lists(ALPHABET, max_size=8), st.integers(1, 4))
def test_with_open_ends_each_word_is_in_as_many_runs_as_a_run_has_words(texts, n):
    hashes, offsets = words(extract_questions(column(*texts)))
    runs, starts = ngrams(hashes, offsets, n, open_ends=True)
    counts = np.diff(offsets)
    assert np.diff(starts).tolist() == np.where(counts, counts + n - 1, 0).tolist()
    closed, inner = ngrams(hashes, offsets, n)
    for row in np.flatnonzero(counts >= n):
        own = runs[starts[row] + n - 1 : starts[row + 1] - (n - 1)]
        assert own.tolist() == closed[inner[row] : inner[row + 1]].tolist()


@settings(deadline=None)
@given(st.lists(ALPHABET, max_size=8))
def test_a_prompts_key_depends_on_its_own_text_alone(texts):
    keys = compute_prompt_keys(column(*texts))
    assert keys == [key for text in texts for key in compute_prompt_keys(column(text))]


def test_the_turns_and_their_roles_belong_to_the_key():
    chats = [
        [("user", "a"), ("user", "b")],
        [("user", "a b")],
        [("user", "a"), ("assistant", "b")],
        [("user", "ab")],
    ]
    rows = [[{"role": role, "content": content} for role, content in chat] for chat in chats]
    assert len(set(compute_prompt_keys(pa.chunked_array([pa.array(rows, MESSAGES)])))) == len(chats)


def test_marks_divide_words_and_do_not_belong_to_them():
    texts = ["the well-known x=1", "The WELL known, x 1!", "नमस्ते दुनिया"]
    hashes, offsets = words(extract_questions(column(*texts)))
    assert np.diff(offsets).tolist() == [5, 5, 2]
    assert hashes[:5].tolist() == hashes[5:10].tolist()


def test_arithmetic_is_a_text_without_its_letters():
    same = hash_formulas(pa.array(["add 1,000 to (2)", "take 1000 and well-known (2)", "1000 (2)", "1000 2"]))
    assert same[0] == same[1] == same[2] != same[3]


def test_white_space_of_any_kind_counts_as_one_space():
    texts = [" What  is\t1?\r\n", "What is 1?", "what\u00a0is\u20031?", "WHAT\u3000IS 1?\u2028", "What\x0bis\x0c1?"]
    assert len(set(compute_prompt_keys(column(*texts)))) == 1
    assert compute_prompt_keys(column("Whatis 1?")) != compute_prompt_keys(column("What is 1?"))
    assert compute_prompt_keys(column(" ")) == compute_prompt_keys(column(""))


def test_an_ngram_is_the_sum_of_its_words_times_powers_of_one_number():
    hashes = np.random.default_rng(0).integers(0, 2**63, 40).astype(np.uint64)
    multiplier, every = int(stage._MULTIPLIER), 2**64
    for n in range(1, 18):
        runs, _ = ngrams(hashes, np.array([0, 40]), n)
        expected = []
        for start in range(40 - n + 1):
            run = 0
            for word in hashes[start : start + n].tolist():
                run = (run * multiplier + word) % every
            run = (run ^ run >> 31) * multiplier % every
            expected.append(run ^ run >> 29)
        assert runs.tolist() == expected


def varied(count):
    """Texts of digits, operators, separators, letters with and without case, and other white space."""
    letters = "12 3,45.67-aBéç漢²₃½\u2212\u00d7+<=>|~*/^!%()[]{}:;$\\\n\t\x00\x1f\u00a0\u2028"
    random = np.random.default_rng(1)
    yield from ("", "1,234,567", "a-b-c", "well-known 1,000-2", "12,34,567 - 8", "x\x1f=\x1c2")
    yield "\u0661,\u0662\u0663\u0664"  # a number of four Arabic digits
    for _ in range(count):
        yield "".join(random.choice(list(letters), random.integers(0, 60)))


def test_arithmetic_is_that_of_its_expressions_for_text_of_any_kind():
    asked = pa.array(varied(500))
    plain = pc.replace_substring_regex(asked, r"(\p{N}),(\p{N}{3})", r"\1\2")
    plain = pc.replace_substring_regex(plain, r"(\p{L})-(\p{L})", r"\1\2")
    signs = pc.replace_substring_regex(plain, r"[^\p{N}\p{Sm}*/^!%()\[\]{}-]+", " ")
    assert hash_formulas(asked).tolist() == hash_texts(pc.utf8_trim_whitespace(signs)).tolist()
    for part in (asked.slice(3), asked.slice(len(asked))):
        assert hash_formulas(part).tolist() == hash_formulas(pa.array(part.to_pylist(), pa.string())).tolist()


def test_words_are_counted_as_they_are_divided():
    asked = extract_questions(column(*varied(200)))
    assert word_counts(asked).tolist() == np.diff(words(asked)[1]).tolist()
    assert word_counts(pa.array(["well-known: x² 漢字", "", "..."])).tolist() == [5, 0, 0]


@pytest.mark.parametrize("known", [0, 1, 40, 5000])
def test_hashes_are_found_among_any_number_of_known_ones(known):
    random = np.random.default_rng(known)
    sought = random.integers(0, 2**63, 20_000).astype(np.uint64)
    found = np.unique(np.r_[sought[: known // 2], random.integers(0, 2**63, known - known // 2).astype(np.uint64)])
    assert match_hashes(sought, found).tolist() == np.isin(sought, found).tolist()
