"""What the generators make can be judged: constraints by IFEval's own checkers, functions by their assertions."""

import random
from collections import Counter
from itertools import islice

import pytest

from tasks.sourcing.generators import TooFewPromptsError, functions, instructions
from tasks.sourcing.generators.instructions import CONFLICTS, CONSTRAINTS
from tasks.sourcing.generators.topics import TOPICS
from tasks.sourcing.ground_truths import IFEVAL_ARGUMENTS

QUICKSTART = {
    "keywords:existence": "It lay on the {word} all day.",
    "detectable_format:title": "<<A Fine Day>>\nIt was fine.",
    "punctuation:no_comma": "It was a fine day and nobody spoke.",
    "detectable_content:postscript": "It was fine.\n\nP.S. Bring bread.",
    "detectable_format:number_bullet_lists": "{bullets}",
    "startend:end_checker": "It was fine. {phrase}",
}


@pytest.fixture(scope="module")
def registry():
    # The registry of IFEval alone: its package also imports IFBench's, which looks for downloads.
    pytest.importorskip("if_verifiable")
    from if_verifiable.ifeval.instructions_registry import INSTRUCTION_DICT

    return INSTRUCTION_DICT


def made(size=300, constraints=tuple(CONSTRAINTS), low=1, high=5, seed=0):
    return list(instructions.generate(size, constraints, low, high, seed))


def test_the_topics_are_many_and_their_words_apart():
    assert len({topic.task for topic in TOPICS}) == len(TOPICS) >= 80
    for topic in TOPICS:
        assert not [(a, b) for a in topic.words for b in topic.words if a != b and a in b], topic


def test_every_generated_constraint_builds_its_checker(registry):
    met = Counter()
    for row in made(400):
        assert len(row["instruction_ids"]) == len(row["kwargs"])
        for name, kwargs in zip(row["instruction_ids"], row["kwargs"], strict=True):
            checker = registry[name](name)
            checker.build_description(**kwargs)
            assert (checker.get_instruction_args() or {}) == kwargs
            assert kwargs.keys() == IFEVAL_ARGUMENTS[name].keys()
            met[name] += 1
    assert met.keys() == CONSTRAINTS.keys()


def test_the_known_constraints_and_their_arguments_are_ifevals(registry):
    assert registry.keys() == IFEVAL_ARGUMENTS.keys()
    for name, arguments in IFEVAL_ARGUMENTS.items():
        assert set(registry[name](name).get_instruction_args_keys()) == arguments.keys()


@pytest.mark.parametrize("name", QUICKSTART)
def test_a_fulfilling_answer_passes_and_a_bare_one_fails(registry, name):
    for row in made(12, (name,), 1, 1):
        kwargs = row["kwargs"][0]
        answer = QUICKSTART[name].format(
            word=kwargs.get("keywords", [""])[0],
            bullets="\n".join(["* This is a point."] * kwargs.get("num_bullets", 0)),
            phrase=kwargs.get("end_phrase", ""),
        )
        checker = registry[name](name)
        checker.build_description(**kwargs)
        assert checker.check_following(answer)
        assert not checker.check_following("Hm, no.")


def test_more_than_a_thousand_prompts_are_distinct_and_repeatable():
    rows = made(1500, seed=3)
    assert len({row["prompt"] for row in rows}) == 1500
    assert rows == made(1500, seed=3)
    assert rows != made(1500, seed=4)


def test_no_prompt_holds_a_conflict_or_a_constraint_twice():
    for row in made(500, low=3):
        ids = row["instruction_ids"]
        assert 3 <= len(set(ids)) == len(ids) <= 5
        assert not [pair for pair in CONFLICTS if pair <= set(ids)]


def test_constraints_take_turns_at_coming_first():
    rows = made(60, tuple(QUICKSTART), 1, 2)
    assert set(Counter(row["instruction_ids"][0] for row in rows).values()) == {10}


def test_too_many_prompts_of_too_few_constraints_is_an_error():
    with pytest.raises(TooFewPromptsError, match="distinct prompts of the 500"):
        made(500, ("punctuation:no_comma",), 1, 1)
    with pytest.raises(TooFewPromptsError, match="found 0 distinct"):
        made(1, ("punctuation:no_comma",), 2, 2)


def test_there_are_at_least_twenty_families_each_consistent_with_its_reference():
    assert len({family.name for family in functions.FAMILIES}) == len(functions.FAMILIES) >= 20
    for family in functions.FAMILIES:
        for k in family.parameters:
            tests = functions._assertions(random.Random(0), family, k, 5)  # noqa: S311
            assert len(set(tests)) == 5
            for test in tests:
                exec(test, {family.name: lambda *args, f=family, k=k: f.reference(k, *args)})  # noqa: S102


def test_no_constant_passes_the_assertions():
    for row in functions.generate(100, 3, 0):
        assert len({test.split(" == ")[-1] for test in row["tests"]}) > 1


def test_functions_are_distinct_and_repeatable():
    rows = list(functions.generate(100, 4, 1))
    assert len({row["prompt"] for row in rows}) == 100
    assert rows == list(functions.generate(100, 4, 1))
    with pytest.raises(TooFewPromptsError, match="distinct prompts; 5000 were asked for"):
        next(islice(functions.generate(5000, 4, 1), 1))
