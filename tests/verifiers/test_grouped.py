"""Reward functions that judge all responses to a prompt in one call, beside rewards of each response."""

import asyncio

import pytest

from tasks.verifiers import Reward, Score, VerifierPool, VerifiersConfig, check_ground_truth, functions
from tasks.verifiers.grouped import GroupRewards, has_group_reward, score_group
from tasks.verifiers.scores import CannotJudge
from tests.verifiers.test_functions import HERE, MESSAGES, own, weighted

TEXTS = ["7", "it is 7, I think", "it is 8"]
"""Of lengths 1, 16 and 7: their ranks are 0, 1 and a half."""
RANKS = (0.0, 1.0, 0.5)


def group(name, **columns):
    return own(name, **columns) | {"group": True}


async def in_process(verifier, response, ground_truth):
    """Judge by a function in this process, and by math where a response holds a 7."""
    if verifier == "function":
        try:
            return functions.judge(response, ground_truth, MESSAGES)
        except CannotJudge as reason:
            return Score.from_error(reason)
    assert (verifier, ground_truth["partial"]) == ("weighted", True)
    if response == "?":
        return Score.from_error("no verdict")
    right = float("7" in response)
    rewards = [Reward(part["verifier"], part["weight"], right) for part in ground_truth["rewards"]]
    return Score(0.0, right == 1, f"math: {right}", rewards=tuple(rewards))


def scored(verifier, ground_truth, texts=TEXTS):
    return asyncio.run(score_group(in_process, verifier, texts, ground_truth))


def test_a_function_of_a_group_gets_all_completions_with_as_many_prompts_and_values_of_columns():
    judged = functions.judge(TEXTS, group("ranks", answer=7), MESSAGES)
    assert judged.rewards == tuple(Reward(f"{HERE}.ranks", 1.0, rank) for rank in RANKS)
    assert [score.reward for score in scored("function", group("ranks", answer=7))] == list(RANKS)


def test_a_response_passes_where_the_first_reward_of_a_group_is_1():
    assert [score.passed for score in scored("function", group("ranks"))] == [False, True, False]


def test_rewards_of_a_response_and_of_its_group_are_summed_in_their_order():
    beside = weighted(("function", 2.0, group("ranks")), ("math", 1.0, "7"), ("function", -0.5, group("longest_only")))
    first, longest, wrong = scored("weighted", beside)
    names = [f"{HERE}.ranks", "math", f"{HERE}.longest_only"]
    assert [part.name for part in first.rewards] == names
    assert [part.value for part in longest.rewards] == [1.0, 1.0, 3.0]
    assert [part.value for part in wrong.rewards] == [0.5, 0.0, None]  # None leaves this response out of one reward
    assert [score.reward for score in (first, longest, wrong)] == [1.0, 2.0 + 1.0 - 1.5, 1.0]
    assert wrong.value == pytest.approx(1.0 / 3)
    assert [score.passed for score in (first, longest, wrong)] == [False, True, False]


def test_the_verifier_decides_what_passes_where_it_is_the_first():
    beside = weighted(("math", 1.0, "7"), ("function", 0.5, group("ranks")))
    assert [score.passed for score in scored("weighted", beside)] == [True, True, False]


def test_a_penalty_may_be_all_that_a_response_has_by_itself():
    beside = weighted(("math", -0.5, "7"), ("function", 1.0, group("ranks")))
    assert [score.reward for score in scored("weighted", beside)] == [-0.5, 0.5, 0.5]


def test_none_of_the_only_reward_is_an_error_and_no_score_of_0():
    first, longest, _ = scored("function", group("longest_only"))
    assert first.error == f"none of the rewards {HERE}.longest_only applies"
    assert longest.reward == 3.0


