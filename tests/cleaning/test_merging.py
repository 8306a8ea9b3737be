"""Of prompts that are the same, or nearly so, the first stays, and each of the others says which one that is."""

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.cleaning.duplicates import HASHES, RECALL, choose_band_size, compute_signatures
from tasks.cleaning.merging import Merger
from tasks.cleaning.spec import DuplicatesSpec, NearDuplicates
from tasks.tables import row_groups
from tasks.tables.parquet import read_batches, read_table, write_batches, write_table
from tasks.tables.schemas import PROMPTS
from tasks.tables.texts import compute_prompt_keys, extract_questions, ngrams, words
from tests.cleaning.frames import edited
from tests.cleaning.prompts import gsm8k, merged, needs_data, prompt, source, table
from tests.examples import examples

LONG = (
    "A farmer takes apples to the market in three carts . Each cart holds a number of boxes that the farmer packed in "
    "the morning , and each box holds as many apples as there are days in a week . On the way a wheel of one cart "
    "breaks , and some of the boxes fall into the river , where nobody finds them again . The farmer sells all of the "
    "others before the evening comes and goes home with an empty purse . How many apples are there ?"
)


def ids(kept):
    return kept.column("prompt_id").to_pylist()


def contents(kept):
    return [messages[-1]["content"] for messages in kept.column("messages").to_pylist()]


def test_one_question_with_two_spellings_of_its_answer_is_one_prompt(tmp_path):
    half = table(prompt("What is half of 1?", truth="1/2"), prompt("What is half of 1?", row=1, truth="0.5"))
    kept, [gone] = merged(tmp_path, [half], ["s"])
    assert kept.column("ground_truth").to_pylist() == ['"1/2"']
    assert gone["kind"] == "duplicate"
    assert (gone["stage"], gone["source"], gone["row"]) == ("cleaning", "s", 1)
    assert gone["clashed_with"] == ids(kept)[0]
    assert gone["prompt_id"] == ids(half)[1]
    assert gone["reason"] == "the same prompt as one of source 's'"
    assert gone["value"] == "What is half of 1?"


@pytest.mark.parametrize(
    ("one", "other", "contradict"),
    [
        ("4", "5", True),
        ("4", "4.0", False),
        ("1/2", "\\frac{1}{2}", False),
        ("$1,000$", "1000", False),
        ("x + 1", "$x+1$", False),
        ("Paris", "Rome", True),
        (["4", "four"], "4", False),
        (["4", "four"], ["5", "five"], True),
        ({"answer": "4", "mode": "gsm8k"}, {"answer": "5", "mode": "gsm8k"}, True),
    ],
)
def test_one_text_with_two_answers_is_a_kind_of_its_own_that_shows_both(tmp_path, one, other, contradict):
    rows = table(prompt("What is 2+2?", truth=one), prompt("what is  2+2?", row=1, truth=other))
    kept, [gone] = merged(tmp_path, [rows], ["s"])
    assert len(kept) == 1
    assert gone["kind"] == ("contradicting_duplicate" if contradict else "duplicate")
    assert ("with another ground truth: " in gone["reason"]) == contradict


def test_the_reason_has_the_answer_that_goes_and_the_one_that_stays(tmp_path):
    rows = table(prompt("What is 2+2?", truth="4"), prompt("what is  2+2?", row=1, truth="5"))
    _, [gone] = merged(tmp_path, [rows], ["s"])
    assert gone["reason"] == "the same prompt as one of source 's', with another ground truth: '5', not '4'"
    near = table(prompt(LONG, truth="4"), prompt(LONG.replace("wheel", "shaft"), row=1, truth="5"))
    _, [gone] = merged(tmp_path, [near], ["s"])
    assert gone["kind"] == "near_duplicate"
    assert gone["reason"].endswith("of source 's', with another ground truth: '5', not '4'")


