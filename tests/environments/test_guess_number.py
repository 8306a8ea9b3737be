"""Guessing a number: what counts as a guess, what is answered, and what is rewarded."""

import random

import pytest

from tasks.environments.guess_number import compute_nearness, guess_number
from tests.environments.scripted import play


def secret(seed, low=1, high=10):
    return random.Random(seed).randint(low, high)


def guesses(*numbers, seed=0, **columns):
    return play(guess_number, [str(number) for number in numbers], seed=seed, **{"low": 1, "high": 10, **columns})


def test_a_hit_ends_the_episode_with_a_reward_of_1():
    played = play(guess_number, [f"I say {secret(3)}!", "never"], seed=3, low=1, high=10)
    assert (played.result.reward, played.result.passed, played.inserted) == (1.0, True, [])


def test_misses_are_answered_with_the_way_to_go():
    number = secret(0, 1, 100)
    played = guesses(number - 1, number + 1, number, high=100)
    assert played.contents == ["Higher.", "Lower."]
    assert {message["role"] for message in played.inserted} == {"user"}
    assert played.result.reward == 1.0


def test_halving_always_hits_within_the_turns_that_the_docstring_counts():
    for seed in range(50):
        low, high, numbers = 1, 7, []
        while low <= high:
            numbers.append((low + high) // 2)
            if numbers[-1] < secret(seed, 1, 7):
                low = numbers[-1] + 1
            else:
                high = numbers[-1] - 1
        assert len(numbers) <= 3
        assert guesses(*numbers, seed=seed, high=7).result.passed


def test_all_numbers_are_drawn_and_the_same_seed_draws_the_same():
    assert {secret(seed) for seed in range(200)} == set(range(1, 11))
    assert guesses(secret(5), seed=5).result.passed
    assert not guesses(*[secret(5)] * 1, seed=next(s for s in range(9) if secret(s) != secret(5))).result.passed


@pytest.mark.parametrize(
    ("text", "guess"),
    [
        ("7", 7),
        ("is it 7 or 8?", 7),
        ("1-9", 1),
        ("-3", -3),
        ("**7**.", 7),
        ("07", 7),
        ("<think>2</think>7", 7),
        ("seven", None),
        ("", None),
        ("<think>7", None),
        ("9" * 5000, None),
        ("9" * 5000 + " 7", 7),
    ],
)
def test_a_guess_is_the_first_integer_of_a_turn(text, guess):
    number = secret(0, -9, 9)
    played = play(guess_number, [text, "0"], low=-9, high=9)
    if guess is None:
        assert played.contents == ["Say a number."]
    elif guess != number:
        assert played.contents == ["Higher." if guess < number else "Lower."]
    else:
        assert played.result.passed


def test_a_miss_earns_nothing_unless_nearness_does():
    number = secret(0)
    far = 1 if number > 5 else 10
    assert guesses(far).result.reward == 0.0
    assert not guesses(far, near=True).result.passed
    assert guesses(far, near=True).result.reward == pytest.approx(0.5 * (1 - abs(far - number) / 9))
    assert play(guess_number, ["none"], low=1, high=10, near=True).result.reward == 0.0


def test_the_nearest_miss_is_worth_less_than_half_of_a_hit():
    assert compute_nearness(4, 5, 9) == pytest.approx(4 / 9)
    assert compute_nearness(5 - 10**14, 5, 9) == 0.0
    assert max(compute_nearness(guess, 5, 9) for guess in range(-20, 30) if guess != 5) < 0.5


@pytest.mark.parametrize("high", [1, 0])
def test_an_empty_range_is_refused_before_a_turn(high):
    with pytest.raises(ValueError, match=f"high is {high}, and must be above low, which is 1"):
        play(guess_number, [], low=1, high=high)