def test_a_response_that_fails_elsewhere_is_ranked_with_the_others_and_has_no_score():
    beside = weighted(("math", 1.0, "7"), ("function", 1.0, group("ranks")))
    texts = [TEXTS[0], "?", TEXTS[1]]
    first, failed, last = scored("weighted", beside, texts)
    assert failed.error == "no verdict"
    assert [score.rewards[1].value for score in (first, last)] == [0.0, 1.0]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("one_for_all", "must return a list with one value per completion"),
        ("nan_for_one", "returned nan, which is not finite"),
        ("raises", "raised KeyError (tests/verifiers/rewards_of_a_user.py, line "),
    ],
)
def test_a_failure_of_a_function_is_one_of_every_response_and_final(name, reason):
    scores = scored("weighted", weighted(("math", 1.0, "7"), ("function", 1.0, group(name))))
    assert len({(score.error, score.failure) for score in scores}) == 1
    assert scores[0].error.startswith(f"reward function {HERE}.{name} ")
    assert scores[0].failure.reason.startswith(reason)
    assert not scores[0].failure.may_pass


def test_too_few_rewards_are_quoted_with_the_number_of_completions():
    assert "got [1.0] for 3 completions" in scored("function", group("one_for_all"))[0].error


def test_a_function_is_never_called_with_a_group_where_it_takes_a_response_or_the_other_way_round():
    with pytest.raises(CannotJudge, match="ranks takes all responses to a prompt in one call"):
        functions.judge("7", group("ranks"), MESSAGES)
    with pytest.raises(CannotJudge, match="accuracy takes one response at a time"):
        functions.judge(TEXTS, own("accuracy"), MESSAGES)


def test_which_prompts_have_a_reward_of_the_group():
    assert has_group_reward("function", group("ranks"))
    assert has_group_reward("weighted", weighted(("math", 1.0, "7"), ("function", 1.0, group("ranks"))))
    assert not has_group_reward("function", own("accuracy"))
    assert not has_group_reward("weighted", weighted(("math", 1.0, "7")))
    assert not has_group_reward("math", "7")
    assert not has_group_reward("weighted", {"rewards": "none"})


def test_a_ground_truth_says_group_true_or_nothing_and_never_partial():
    assert check_ground_truth("function", group("ranks")) is None
    assert "group is true" in check_ground_truth("function", own("ranks") | {"group": "yes"})
    partial = GroupRewards.from_ground_truth("weighted", weighted(("math", 1.0, "7"))).alone
    assert "expected an object with 'rewards' alone" in check_ground_truth("weighted", partial)


@pytest.fixture(scope="module")
def pool():
    with VerifierPool(1, VerifiersConfig(time_limit_seconds=2)) as pool:
        yield pool


@pytest.mark.long
def test_a_pool_calls_the_function_once_for_a_group_and_the_verifier_for_each_response(pool):
    truth = weighted(("math", 1.0, "7"), ("function", 1.0, group("ranks")))
    scores = asyncio.run(pool.score_group("weighted", TEXTS, truth, MESSAGES))
    assert [score.reward for score in scores] == [1.0, 2.0, 0.5]
    stats = pool.stats()
    assert (stats["function"].calls, stats["math"].calls) == (1, 3)
    assert asyncio.run(pool.score_group("weighted", TEXTS, truth, MESSAGES)) == scores
    assert (pool.stats()["function"].calls, pool.stats()["function"].repeated) == (1, 1)


@pytest.mark.long
def test_a_response_alone_has_no_score_of_a_group(pool):
    score = pool.submit("function", "7", group("ranks"), MESSAGES).result(60)
    assert score.error == f"reward function {HERE}.ranks takes all responses to a prompt in one call"


@pytest.mark.long
def test_a_function_of_a_group_that_never_ends_is_its_failure_on_every_response(pool):
    scores = asyncio.run(pool.score_group("function", TEXTS, group("spins"), MESSAGES))
    assert {score.failure.function for score in scores} == {f"{HERE}.spins"}
    assert all(score.timed_out and score.value == 0.0 and score.error for score in scores)
