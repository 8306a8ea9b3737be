"""`precise_if`: all constraints hold, or the score is 0 and says which do not."""

import nltk
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.verifiers import check_ground_truth, instructions, missing_resources
from tasks.verifiers.scores import CannotJudge

LESS, LEAST = {"relation": "less than"}, {"relation": "at least"}
JSON_WITH_NAME = '```json\n{"name": 1}\n```'

CASES = [
    ("keywords:existence", {"keywords": ["sun", "sea"]}, "The sun over the sea", "The sun"),
    ("keywords:frequency", {"keyword": "sun", "frequency": 2} | LEAST, "sun, sun", "sun"),
    ("keywords:forbidden_words", {"forbidden_words": ["rain"]}, "It is dry", "No rain"),
    ("keywords:letter_frequency", {"letter": "z", "let_frequency": 2, "let_relation": "at least"}, "pizza", "zoo"),
    ("language:response_language", {"language": "de"}, "Das ist ein schöner Tag am Meer", "This is a nice day"),
    (
        "length_constraints:number_sentences",
        {"num_sentences": 2} | LEAST,
        "I see Dr. Smith. He waves.",
        "I see Dr. Smith.",
    ),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 2}, "one\n***\ntwo", "one"),
    ("length_constraints:number_words", {"num_words": 3} | LESS, "two words", "three words here"),
    (
        "length_constraints:nth_paragraph_first_word",
        {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "then"},
        "First a walk.\n\nThen a rest.",
        "First a walk.\n\nLater a rest.",
    ),
    ("detectable_content:number_placeholders", {"num_placeholders": 1}, "Dear [name]", "Dear Ann"),
    ("detectable_content:postscript", {"postscript_marker": "P.S."}, "Bye.\nP.S. Write soon", "Bye."),
    ("detectable_format:number_bullet_lists", {"num_bullets": 2}, "* one\n* two", "* one\n* two\n* three"),
    ("detectable_format:constrained_response", {}, "My answer is yes.", "Yes."),
    ("detectable_format:number_highlighted_sections", {"num_highlights": 1}, "a *bright* day", "a day"),
    (
        "detectable_format:multiple_sections",
        {"section_spliter": "Section", "num_sections": 2},
        "Section 1\na\nSection 2\nb",
        "Section 1\na",
    ),
    ("detectable_format:json_format", {}, JSON_WITH_NAME, "name: 1"),
    ("detectable_format:title", {}, "<<A title>>\ntext", "A title\ntext"),
    ("combination:two_responses", {}, "one\n******\ntwo", "one"),
    ("combination:repeat_prompt", {"prompt_to_repeat": "Say hi."}, "Say hi. Hi!", "Hi!"),
    ("startend:end_checker", {"end_phrase": "The end."}, "A story. The end.", "The end. A story"),
    (
        "change_case:capital_word_frequency",
        {"capital_frequency": 2, "capital_relation": "at least"},
        "SO MUCH fun",
        "SO fun",
    ),
    ("change_case:english_capital", {}, "THIS IS A VERY FINE DAY FOR A WALK", "This is a very fine day"),
    ("change_case:english_lowercase", {}, "this is a very fine day for a walk", "This is a very fine day"),
    ("punctuation:no_comma", {}, "no such mark", "well, one"),
    ("startend:quotation", {}, '"All of it"', '"Half" of it'),
]


def truth(*constraints, **more):
    return {"instruction_ids": [c[0] for c in constraints], "kwargs": [c[1] for c in constraints], **more}


def test_every_constraint_has_a_case():
    assert sorted(case[0] for case in CASES) == sorted(instructions.CHECKERS)


@pytest.mark.parametrize(("name", "arguments", "good", "bad"), CASES, ids=[case[0] for case in CASES])
def test_a_constraint_holds_or_is_named_as_broken(punkt, name, arguments, good, bad):
    assert instructions.judge(good, truth((name, arguments)), None).value == 1.0
    score = instructions.judge(bad, truth((name, arguments)), None)
    assert (score.value, score.detail) == (0.0, f"broken: {name}")


@pytest.mark.parametrize("response", ["", " \n", "<think>no comma", "thought</think> "])
def test_an_empty_response_holds_nothing(response):
    assert instructions.judge(response, truth(("punctuation:no_comma", {})), None).value == 0.0


