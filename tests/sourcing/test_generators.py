"""What the generators make can be judged and fulfilled: constraints by `precise_if`, functions by their assertions."""

import hashlib
import json
import random
import re
from collections import Counter
from itertools import chain, combinations, islice

import pytest

from tasks.environments.guess_number import guess_number
from tasks.sourcing.columns import Columns
from tasks.sourcing.generators import TooFewPromptsError, functions, guessing, instructions
from tasks.sourcing.generators.conflicts import ALONE, CONFLICTS, can_combine
from tasks.sourcing.generators.constraints import CONSTRAINTS, WORDS
from tasks.sourcing.generators.topics import TOPICS
from tasks.sourcing.ground_truths import ground_truth
from tasks.sourcing.loader_specs import GuessingLoader, InstructionsLoader
from tasks.verifiers import instructions as verifier
from tasks.verifiers.instructions.arguments import IFBENCH, IFEVAL, TRAINING
from tasks.verifiers.instructions.needs import NLTK_NEEDS, has_data
from tests.environments.scripted import play
from tests.sourcing.witness import answers

QUICKSTART = (
    "keywords:existence",
    "detectable_format:title",
    "punctuation:no_comma",
    "detectable_content:postscript",
    "detectable_format:number_bullet_lists",
    "startend:end_checker",
)
JUDGED = [name for name in CONSTRAINTS if all(map(has_data, NLTK_NEEDS.get(name, ())))]
TOGETHER = [name for name in JUDGED if name not in ALONE]


def made(size=300, constraints=tuple(CONSTRAINTS), low=1, high=5, seed=0):
    return list(instructions.generate(size, constraints, low, high, seed))


def fulfilled(ids, kwargs, candidates):
    """Whether one of the answers holds all constraints."""
    truth = {"instruction_ids": list(ids), "kwargs": list(kwargs)}
    return any(verifier.judge(answer, truth, None).passed for answer in candidates)


def test_the_topics_are_many_and_their_words_apart():
    assert len({topic.task for topic in TOPICS}) == len(TOPICS) >= 80
    for topic in TOPICS:
        assert not [(a, b) for a in topic.words for b in topic.words if a != b and a in b], topic


def test_what_must_be_said_is_none_of_a_topics_words():
    """Else a phrase that is asked for could hold the word that may come only once, or not at all."""
    words = {word for topic in TOPICS for word in topic.words}
    for text in chain.from_iterable(WORDS.values()):
        assert not words & set(text.lower().replace(".", "").split()), text


def test_the_prompts_are_made_of_ifevals_and_the_training_constraints_and_never_of_ifbenchs():
    assert CONSTRAINTS.keys() == IFEVAL.keys() | TRAINING.keys()
    assert not CONSTRAINTS.keys() & IFBENCH.keys()
    met = Counter(name for row in made(600) for name in row["instruction_ids"])
    assert met.keys() == CONSTRAINTS.keys()
    assert max(met.values()) < 8 * min(met.values())


def test_without_a_list_the_loader_draws_from_all_that_can_be_judged_without_data():
    names = InstructionsLoader(kind="instructions", size=1).constraints
    assert set(CONSTRAINTS) - set(names) == CONSTRAINTS.keys() & NLTK_NEEDS.keys()


def test_every_generated_row_is_a_ground_truth_as_it_stands():
    for row in made(400):
        assert ground_truth(row, "precise_if", Columns()) == {key: row[key] for key in ("instruction_ids", "kwargs")}
        verifier.check_ground_truth({key: row[key] for key in ("instruction_ids", "kwargs")})


def test_the_quickstarts_prompts_are_the_same_as_ever():
    """They have been measured: how often an untrained model fulfils them is known."""
    rows = [*made(96, QUICKSTART, 1, 1, 17), *made(16, QUICKSTART, 2, 2, 19)]
    assert (
        hashlib.sha256(json.dumps(rows).encode()).hexdigest()
        == "86dc77b20351a35968b3b1ddc03d9398d856bf71f8ec17a6e25c1d781a093e99"
    )


@pytest.mark.long
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


@pytest.mark.long
@pytest.mark.parametrize("name", TOGETHER)
def test_a_constraint_can_be_fulfilled_with_each_that_it_may_stand_with(name):
    rng = random.Random(name)
    for other in (name, *(other for other in TOGETHER if can_combine((name, other)) and other > name)):
        ids = sorted({name, other})
        for topic in rng.sample(TOPICS, 3):
            kwargs = [CONSTRAINTS[each](rng, topic)[1] for each in ids]
            assert fulfilled(ids, kwargs, answers(ids, kwargs)), (ids, kwargs)


@pytest.mark.long
def test_whole_prompts_can_be_fulfilled_and_are_not_by_any_answer():
    rows, bare = made(400, tuple(TOGETHER), 3, 5, seed=11), 0
    for row in rows:
        given = row["instruction_ids"], row["kwargs"]
        assert fulfilled(*given, answers(*given)), row
        bare += fulfilled(*given, ["Hm."])
    assert bare < 0.03 * len(rows)


def alone(name, row):
    """An answer to a prompt of a constraint that stands alone."""
    kwargs, task = row["kwargs"][0], row["kwargs"][0].get("prompt_to_repeat", "")
    spoken = {
        "de": "Das ist ein schöner Tag am Meer und wir gehen spazieren.",
        "es": "Este es un día muy bonito y vamos a caminar por la playa.",
        "fr": "C'est une très belle journée et nous allons nous promener.",
        "it": "Questa è una bellissima giornata e andiamo a passeggiare.",
        "pt": "Este é um dia muito bonito e nós vamos passear na praia, não é?",
    }
    return {
        "combination:repeat_prompt": f"{task} Yes.",
        "combination:two_responses": "One.\n******\nTwo.",
        "copy:copy": task,
        "copy:copying_multiple": "\n******\n".join([task] * kwargs.get("N", 0)),
        "copy:copying_simple": task,
        "detectable_format:constrained_response": "My answer is yes.",
        "detectable_format:json_format": '{"answer": 1}',
        "language:response_language": spoken.get(kwargs.get("language"), ""),
        "new:copy_span_idx": task[kwargs.get("n_start", 0) : kwargs.get("n_end", 0) + 1],
    }[name]