def test_one_text_for_two_verifiers_is_a_duplicate(tmp_path):
    rows = table(prompt("What is 2+2?", truth="4"), prompt("What is 2+2?", row=1, truth="5", verifier="chat_reference"))
    assert [row["kind"] for row in merged(tmp_path, [rows], ["s"])[1]] == ["duplicate"]


def test_rows_that_differ_in_their_answers_stay_where_rows_are_compared(tmp_path):
    half = table(prompt("What is half of 1?", truth="1/2"), prompt("What is half of 1?", row=1, truth="0.5"))
    kept, gone = merged(tmp_path, [half, half], ["s"], duplicates="row", near_duplicates=None)
    assert (len(kept), len(gone)) == (2, 2)


@pytest.mark.parametrize(
    ("other", "same"),
    [
        ("what  is HALF\nof 1? ", True),
        ("What is\u00a0half of 1?", True),
        ("What was half of 1?", False),
        ("What is half of 10?", False),
        ([{"role": "assistant", "content": "Hi"}, {"role": "user", "content": "What is half of 1?"}], False),
    ],
)
def test_case_and_white_space_make_no_other_prompt(tmp_path, other, same):
    _, gone = merged(tmp_path, [table(prompt("What is half of 1?"), prompt(other, row=1))], ["s"])
    assert bool(gone) == same


def test_a_system_message_makes_another_prompt_unless_it_is_the_same(tmp_path):
    rows = [prompt("Say it.", system=system, row=row) for row, system in enumerate((None, "In French.", "In french."))]
    kept, gone = merged(tmp_path, [table(*rows)], ["s"], near_duplicates=None)
    assert (len(kept), [row["row"] for row in gone]) == (2, [2])


def test_the_first_source_keeps_a_prompt_unless_another_has_priority(tmp_path):
    tables = [source("a", "x?", "only a?"), source("b", "x?", "only b?"), source("c", "X?")]
    kept, gone = merged(tmp_path, tables, ["a", "b", "c"])
    assert kept.column("source").to_pylist() == ["a", "a", "b"]
    assert [(row["source"], row["reason"]) for row in gone] == [
        ("b", "the same prompt as one of source 'a'"),
        ("c", "the same prompt as one of source 'a'"),
    ]
    kept, gone = merged(tmp_path, tables, ["a", "b", "c"], priority=["c", "b"])
    assert kept.column("source").to_pylist() == ["a", "b", "c"]
    assert {row["clashed_with"] for row in gone} == {ids(kept)[2]}


def test_prompts_come_in_the_order_of_the_sources_whatever_file_they_lie_in(tmp_path):
    both = table(*source("c", "1?").to_pylist(), *source("a", "2?").to_pylist())
    kept, _ = merged(tmp_path, [both, source("b", "3?")], ["a", "b", "c"])
    assert contents(kept) == ["2?", "3?", "1?"]


@pytest.mark.parametrize(
    ("other", "kind"),
    [
        (LONG.replace("farmer", "grocer", 1), "near_duplicate"),
        (LONG.replace(" ,", "").replace(" ?", ""), "near_duplicate"),
        (LONG.replace("a week", "a-week"), "near_duplicate"),
        (LONG.replace("three", "3"), None),
        (LONG + " Give the answer as 7 * x .", None),
        (" ".join(reversed(LONG.split())), None),
        (LONG[:100], None),
    ],
)
def test_a_prompt_that_shares_most_runs_of_words_is_a_near_duplicate_unless_its_numbers_differ(tmp_path, other, kind):
    _, gone = merged(tmp_path, [source("a", LONG), source("b", other)], ["a", "b"])
    assert [row["kind"] for row in gone] == ([kind] if kind else [])
    if kind:
        assert gone[0]["reason"].endswith("% like a prompt of source 'a'")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (
            "Write a function to find the perimeter of a triangle .",
            "Write a function to find the perimeter of a square .",
        ),
        ("Is it the sum of two squares or not ?", "Is it the product of two squares or not ?"),
        ("Sort the given list by merge sort .", "Sort the given list by merge sort in place ."),
    ],
)
def test_in_a_short_prompt_each_word_counts(tmp_path, one, other):
    assert merged(tmp_path, [source("s", one, other)], ["s"])[1] == []


