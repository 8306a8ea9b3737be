"""Rewards of a user's own, and several rewards for one response."""

import pytest

from tasks.verifiers import (
    Call,
    Reward,
    Score,
    VerifierPool,
    VerifiersConfig,
    check_ground_truth,
    functions,
    missing_resources,
    verifiers_of,
)
from tasks.verifiers.scores import CannotJudge

HERE = "tests.verifiers.rewards_of_a_user"
MESSAGES = [{"role": "user", "content": "Answer politely."}]


def own(name, **columns):
    return {"function": f"{HERE}.{name}", "columns": columns}


def weighted(*parts):
    keys = ("verifier", "weight", "ground_truth")
    return {"rewards": [dict(zip(keys, part, strict=True)) for part in parts]}


def test_a_function_gets_completions_prompts_and_columns_as_trl_hands_them_over():
    assert functions.judge("7", own("accuracy", answer=7), None).rewards == (Reward(f"{HERE}.accuracy", 1.0, 1.0),)
    assert functions.judge("yes, please", own("polite_only"), MESSAGES).value == 1.0
    assert functions.judge("anything", own("later"), None).value == 0.25


def test_a_reward_outside_0_and_1_is_kept_and_the_score_is_held_within():
    short, long = (functions.judge(text, own("length_penalty"), None) for text in ("no", "long enough"))
    assert (short.value, short.reward, long.value, long.reward) == (0.0, -0.5, 1.0, 2.0)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("raises", "raises raised KeyError: 'no such column'"),
        ("too_many", "too_many must return a list with one value per completion, got [1.0, 1.0]"),
        ("a_word", "a_word returned 'good', which is no number"),
        ("infinite", "infinite returned inf, which is not finite"),
        ("takes_no_prompts", "takes_no_prompts() got an unexpected keyword argument 'prompts'"),
        ("NOT_A_FUNCTION", "NOT_A_FUNCTION is of type int, not a function"),
        ("nowhere", "nowhere cannot be imported"),
    ],
)
def test_a_function_that_misbehaves_is_an_error_that_names_it(name, reason):
    with pytest.raises(CannotJudge) as error:
        functions.judge("x", own(name), None)
    assert f"{HERE}." in str(error.value)
    assert reason in str(error.value)


def test_a_function_that_is_not_there_or_has_changed_is_found_before_any_work():
    assert missing_resources("function", own("accuracy")) == []
    (reason,) = missing_resources("function", {"function": "no_such_module.f", "columns": {}})
    assert "there is no module no_such_module" in reason
    right = functions.function_digest(f"{HERE}.accuracy")
    assert missing_resources("function", own("accuracy") | {"digest": right}) == []
    (reason,) = missing_resources("function", own("accuracy") | {"digest": "0" * 16})
    assert "has changed since the prompts were made" in reason


@pytest.mark.parametrize(
    ("verifier", "ground_truth", "reason"),
    [
        ("function", {"function": "rewards.f"}, "want an object with 'function' and 'columns'"),
        ("function", {"function": "f", "columns": {}}, "must be an import path"),
        ("function", {"function": "os.system('x')", "columns": {}}, "must be an import path"),
        ("function", own("accuracy", prompts=[]), "columns must be an object without"),
        ("weighted", {"rewards": []}, "at least one"),
        ("weighted", weighted(("math", 0, "7")), "a finite number other than 0"),
        ("weighted", weighted(("math", 1, "7"), ("math", -1, "7")), "sum to more than 0"),
        ("weighted", weighted(("maths", 1, "7")), "cannot be judged by 'maths'"),
        ("weighted", weighted(("weighted", 1, {})), "cannot be judged by 'weighted'"),
        ("weighted", weighted(("math", 1, "")), "want a non-empty string"),
    ],
)
def test_malformed_ground_truths_are_named(verifier, ground_truth, reason):
    assert reason in check_ground_truth(verifier, ground_truth)


@pytest.fixture(scope="module")
def pool():
    config = VerifiersConfig(time_limit_seconds=3, code={"test_seconds": 1, "total_seconds": 2})
    with VerifierPool(1, config) as pool:
        yield pool


def judged(pool, response, ground_truth, verifier="weighted"):
    return pool.submit(verifier, response, ground_truth, MESSAGES).result(60)


def test_several_rewards_are_judged_apart_and_summed_by_weight(pool):
    prompt = weighted(("math", 1.0, "7"), ("function", 0.5, own("length_penalty")), ("function", 1, own("polite_only")))
    score = judged(pool, "please: it is 7", prompt)
    assert score.rewards == (
        Reward("math", 1.0, 1.0),
        Reward(f"{HERE}.length_penalty", 0.5, 2.0),
        Reward(f"{HERE}.polite_only", 1.0, 1.0),
    )
    assert score.reward == 1.0 + 0.5 * 2.0 + 1.0
    assert score.value == 1.0
    worse = judged(pool, "8", prompt)
    assert (worse.reward, worse.value, worse.passed) == (-0.25, 0.0, False)


def test_none_leaves_a_reward_out_and_all_none_is_an_error(pool):
    elsewhere = [{"role": "user", "content": "Answer."}]
    both = weighted(("math", 1.0, "7"), ("function", 3.0, own("polite_only")))
    assert pool.submit("weighted", "7", both, elsewhere).result(60).value == 1.0
    alone = pool.submit("function", "7", own("polite_only"), elsewhere).result(60)
    assert alone.error == f"none of the rewards {HERE}.polite_only applies"


def test_an_error_of_one_reward_is_an_error_of_the_response(pool):
    score = judged(pool, "7", weighted(("math", 1.0, "7"), ("function", 0.1, own("raises"))))
    assert f"reward function {HERE}.raises raised KeyError" in score.error


@pytest.mark.complete
@pytest.mark.long
def test_a_function_that_hangs_ends_at_the_limit(pool):
    assert judged(pool, "7", own("spins"), "function").detail.endswith("time limit of 3 s of CPU time")
    assert judged(pool, "7", "7", "math").passed


def test_the_same_response_is_judged_once(pool):
    before = pool.stats()["math"]
    scores = pool.score_many([Call("math", "it is 11", "11")] * 20)
    after = pool.stats()["math"]
    assert scores == [Score(1.0, True, scores[0].detail)] * 20
    assert (after.calls - before.calls, after.repeated - before.repeated) == (1, 19)


@pytest.mark.long
def test_verifiers_of_a_prompt():
    assert verifiers_of("math", "7") == {"math"}
    assert verifiers_of("weighted", weighted(("math", 1, "7"), ("chat_open", 1, None))) == {"math", "chat_open"}
