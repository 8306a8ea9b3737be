"""Text that a source puts around all of its prompts makes them no duplicates: their own text is compared."""

import itertools

import numpy as np
import pyarrow as pa
import pytest

from tasks.cleaning.frames import FEWEST, find_frames
from tasks.tables import texts
from tests.cleaning.frames import CODE, DAPO, NONE, R1_ZERO, SUFFIX, edited, framed, pair_of, questions, words
from tests.cleaning.prompts import merged, source, table

PUBLISHED = pytest.mark.parametrize("frame", [NONE, DAPO, R1_ZERO, CODE], ids=["none", "dapo", "r1-zero", "code"])


def stays(folder, *texts, **spec):
    """The number of prompts of one source that stay."""
    return len(merged(folder, [source("s", *texts)], ["s"], **spec)[0])


@pytest.mark.parametrize("size", [0, 20, 50, 100, 150, 200, 300])
@pytest.mark.parametrize("half", [False, True])
def test_unrelated_questions_stay_in_a_frame_of_any_length(tmp_path, size, half):
    before, after = pair_of(size)
    frame = (before, after) if half else (f"{before}{after} ", "")
    assert stays(tmp_path, *framed(questions(200, 8), frame)) == 200


STORIES = [
    f"Write a short story about a {one} and a {other}." for one, other in zip(words(200), words(200, 1), strict=True)
]
LIMITS = [
    f"Find the {what} of the {function} function of {times} x."
    for what in ("limit", "derivative", "integral", "maximum", "mean")
    for function in ("sine", "cosine", "tangent", "exponential", "logarithm")
    for times in ("once", "twice", "thrice", "half")
]
LOOPS = [
    f"Return the {what} of all values that are {which}."
    for what in ("sum", "product", "mean", "maximum", "minimum", "count", "median", "range")
    for which in ("even", "odd", "prime", "positive", "negative", "square", "large", "small")
]


@PUBLISHED
@pytest.mark.parametrize("tasks", [STORIES, LIMITS, LOOPS], ids=["stories", "limits", "loops"])
def test_tasks_that_differ_in_a_few_words_stay_in_a_frame(tmp_path, frame, tasks):
    assert stays(tmp_path, *framed(tasks, frame)) == len(tasks)


@PUBLISHED
def test_questions_with_small_edits_go_with_or_without_a_frame(tmp_path, frame):
    own = questions(196, 70)
    texts = framed([*own, *(edited(text, 31) for text in own[:4])], frame)
    kept, gone = merged(tmp_path, [source("s", *texts)], ["s"])
    assert [(row["row"], row["kind"]) for row in gone] == [(row, "near_duplicate") for row in range(196, 200)]
    assert [row["clashed_with"] for row in gone] == kept.column("prompt_id").to_pylist()[:4]


@PUBLISHED
def test_many_edits_of_one_question_are_no_frame(tmp_path, frame):
    own = questions(180, 70)
    copies = [edited(own[0], at) for at in range(5, 25)]
    assert stays(tmp_path, *framed([*own, *copies], frame)) == 180


def test_an_edit_of_the_frame_makes_no_other_question(tmp_path):
    own = questions(40, 70)
    texts = [*framed(own, DAPO), framed(own, DAPO)[0].replace("quotes", "quotation marks")]
    assert stays(tmp_path, *texts) == 40


def test_clusters_are_of_prompts_with_similar_questions(tmp_path):
    own = questions(196, 70)
    texts = framed([*own, *(edited(text, 31) for text in own[:4])], DAPO)
    kept, gone = merged(tmp_path, [source("s", *texts)], ["s"], near_duplicates={"action": "keep_together"})
    clusters = kept.column("cluster").to_pylist()
    assert gone == []
    assert clusters[:4] == clusters[196:]
    assert len(set(clusters[:4])) == 4
    assert set(clusters[4:196]) == {None}