@pytest.mark.parametrize(
    ("one", "other"),
    [("4 + (2 * 3)", "(4 + 2) * 3"), ("4 - 2", "4 + 2"), ("x < 2", "x ≤ 2"), ("2^3", "23"), ("5!", "5")],
)
def test_formulas_of_the_same_words_are_not_alike(tmp_path, one, other):
    assert merged(tmp_path, [source("s", f"What is {one} ?", f"What is {other} ?")], ["s"])[1] == []


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Compute 3² + 1 for", "Compute 32 + 1 for"),
        ("Add x₂ and y for", "Add x2 and y for"),
        ("Add x² and y for", "Add x2 and y for"),
        ("Add x² and y for", "Add x₂ and y for"),
        ("How long is 10⁻³ m for", "How long is 10-3 m for"),
        ("A source of 5 mW for", "A source of 5 MW for"),
        ("A disk of 8 GB for", "A disk of 8 Gb for"),
        ("if x:\n  a()\n  b()\nprints for", "if x:\n  a()\nb()\nprints for"),
        ("for (;;) {\n\ta();\n\tb();\n}\nprints for", "for (;;) {\n\ta();\nb();\n}\nprints for"),
    ],
)
@pytest.mark.parametrize("rest", ["me.", LONG], ids=["short", "long"])
def test_superscripts_units_and_blocks_of_code_make_other_prompts(tmp_path, one, other, rest):
    assert merged(tmp_path, [source("s", f"{one} {rest}", f"{other} {rest}")], ["s"])[1] == []


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Sum the squares 3^2 and 4^2 of", "Sum the squares 3² and 4² of"),
        ("if x:\n  a()\n  b()\nprints", "if x:\n    a()\n    b()\n\nprints"),
        ("Take 5 APPLES from", "take 5 apples from"),
        ("A text\n   with lines", "A text with\nlines"),
    ],
)
def test_other_ways_to_write_the_same_make_no_other_prompt(tmp_path, one, other):
    assert len(merged(tmp_path, [source("s", f"{one} {LONG}", f"{other} {LONG}")], ["s"])[1]) == 1


def test_other_numbers_may_be_left_out_of_account(tmp_path):
    texts = [LONG + " Take 3 away .", LONG + " Take 4 away ."]
    assert merged(tmp_path, [source("s", *texts)], ["s"])[1] == []
    assert len(merged(tmp_path, [source("s", *texts)], ["s"], near_duplicates={"same_numbers": False})[1]) == 1


def test_one_text_under_other_constraints_is_another_task(tmp_path):
    constraints = [
        {"instruction_ids": [name], "kwargs": [{}]} for name in ("punctuation:no_comma", "startend:quotation")
    ]
    rows = [
        prompt(f"{LONG} {said}", truth=truth, row=row, verifier="precise_if", domain="precise_if")
        for row, (said, truth) in enumerate(
            [("No commas .", constraints[0]), ("In quotes .", constraints[1]), ("No comma .", constraints[0])]
        )
    ]
    _, gone = merged(tmp_path, [table(*rows)], ["s"])
    assert [row["row"] for row in gone] == [2]


def test_what_is_the_same_as_a_near_duplicate_goes_with_it(tmp_path):
    near = LONG.replace("farmer", "grocer", 1)
    kept, gone = merged(tmp_path, [source("s", LONG, near, near.upper())], ["s"])
    assert len(kept) == 1
    assert {row["clashed_with"] for row in gone} == {ids(kept)[0]}
    assert [row["kind"] for row in gone] == ["near_duplicate"] * 2


