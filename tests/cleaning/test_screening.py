"""What holds a question of an evaluation set, and what the filters do not take, is set aside with its reason."""

import tracemalloc

import pyarrow as pa
import pytest

from tasks.cleaning import contamination
from tasks.cleaning.contamination import Questions, count_overlaps
from tasks.cleaning.frames import Frames, find_frames
from tasks.cleaning.screening import screen
from tasks.cleaning.spec import CleaningSpec, Contamination, Filters
from tasks.config.loading import SpecError
from tasks.tables.schemas import PROMPTS
from tests.cleaning.frames import CODE, DAPO, R1_ZERO, SUFFIX, framed, questions, words
from tests.cleaning.prompts import gsm8k, needs_data, prompt, source, table

QUESTION = "A plane flies nine hundred miles in two hours . How long does it need for five hundred miles more ?"
NONE = PROMPTS.empty_table()


def screened(prompts, questions=NONE, *, batches=1, overlap=0.5, **filters):
    """What stays, and the rows set aside."""
    spec = CleaningSpec(filters=Filters(**filters), contamination=Contamination(overlap=overlap))
    size = -(-prompts.num_rows // batches)
    parts = [prompts.slice(start, size) for start in range(0, prompts.num_rows, size)]
    screening = spec.screening(evaluated=True)
    found = list(screen(parts, questions, screening, find_frames([*parts, questions])))
    return pa.concat_tables([kept for kept, _ in found]), [row for _, gone in found for row in gone.to_pylist()]


def test_nothing_is_asked_where_nothing_is_given():
    assert CleaningSpec().screening(evaluated=False) is None
    assert CleaningSpec().screening(evaluated=True) is not None
    assert CleaningSpec(filters=Filters(min_words=1)).screening(evaluated=False) is not None


def test_a_prompt_with_an_evaluation_question_in_it_is_set_aside_for_that_question():
    questions = source("planes", QUESTION, "What else is there ?", verifier="chat_open", domain="chat", truth=None)
    prompts = source("s", "Count to nine .", f"Solve this. {QUESTION.upper()} Show your work.")
    kept, [gone] = screened(prompts, questions)
    assert len(kept) == 1
    assert (gone["stage"], gone["kind"], gone["row"]) == ("cleaning", "contaminated", 1)
    assert gone["reason"] == "100% of the words of a question of 'planes'"
    assert gone["clashed_with"] == questions.column("prompt_id")[0].as_py()


@pytest.mark.parametrize(("taken", "contaminated"), [(19, True), (10, True), (9, False), (7, False)])
def test_more_than_half_of_the_questions_words_must_stand_in_runs_of_eight(taken, contaminated):
    words = [word for word in QUESTION.split() if word.isalpha()]
    assert len(words) == 19
    prompts = source("s", "Before it . " + " ".join(words[:taken]) + " and something else after it .")
    assert bool(screened(prompts, source("e", QUESTION))[1]) == contaminated


def test_prompts_that_hold_a_benchmarks_question_are_counted_by_source():
    questions = pa.concat_tables([source("planes", QUESTION), source("others", "What else is there ?")])
    batches = [
        source("a", f"Solve this. {QUESTION}", "Count to nine ."),
        source("b", QUESTION, f"Again: {QUESTION}"),
    ]
    assert count_overlaps(batches, questions, Contamination(), find_frames([*batches, questions])) == {
        ("planes", "a"): 1,
        ("planes", "b"): 2,
    }
    assert not count_overlaps(batches, NONE, Contamination(), Frames())


def test_words_that_stand_apart_are_no_contamination():
    words = QUESTION.split()
    scattered = " ".join(f"{word} so" if number % 7 == 6 else word for number, word in enumerate(words))
    assert screened(source("s", scattered), source("e", QUESTION))[1] == []


def test_a_question_shorter_than_a_run_contaminates_only_the_prompt_that_is_that_question():
    prompts = source("s", "what is love?", "What is love? Baby don't hurt me", "Tell me: what is love?")
    _, gone = screened(prompts, source("e", "What is love ?"))
    assert [row["row"] for row in gone] == [0]


def test_a_prompt_names_the_question_that_it_has_most_of():
    half = " ".join(QUESTION.split()[:14]) + " it takes in winter"
    _, [gone] = screened(
        source("s", QUESTION), table(*source("a", half).to_pylist(), *source("b", QUESTION).to_pylist())
    )
    assert gone["reason"] == "100% of the words of a question of 'b'"


def test_a_system_message_contaminates_nothing():
    prompts = table(prompt("Go on .", system=QUESTION))
    assert screened(prompts, source("e", QUESTION))[1] == []


@pytest.mark.long
@needs_data
def test_gsm8ks_training_questions_that_hold_a_test_question_are_three():
    train, test = gsm8k("train"), gsm8k("test")
    found = list(Questions(test, Contamination(), find_frames([test])).find_overlaps(train))
    texts = [train.column("messages")[each.row].as_py()[0]["content"] for each in found]
    assert [" ".join(text.split()[:4]) for text in texts] == [
        "Bella bought stamps at",
        "A train travels 270",
        "A train travels 360",
    ]
    assert [each.evaluation_set for each in found] == ["test"] * 3


def test_prompts_with_too_few_or_too_many_words_are_set_aside():
    kept, gone = screened(source("s", "Go", "Go on now", "Go on and on and on"), min_words=2, max_words=5)
    assert len(kept) == 1
    assert [(row["row"], row["kind"], row["reason"]) for row in gone] == [
        (0, "length", "prompt of 1 words, fewer than min_words 2"),
        (2, "length", "prompt of 6 words, more than max_words 5"),
    ]


def test_words_are_counted_where_there_are_no_spaces_between_them():
    _, gone = screened(source("s", "這是一個問題", "これは何ですか"), max_words=6)
    assert [row["reason"] for row in gone] == ["prompt of 7 words, more than max_words 6"]


@pytest.mark.long
def test_prompts_of_other_languages_are_set_aside():
    prompts = source(
        "s", "How many apples does she have left in the end?", "Wie viele Äpfel hat sie am Ende noch übrig?",
        "Combien de pommes lui reste-t-il à la fin ?",
    )  # fmt: skip
    kept, [gone] = screened(prompts, languages=["en", "fr"])
    assert len(kept) == 2
    assert (gone["row"], gone["kind"]) == (1, "language")
    assert gone["reason"].startswith("its language is de with probability 1.00, none of en, fr")


@pytest.mark.long
def test_a_language_that_is_not_known_is_one_sentence():
    with pytest.raises(SpecError, match=r"cleaning\.filters\.languages: no language is called 'xx'.*: ace, af, am, "):
        screened(source("s", "a"), languages=["xx"])
    with pytest.raises(ValueError, match="languages"):
        Filters(languages=["english"])


def test_a_range_the_wrong_way_round_is_refused():
    with pytest.raises(ValueError, match="min_words 3 is larger than max_words 2"):
        Filters(min_words=3, max_words=2)


@pytest.mark.long
def test_ground_truths_that_their_own_verifier_rejects_are_set_aside():
    truths = [
        "1/2",
        "x^2 + 1",
        {"answer": "72", "mode": "gsm8k"},
        {"answer": "Paris", "mode": "exact"},
        ["It cannot be said; see the figure below for why", "2"],
        "\\frac{1}{2",
    ]
    rows = [prompt(f"{number}?", row=number, truth=truth) for number, truth in enumerate(truths)]
    rows.append(prompt("f?", row=6, truth={"tests": ["assert f(1) == 2"]}, verifier="code", domain="code"))
    wrong = {"rewards": [{"verifier": "math", "weight": 1.0, "ground_truth": truths[-1]}]}
    rows.append(prompt("w?", row=7, truth=wrong, verifier="weighted"))
    kept, gone = screened(table(*rows), batches=3, ground_truths=True)
    assert [(row["row"], row["kind"]) for row in gone] == [(5, "ground_truth"), (7, "ground_truth")]
    assert gone[0]["reason"].startswith("its own verifier rejects it: ")
    assert gone[0]["value"] == '"\\\\frac{1}{2"'
    assert len(kept) == 6


@pytest.mark.long
def test_a_prompt_is_set_aside_for_one_reason_and_batches_make_no_difference():
    prompts = source("s", "kurz", *(f"{QUESTION} {word}" for word in "abc"), "This one stays where it is .")
    whole = screened(prompts, source("e", QUESTION), min_words=2, languages=["en"])
    assert [row["kind"] for row in whole[1]] == ["length", *["contaminated"] * 3]
    parts = screened(prompts, source("e", QUESTION), batches=5, min_words=2, languages=["en"])
    assert whole[0].equals(parts[0])
    assert whole[1] == parts[1]


PUBLISHED = pytest.mark.parametrize("frame", [DAPO, R1_ZERO, CODE, SUFFIX], ids=["dapo", "r1-zero", "code", "suffix"])


@PUBLISHED
@pytest.mark.parametrize("asked", [1, 3, 40])
def test_a_frame_of_prompts_and_questions_is_no_contamination(frame, asked):
    prompts = source("s", *framed(questions(200, 8), frame))
    assert screened(prompts, source("e", *framed(questions(asked, 10, 5), frame)))[1] == []


@PUBLISHED
def test_a_question_in_a_frame_is_found_in_a_frame(frame):
    own = questions(200, 12)
    short = ["Add two and two.", *own[1:]]
    _, gone = screened(source("s", *framed(short, frame)), source("e", *framed([own[70], short[0]], frame)))
    assert [(row["row"], row["reason"]) for row in gone] == [
        (0, "100% of the words of a question of 'e'"), (70, "100% of the words of a question of 'e'"),
    ]  # fmt: skip
    _, gone = screened(source("s", *framed(own, frame)), source("e", own[70]))
    assert [row["row"] for row in gone] == [70]


def test_a_question_that_most_prompts_show_as_an_example_contaminates_them():
    own = zip(words(50), questions(50, 9), strict=True)
    shown = [f"{first} {QUESTION} It needs too long. {rest}" for first, rest in own]
    assert len(screened(source("s", *shown), source("e", QUESTION))[1]) == 50


def test_the_template_of_a_source_is_no_part_of_a_question():
    before, after = CODE
    prompts, question = source("s", before + "Sort the list." + after), source("e", before + "Print a word." + after)
    spec = CleaningSpec().screening(evaluated=True)
    for templates, gone in (([], 1), ([f"{before}{{prompt}}{after}"], 0)):
        frames = find_frames([prompts, question], templates)
        assert [len(aside) for _, aside in screen([prompts], question, spec, frames)] == [gone]


def test_what_is_contaminated_does_not_depend_on_batches():
    own = questions(60, 12)
    prompts, asked = source("s", *framed(own, DAPO)), source("e", *framed(own[20:30], DAPO))
    _, gone = screened(prompts, asked)
    assert len(gone) == 10
    assert screened(prompts, asked, batches=7)[1] == gone


@pytest.mark.long
def test_text_that_all_prompts_and_questions_share_costs_little():
    prompts = source("s", *framed(questions(1024, 30), SUFFIX))
    asked = source("e", *framed(questions(1319, 40, 7), SUFFIX))
    tracemalloc.start()
    counts = count_overlaps([prompts], asked, Contamination(), find_frames([prompts, asked]))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert counts == {}
    assert peak < 50e6


@pytest.mark.parametrize("pairs", [1, 3, 2**18])
def test_pairs_that_share_runs_are_compared_in_parts(monkeypatch, pairs):
    monkeypatch.setattr(contamination, "PAIRS", pairs)
    own = questions(30, 12)
    asked = source("e", *(f"{one} {other}" for one, other in zip(own[:20], own[10:], strict=True)))
    found = Questions(asked, Contamination(overlap=0.4), find_frames([asked])).find_overlaps(source("s", *own))
    assert [(each.row, each.share) for each in found] == [(row, 0.5) for row in range(30)]