NAMES = ["Zoey", "Oliver", "Ava", "Liam", "Mia", "Noah", "Emma", "Jack"]
KNIGHTS = [
    "A very special island is inhabited only by knights and knaves. Knights always tell the truth, and knaves always "
    f"lie. You meet 2 inhabitants: {one}, and {other}. {one} said that {other} is a {first}. {other} told you that "
    f"{one} is a {second}{ending}. So who is a knight and who is a knave?"
    for one, other in itertools.permutations(NAMES, 2)
    for first, second, ending in (
        ("knight", "knave", ""), ("knave", "knight", " or a liar"), ("knave", "knave", " and nothing else"),
    )
]  # fmt: skip
SEVERAL = [text for frame in (DAPO, R1_ZERO, CODE) for text in framed(questions(40, 8, len(frame[0])), frame)]
VARIANTS = [
    f"{pair_of(20)[0]}{' '.join(words(60, seed))}{pair_of(20)[1]} {text}"
    for seed in (1, 2, 3)
    for text in questions(40, 8, seed)
]
SHOTS = [("".join(f"Question: {shot} Answer: 4. " for shot in questions(8, 30, 5)) + "Question: ", " Answer:")]


@pytest.mark.parametrize(
    "texts",
    [
        pytest.param(KNIGHTS, id="rules of a puzzle"),
        pytest.param(SEVERAL, id="three frames in one source"),
        pytest.param(VARIANTS, id="variants of one frame"),
        pytest.param(framed(questions(60, 8), SHOTS[0]), id="few-shot examples"),
        pytest.param([*framed(questions(20, 8), CODE), *questions(180, 60, 3)], id="a frame of a tenth of the rows"),
        pytest.param(framed(questions(FEWEST, 8), CODE), id="few rows"),
    ],
)
def test_what_else_a_source_shares_is_a_frame(tmp_path, texts):
    assert stays(tmp_path, *texts) == len(texts)


def test_the_template_of_a_source_is_a_frame_of_any_number_of_rows(tmp_path):
    before, after = CODE
    few = framed(["Sort the numbers.", "Print the longest word."], CODE)
    assert stays(tmp_path, *few) == 1
    assert stays(tmp_path, *few, templates=[f"{before}{{prompt}}{after}"]) == 2


def test_texts_with_equal_constraints_in_other_frames_are_other_prompts(tmp_path):
    texts = [f"{base} {constraint}" for base in questions(10, 50, 1) for constraint in questions(20, 12, 2)]
    assert stays(tmp_path, *texts) == len(texts)


def test_a_question_in_a_frame_and_without_one_are_two_prompts(tmp_path):
    own = questions(20, 30)
    kept, _ = merged(tmp_path, [source("a", *own), source("b", *framed(own, CODE))], ["a", "b"])
    assert len(kept) == 40


def frames(*batches, templates=()):
    return find_frames(batches, templates)


def own_words(shared, text):
    """The words of a text that belong to no frame."""
    spoken = text.lower().split()
    hashes, offsets = texts.words(pa.array([" ".join(spoken)]))
    return [word for word, own in zip(spoken, shared.own(hashes, offsets), strict=True) if own]


def test_the_own_words_of_a_prompt_are_those_between_the_parts_of_its_frame():
    before, after = pair_of(40)
    own = questions(30, 6)
    shared = frames(source("s", *framed(own, (before, after))))
    assert own_words(shared, before + own[7] + after) == own[7].split()
    assert own_words(shared, "one two " + before + "three") == ["one", "two", "three"]
    assert own_words(shared, own[7]) == own[7].split()


def test_frames_do_not_depend_on_the_order_of_the_prompts_or_on_batches():
    rows = source("s", *framed(questions(50, 8), DAPO), *questions(1500, 12, 4)).to_pylist()
    whole = frames(table(*rows))
    turned = frames(*(table(*rows[::-1][start : start + 7]) for start in range(0, len(rows), 7)))
    hashes, offsets = texts.words(pa.array([row["messages"][0]["content"].lower() for row in rows]))
    assert np.array_equal(whole.own(hashes, offsets), turned.own(hashes, offsets))
    assert not whole.own(hashes, offsets)[: offsets[1]].all()


def test_a_sentence_that_ends_all_questions_is_a_frame():
    shared = frames(source("s", *framed(questions(30, 6), SUFFIX)))
    assert own_words(shared, "How many? Please reason step by step, and put your final answer within boxes") == [
        "how", "many?", "boxes"
    ]  # fmt: skip