@pytest.mark.parametrize("name", ALONE)
def test_what_stands_alone_can_be_fulfilled_and_has_no_company(name):
    for row in made(20, (name,), 1, 1):
        assert fulfilled(row["instruction_ids"], row["kwargs"], [alone(name, row)]), row
    assert not any(can_combine((name, other)) for other in CONSTRAINTS if other != name)
    with pytest.raises(ValueError, match="can only be used alone"):
        InstructionsLoader(kind="instructions", size=1, constraints=[name, *QUICKSTART], min_constraints=2)


def test_every_conflict_is_between_constraints_that_there_are():
    assert {name for pair in CONFLICTS for name in pair} <= CONSTRAINTS.keys()
    assert all(len(pair) == 2 for pair in CONFLICTS)
    free = sum(map(can_combine, combinations(CONSTRAINTS, 2)))
    assert free > 700  # most go together: variety is what the prompts are for


def test_constraints_take_turns_at_coming_first():
    rows = made(60, QUICKSTART, 1, 2)
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
            tests = functions._make_assertions(random.Random(0), family, k, 5)
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


def test_ranges_of_numbers_are_distinct_and_as_long_as_asked():
    rows = list(guessing.generate(91, 10, 100, seed=3))
    assert sorted(row["low"] for row in rows) == list(range(1, 92))
    assert all(row["high"] - row["low"] == 9 for row in rows)
    assert all(
        row["prompt"] == f"Guess my number from {row['low']} to {row['high']}. Say only a number." for row in rows
    )
    assert list(guessing.generate(5, 10, 100, seed=3)) == list(guessing.generate(5, 10, 100, seed=3))


@pytest.mark.parametrize(("numbers", "ranges"), [(10, 91), (100, 1), (101, 0)])
def test_more_ranges_than_there_are_is_too_many(numbers, ranges):
    with pytest.raises(TooFewPromptsError, match=f"there are {ranges} ranges of {numbers} numbers up to 100"):
        list(guessing.generate(ranges + 1, numbers, 100, seed=0))


def test_an_example_is_a_game_of_another_range_that_was_won():
    """Of two numbers the lower one is guessed first, and an example's number is never that: both games are known."""
    first, second = (f"Guess my number from {low} to {low + 1}. Say only a number." for low in (1, 2))
    turns = {
        1: [("user", second), ("assistant", "2"), ("user", "Higher."), ("assistant", "3"), ("user", f"Right. {first}")],
        2: [("user", first), ("assistant", "1"), ("user", "Higher."), ("assistant", "2"), ("user", f"Right. {second}")],
    }
    rows = list(guessing.generate(2, numbers=2, highest=3, seed=0, examples=1))
    assert {row["low"]: [(turn["role"], turn["content"]) for turn in row["prompt"]] for row in rows} == turns


def games_of(messages):
    """The examples of a conversation: `(low, high, guesses, answers)`."""
    games = []
    for turn in messages:
        if asked := re.search(r"from (\d+) to (\d+)", turn["content"]):
            games.append((*map(int, asked.groups()), [], []))
            continue
        games[-1][3 if turn["role"] == "user" else 2].append(turn["content"])
    return games[:-1]


def test_the_environment_answers_the_examples_as_they_stand():
    """Each is played again, in the environment itself, with the number that its last guess hit."""
    met = Counter()
    for row in guessing.generate(60, numbers=7, highest=90, seed=3, examples=2):
        games = games_of(row["prompt"])
        assert len({row["low"], *(low for low, *_ in games)}) == 3
        for low, high, guesses, answers_given in games:
            seed = next(each for each in range(1000) if random.Random(each).randint(low, high) == int(guesses[-1]))
            played = play(guess_number, guesses, seed=seed, low=low, high=high)
            assert (played.contents, played.result.reward) == (answers_given, 1.0)
            assert high - low == 6
            assert len(guesses) in (2, 3)
            met[int(guesses[-1]) - low] += 1
    assert met.keys() == set(range(7)) - {3}  # all but the first guess


def test_examples_leave_ranges_as_they_are_and_are_repeatable():
    plain, shown = (list(guessing.generate(50, 7, 90, seed=5, examples=count)) for count in (0, 2))
    assert [row["low"] for row in plain] == [row["low"] for row in shown]
    assert [row["prompt"] for row in plain] == [row["prompt"][-1]["content"].removeprefix("Right. ") for row in shown]
    assert shown == list(guessing.generate(50, 7, 90, seed=5, examples=2))
    assert len({json.dumps(row["prompt"]) for row in shown}) == 50


@pytest.mark.parametrize(("examples", "accepted"), [(83, True), (84, False)])
def test_examples_need_ranges_of_their_own(examples, accepted):
    options = {"kind": "guessing", "size": 1, "numbers": 7, "highest": 90, "examples": examples}
    if accepted:
        loader = GuessingLoader(**options)
        [row] = guessing.generate(1, loader.numbers, loader.highest, 0, loader.examples)
        assert len({low for low, *_ in games_of(row["prompt"])} | {row["low"]}) == 84
    else:
        with pytest.raises(ValueError, match="there are 83 of 7 numbers up to 90"):
            GuessingLoader(**options)