def test_all_constraints_must_hold():
    both = truth(("punctuation:no_comma", {}), ("keywords:existence", {"keywords": ["sun"]}))
    assert instructions.judge("the sun", both, None).passed
    assert instructions.judge("the sun, again", both, None).detail == "broken: punctuation:no_comma"


def test_the_thinking_part_is_not_judged():
    assert instructions.judge("<think>well, well</think>fine", truth(("punctuation:no_comma", {})), None).passed


def test_null_arguments_count_as_absent():
    given_nulls = {"keywords": ["sun"], "num_words": None, "relation": None}
    assert instructions.judge("sun", truth(("keywords:existence", given_nulls)), None).passed


def test_loose_mode_forgives_a_first_line():
    chatty, constraint = "Sure, here it is:\nno such mark", ("punctuation:no_comma", {})
    assert not instructions.judge(chatty, truth(constraint), None).passed
    assert instructions.judge(chatty, truth(constraint, mode="loose"), None).passed


def test_the_prompt_to_repeat_comes_from_the_last_user_message():
    repeat = truth(("combination:repeat_prompt", {}))
    turns = [
        {"role": "user", "content": "Old."},
        {"role": "assistant", "content": "x"},
        {"role": "user", "content": "New."},
    ]
    assert instructions.judge("New. Yes", repeat, turns).passed
    assert not instructions.judge("Old. Yes", repeat, turns).passed
    with pytest.raises(CannotJudge, match="needs the prompt"):
        instructions.judge("New. Yes", repeat, None)


def test_the_language_of_a_short_response_is_always_the_same():
    english = truth(("language:response_language", {"language": "en"}))
    assert len({instructions.judge("la son", english, None).value for _ in range(20)}) == 1


@pytest.mark.parametrize(
    ("ground_truth", "reason"),
    [
        (None, "want an object"),
        ({"instruction_ids": ["punctuation:no_comma"]}, "want an object"),
        (truth(), "at least 1"),
        ({"instruction_ids": ["punctuation:no_comma"], "kwargs": []}, "of one length"),
        (truth(("punctuation:no_coma", {})), "unknown constraint 'punctuation:no_coma'"),
        (truth(([], {})), "unknown constraint"),
        (truth(("punctuation:no_comma", None)), "arguments must be an object"),
        (truth(("keywords:existence", {})), r"must be \['keywords'\]"),
        (truth(("keywords:existence", {"keywords": ["a"], "extra": 1})), r"must be \['keywords'\]"),
        (truth(("length_constraints:number_words", {"num_words": "many", "relation": "less than"})), "number_words"),
        (truth(("length_constraints:number_words", {"num_words": 3, "relation": "about"})), "number_words"),
        (truth(("punctuation:no_comma", {}), mode="lose"), "accepted: strict, loose"),
        (truth(("punctuation:no_comma", {}), instructions=1), "unknown keys"),
    ],
)
def test_malformed_ground_truth_is_named(ground_truth, reason):
    import re

    assert re.search(reason, check_ground_truth("precise_if", ground_truth) or "accepted")


def test_missing_data_is_an_error_by_name_and_is_never_fetched(monkeypatch):
    monkeypatch.setattr(nltk.data, "path", [])
    monkeypatch.setattr(nltk, "download", lambda *_, **__: pytest.fail("tried to download"))
    sentences = truth(("length_constraints:number_sentences", {"num_sentences": 2} | LEAST))
    named = "length_constraints:number_sentences needs the NLTK resource tokenizers/punkt_tab"
    assert named in missing_resources("precise_if", sentences)[0]
    with pytest.raises(CannotJudge, match=named):
        instructions.judge("One. Two.", sentences, None)
    assert instructions.judge("fine", truth(("punctuation:no_comma", {})), None).passed


def test_every_ifeval_prompt_is_accepted_and_judged(rows, punkt):
    prompts = rows("ifeval_prompts.jsonl")
    assert len(prompts) == 541
    for row in prompts:
        ground_truth = {"instruction_ids": row["instruction_id_list"], "kwargs": row["kwargs"]}
        assert check_ground_truth("precise_if", ground_truth) is None, row
        assert missing_resources("precise_if", ground_truth) == []
        assert instructions.judge("One short answer", ground_truth, None).value in (0.0, 1.0)


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=200))
def test_no_text_breaks_a_checker(punkt, response):
    for mode in instructions.MODES:
        for name, arguments, *_ in CASES:
            assert instructions.judge(response, truth((name, arguments), mode=mode), None).value in (0.0, 1.0)