def test_near_duplicates_that_are_kept_together_say_so_and_the_same_prompt_still_goes(tmp_path):
    near = LONG.replace("farmer", "grocer", 1)
    texts = [LONG, near, near.upper(), "Something else ?"]
    kept, gone = merged(tmp_path, [source("s", *texts)], ["s"], near_duplicates={"action": "keep_together"})
    clusters = kept.column("cluster").to_pylist()
    assert clusters[0] == clusters[1] == compute_prompt_keys(kept.column("messages"))[0].hex()
    assert clusters[2] is None
    assert [(row["row"], row["kind"]) for row in gone] == [(2, "duplicate")]
    assert ids(kept)[:2] == ids(source("s", *texts))[:2]


def test_equal_prompts_give_equal_bytes_however_they_are_spread_over_files(tmp_path):
    texts = [f"{LONG} {word}" for word in ("one", "two", "ten", "one")] + ["A?", "B?"]
    whole = [source("a", *texts), source("b", *reversed(texts))]
    spread = [table(*[row for each in whole for row in each.to_pylist()])]
    found = []
    for number, tables in enumerate((whole, whole[::-1], spread)):
        kept, gone = merged(tmp_path, tables, ["a", "b"])
        found.append((write_table(tmp_path / f"kept-{number}", kept, PROMPTS).read_bytes(), str(gone)))
    assert len(set(found)) == 1


@pytest.mark.parametrize("row_group", [1, 16, row_groups.ROW_GROUP])
def test_a_file_is_the_same_in_whatever_parts_it_is_written(tmp_path, monkeypatch, row_group):
    monkeypatch.setattr(row_groups, "ROW_GROUP", row_group)
    rows = table(*(prompt(f"{number}?", row=number) for number in range(50)))
    parts = [rows.slice(0, 7), rows.slice(7, 0), rows.slice(7)]
    first, second = tmp_path / "whole", tmp_path / "parts"
    assert write_table(first, rows, PROMPTS).read_bytes() == write_batches(second, parts, PROMPTS).read_bytes()
    assert read_table(second, PROMPTS).equals(rows)
    assert pa.concat_tables(read_batches(second, PROMPTS)).equals(rows)


TEXTS = st.lists(
    st.lists(st.sampled_from(["one", "two", "three", "Four", "5", "+", "\n"]), max_size=12).map(" ".join), max_size=12
)


@pytest.mark.long
@settings(max_examples=examples(60), deadline=None)
@given(sources=st.lists(TEXTS, min_size=1, max_size=3), priority=st.permutations(["0", "1", "2"]))
def test_every_row_stays_or_is_set_aside_once_for_a_prompt_that_stays(tmp_path_factory, sources, priority):
    names = [str(number) for number in range(len(sources))]
    tables = [source(name, *texts) for name, texts in zip(names, sources, strict=True)]
    chosen = [name for name in priority if name in names]
    kept, gone = merged(tmp_path_factory.mktemp("tables"), tables, names, priority=chosen)
    before = Counter((row["source"], row["row"]) for each in tables for row in each.to_pylist())
    after = Counter((row["source"], row["row"]) for row in kept.to_pylist())
    assert before == after + Counter((row["source"], row["row"]) for row in gone)
    assert {row["clashed_with"] for row in gone} <= set(ids(kept))
    assert len(set(ids(kept))) == len(kept)


@pytest.mark.long
@settings(max_examples=examples(40), deadline=None)
@given(sources=st.lists(TEXTS, min_size=3, max_size=3), order=st.permutations(["0", "1", "2"]))
def test_with_a_priority_the_order_of_the_sources_moves_rows_and_nothing_else(tmp_path_factory, sources, order):
    tables = [source(str(number), *texts) for number, texts in enumerate(sources)]
    folder, names = tmp_path_factory.mktemp("tables"), ["0", "1", "2"]
    kept, gone = merged(folder, tables, names, priority=names)
    moved, same = merged(folder, tables, order, priority=names)
    assert set(ids(kept)) == set(ids(moved))
    assert sorted(gone, key=str) == sorted(same, key=str)


