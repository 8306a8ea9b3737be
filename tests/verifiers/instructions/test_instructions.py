"""`precise_if`: all constraints hold, or the score is 0 and says which do not."""

import dataclasses
import re
import subprocess
import sys

import nltk
import pytest

from tasks.verifiers import check_ground_truth, instructions, missing_resources
from tasks.verifiers.instructions.needs import NLTK_NEEDS
from tasks.verifiers.scores import CannotJudge, Reward, Score
from tasks.verifiers.weighted import RewardTerm, combine
from tests.paths import ROOT
from tests.verifiers.instructions.instruction_cases import CASES


def truth(*constraints, **more):
    return {"instruction_ids": [c[0] for c in constraints], "kwargs": [c[1] for c in constraints], **more}


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


def in_all_modes(response, *constraints):
    return {mode: instructions.judge(response, truth(*constraints, mode=mode), None) for mode in instructions.MODES}


@pytest.mark.parametrize(("name", "arguments", "good", "bad"), CASES, ids=[case[0] for case in CASES])
def test_both_gives_what_strict_and_loose_give_one_by_one(name, arguments, good, bad):
    if missing_resources("precise_if", truth((name, arguments))):
        pytest.skip(f"the data of {name} is absent")
    for response in (good, bad, f"Sure, here it is:\n{good}", f"{bad}\nIs it, well, right?", f"*{good}*", ""):
        found = in_all_modes(response, (name, arguments))
        strict, loose, both = found["strict"], found["loose"], found["both"]
        assert dataclasses.replace(both, rewards=()) == strict
        assert both.rewards == (
            Reward("precise_if", 1.0, strict.value),
            Reward("strict", 0.0, strict.value),
            Reward("loose", 0.0, loose.value),
        )


def test_both_counts_the_constraints_that_hold_in_either_way():
    constraints = (
        ("punctuation:no_comma", {}),
        ("keywords:existence", {"keywords": ["sun"]}),
        ("keywords:existence", {"keywords": ["sea"]}),
    )
    score = in_all_modes("Sure, here it is:\nthe sun", *constraints)["both"]
    assert [(part.name, part.value) for part in score.rewards] == [
        ("precise_if", 0.0),
        ("strict", 1 / 3),
        ("loose", 2 / 3),
    ]
    assert (score.value, score.passed) == (0.0, False)
    assert score.detail == "broken: punctuation:no_comma, keywords:existence"


@pytest.mark.parametrize("response", ["Sure, here it is:\nfine", "fine", ""])
def test_training_has_the_strict_value_of_both(response):
    found = in_all_modes(response, ("punctuation:no_comma", {}), ("keywords:existence", {"keywords": ["fine"]}))
    assert found["both"].reward == found["strict"].reward


def test_beside_other_rewards_both_counts_by_its_strict_score_and_keeps_its_shares():
    truths = truth(("punctuation:no_comma", {}), ("keywords:existence", {"keywords": ["sun"]}), mode="both")
    parts = [RewardTerm("precise_if", 2.0, truths), RewardTerm("math", 1.0, "7")]
    own = instructions.judge("the sun, again", truths, None)
    score = combine(parts, [own, Score.binary(True, "7")])
    assert [part.value for part in score.rewards] == [0.0, 1.0, 1 / 2, 1 / 2]
    assert (score.reward, score.value, score.passed) == (1.0, pytest.approx(1 / 3), False)


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
        (None, "expected an object"),
        ({"instruction_ids": ["punctuation:no_comma"]}, "expected an object"),
        (truth(), "at least 1"),
        ({"instruction_ids": ["punctuation:no_comma"], "kwargs": []}, "of one length"),
        (truth(("punctuation:no_coma", {})), "unknown constraint 'punctuation:no_coma'"),
        (truth(([], {})), "unknown constraint"),
        (truth(("punctuation:no_comma", None)), "arguments of punctuation:no_comma are not an object"),
        (truth(("keywords:existence", {})), r"accepts the arguments \['keywords'\]"),
        (truth(("keywords:existence", {"keywords": ["a"], "extra": 1})), r"accepts the arguments \['keywords'\]"),
        (truth(("length_constraints:number_words", {"num_words": "many", "relation": "less than"})), "number_words"),
        (truth(("length_constraints:number_words", {"num_words": 3, "relation": "about"})), "number_words"),
        (truth(("punctuation:no_comma", {}), mode="lose"), "accepted: strict, loose, both"),
        (truth(("punctuation:no_comma", {}), instructions=1), "unknown keys"),
    ],
)
def test_malformed_ground_truth_is_named(ground_truth, reason):
    assert re.search(reason, check_ground_truth("precise_if", ground_truth) or "accepted")


def test_missing_data_is_an_error_by_name_and_is_never_fetched(monkeypatch):
    monkeypatch.setattr(nltk.data, "path", [])
    monkeypatch.setattr(nltk, "download", lambda *_, **__: pytest.fail("tried to download"))
    sentences = truth(("length_constraints:number_sentences", {"num_sentences": 2, "relation": "at least"}))
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


@pytest.mark.long
def test_without_data_or_network_all_constraints_work_but_those_that_name_what_they_lack():
    probe = """
import nltk, socket
nltk.data.path[:] = []
def refuse(*_, **__): raise AssertionError("reached for the network")
nltk.download = socket.socket.connect = refuse
from tasks.verifiers import instructions
from tests.verifiers.instructions import instruction_cases
instructions.warm_up()
for name, arguments, good, _ in instruction_cases.CASES:
    truth = {"instruction_ids": [name], "kwargs": [arguments]}
    missing = instructions.missing_resources(truth)
    print(name if missing else "" if instructions.judge(good, truth, None).passed else f"failed {name}")
"""
    done = subprocess.run([sys.executable, "-c", probe], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert set(done.stdout.split("\n")) - {""} == NLTK_NEEDS.keys()


def test_a_missing_package_is_named(monkeypatch):
    from tasks.verifiers.instructions import needs

    monkeypatch.setattr(needs, "_is_installed", lambda package: package != "syllapy")
    assert missing_resources("precise_if", truth(("punctuation:no_comma", {}))) == [
        "punctuation:no_comma needs the Python package syllapy"
    ]


@pytest.mark.long
def test_the_table_of_arguments_and_the_checks_of_ground_truths_load_no_checker():
    probe = """
import sys
from tasks.sourcing import ground_truths
from tasks.sourcing.generators import instructions as generator
from tasks.verifiers import instructions
from tasks.verifiers.instructions.arguments import SCHEMAS
row = next(generator.generate(1, ("keywords:palindrome",), 1, 1, 0))
instructions.check_ground_truth({"instruction_ids": row["instruction_ids"], "kwargs": row["kwargs"]})
print(len(SCHEMAS), sorted({"nltk", "langdetect", "if_verifiable", "emoji", "syllapy", "sympy"} & sys.modules.keys()))
"""
    done = subprocess.run([sys.executable, "-c", probe], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "112 []"


@pytest.mark.complete
@pytest.mark.long
def test_whoever_imports_the_checkers_package_gets_it_whole():
    probe = """
import sys
from tasks.verifiers import instructions
instructions.warm_up()
print([name for name in sys.modules if name.startswith("if_verifiable") or name == "datasets"])
from if_verifiable.ifeval import instructions_util
print(hasattr(instructions_util, "WORD_LIST"))
"""
    done = subprocess.run([sys.executable, "-c", probe], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["[]", "True"]
