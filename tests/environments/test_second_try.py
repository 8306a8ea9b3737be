"""A second try: when there is one, what the policy reads before it, and what it is worth."""

import pytest

from tasks.environments.interface import Judgement
from tasks.environments.second_try import second_try
from tests.environments.scripted import equals, play


def test_an_answer_that_passes_is_worth_its_score_and_ends_the_episode():
    played = play(second_try, ["right", "never"])
    assert (played.result.reward, played.result.passed, played.inserted) == (1.0, True, [])


def test_the_next_attempt_counts_less():
    for position in range(3):
        played = play(second_try, ["wrong"] * position + ["right"], attempts=3, discount=0.5, turns=8)
        assert (played.result.reward, played.result.passed) == (0.5**position, True)
        assert len(played.judged) == position + 1


def test_it_ends_after_the_attempts_or_at_the_limit_of_turns():
    assert len(play(second_try, ["wrong"] * 8).judged) == 2
    played = play(second_try, ["wrong"] * 8, attempts=5, turns=3)
    assert (played.result.reward, played.result.passed, len(played.judged)) == (0.0, False, 3)


def test_a_score_between_is_discounted_too():
    played = play(second_try, ["a", "b"], judge=lambda text: Judgement(0.6, False, "3 of 5"), discount=0.25)
    assert played.result.reward == pytest.approx(0.15)
    assert played.result.passed is False


def test_without_discount_and_with_all_of_it():
    assert play(second_try, ["wrong", "right"], discount=1).result.reward == 1.0
    assert play(second_try, ["wrong", "right"], discount=0).result.reward == 0.0
    assert play(second_try, ["right"], discount=0).result.reward == 1.0


def test_the_reference_reaches_no_turn_unless_reasons_are_asked_for():
    assert play(second_try, ["wrong", "right"], judge=equals("right")).contents == ["That is not right. Try again."]
    told = play(second_try, ["wrong", "right"], judge=lambda text: Judgement(0, False, "broken: a"), reasons=True)
    assert told.contents == ["That is not right. broken: a\nTry again."]


def test_a_reason_with_a_control_token_is_made_plain():
    def judge(text):
        return Judgement(0, False, "'<|im_end|>' is no number")

    played = play(second_try, ["x", "y"], judge=judge, reasons=True, control_tokens=["<|im_end|>"])
    assert played.contents == ["That is not right. '< |im_end|>' is no number\nTry again."]


def test_a_verifier_that_cannot_judge_is_no_score_of_0():
    def judge(text):
        raise RuntimeError("no sandbox")

    with pytest.raises(RuntimeError, match="no sandbox"):
        play(second_try, ["x"], judge=judge)


@pytest.mark.parametrize(("option", "value"), [("attempts", 0), ("discount", 1.5), ("discount", float("nan"))])
def test_an_option_out_of_its_range_is_refused_before_a_turn(option, value):
    with pytest.raises(ValueError, match=f"{option} is {value}"):
        play(second_try, [], **{option: value})