@pytest.mark.long
@settings(max_examples=examples(40), deadline=None)
@given(sources=st.lists(TEXTS, min_size=2, max_size=2), more=TEXTS)
def test_a_source_that_grows_at_its_end_takes_no_prompt_of_its_own_away(tmp_path_factory, sources, more):
    folder = tmp_path_factory.mktemp("tables")
    first, second = sources
    before, _ = merged(folder, [source("a", *first), source("b", *second)], ["a", "b"])
    after, _ = merged(folder, [source("a", *first), source("b", *second, *more)], ["a", "b"])
    assert set(ids(before)) <= set(ids(after))


def test_a_signature_estimates_the_similarity_of_the_sets():
    common, own = [f"w{number}" for number in range(160)], [f"x{number}" for number in range(40)]
    pair = table(prompt(" ".join(common)), prompt(" ".join(common + own), row=1))
    first, second = compute_signatures(*ngrams(*words(extract_questions(pair.column("messages"))), 1))
    assert abs((first == second).mean() - 0.8) < 3 * np.sqrt(0.8 * 0.2 / HASHES)


@pytest.mark.parametrize("threshold", [0.5, 0.7, 0.8, 0.9, 1.0])
def test_the_bands_miss_at_most_one_pair_of_a_hundred_at_the_threshold(threshold):
    rows = choose_band_size(threshold)
    assert 1 - (1 - threshold**rows) ** (HASHES // rows) >= RECALL
    assert choose_band_size(0.8) == 6


def test_of_hundreds_of_prompts_that_differ_in_any_one_word_one_stays(tmp_path):
    names = [a + b for a in "abcdefghijklmnopqrst" for b in "uvwxyzåäöæøéèê"]
    kept, gone = merged(
        tmp_path, [source("s", LONG, *(edited(LONG, at, name) for at, name in enumerate(names)))], ["s"]
    )
    assert (len(kept), len(gone)) == (1, 280)


def test_hundreds_of_prompts_that_differ_in_the_same_word_are_tasks_of_one_template(tmp_path):
    names = [a + b for a in "abcdefghijklmnopqrst" for b in "uvwxyzåäöæøéèê"]
    kept, _ = merged(tmp_path, [source("s", *(LONG.replace("wheel", name) for name in names))], ["s"])
    assert len(kept) == 280


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"near_duplicates": {"threshold": 0.4}}, "greater than or equal to 0.5"),
        ({"near_duplicates": {"ngram": 0}}, "greater than or equal to 1"),
        ({"near_duplicates": {"action": "drop"}}, "'set_aside' or 'keep_together'"),
        ({"duplicates": "none"}, "'text' or 'row'"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused(spec, said):
    with pytest.raises(ValueError, match=said):
        DuplicatesSpec.model_validate(spec)
    assert DuplicatesSpec().near_duplicates == NearDuplicates()


@pytest.mark.long
@needs_data
def test_near_duplicates_of_gsm8k_are_those_of_a_comparison_of_all_pairs(tmp_path):
    train, test = gsm8k("train"), gsm8k("test")
    assert merged(tmp_path, [train, test], ["train", "test"])[1] == []
    # All 38.6 million pairs compared without hashes: one of 0.75, no other above 0.6, and none across the files.
    loose = {"threshold": 0.7, "same_numbers": False}
    _, [gone] = merged(tmp_path, [train, test], ["train", "test"], near_duplicates=loose)
    assert (gone["source"], gone["row"], gone["kind"]) == ("train", 6691, "near_duplicate")
    assert gone["clashed_with"] == ids(train)[2483]


def test_no_prompts_at_all_are_merged_into_none(tmp_path):
    merger = Merger([write_table(tmp_path / "none.parquet", table(), PROMPTS)], ["s"], DuplicatesSpec())
    assert list(merger.parts()) == []
