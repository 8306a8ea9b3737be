"""Rewards of a user's own, and several rewards for one response."""

import dataclasses

import pytest

from tasks.verifiers import (
    Call,
    Reward,
    Score,
    VerifierPool,
    VerifiersConfig,
    check_ground_truth,
    collect_verifiers,
    functions,
    missing_resources,
)
from tasks.verifiers.scores import CannotJudge, SlowCall
from tasks.verifiers.weighted import combine, parse_terms
from tests.verifiers import rewards_of_a_user

HERE = "tests.verifiers.rewards_of_a_user"
RAISES = rewards_of_a_user.raises.__code__.co_firstlineno + 1
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
        ("raises", f"raises raised KeyError: 'no such column' (tests/verifiers/rewards_of_a_user.py, line {RAISES})"),
        ("leaves", "leaves raised SystemExit: 3 (tests/verifiers/rewards_of_a_user.py, line "),
        ("too_many", "too_many must return a list with one value per completion, got [1.0, 1.0]"),
        ("a_word", "a_word must return numbers, got 'good'"),
        ("infinite", "infinite returned inf, which is not finite"),
        (
            "takes_no_prompts",
            "takes_no_prompts() got an unexpected keyword argument 'prompts' (tests/verifiers/rewards_of_a_user.py, ",
        ),
        ("NOT_A_FUNCTION", "NOT_A_FUNCTION is of type int, not a function"),
        ("nowhere", "nowhere cannot be imported"),
    ],
)
def test_a_function_that_misbehaves_is_an_error_that_names_it(name, reason):
    with pytest.raises(CannotJudge) as error:
        functions.judge("x", own(name), None)
    assert f"{HERE}." in str(error.value)
    assert reason in str(error.value)


def failure_of(name, response="x"):
    with pytest.raises(CannotJudge) as error:
        functions.judge(response, own(name), None)
    return error.value.failure


def test_only_a_service_that_is_away_is_a_failure_that_may_pass():
    assert failure_of("is_away").may_pass
    assert failure_of("is_away_inside").may_pass
    assert not any(failure_of(name).may_pass for name in ("raises", "leaves", "too_many", "takes_no_prompts"))


def test_an_answer_of_a_service_counts_as_passing_by_its_status(monkeypatch):
    import urllib.error

    def of(status):
        return urllib.error.HTTPError("http://host", status, "", {}, None)

    assert [functions.is_transient(of(status)) for status in (503, 429, 404)] == [True, True, False]
    assert functions.is_transient(urllib.error.URLError(ConnectionRefusedError()))


def test_failures_of_one_kind_are_equal_whatever_the_response_is():
    assert failure_of("odd_length", "a") == failure_of("odd_length", "abc")
    assert failure_of("odd_length", "a").reason.startswith("raised ValueError (tests/verifiers/rewards_of_a_user.py, ")


def test_a_call_that_takes_long_is_named_with_its_seconds_by_the_score_of_all_parts(monkeypatch):
    monkeypatch.setattr(functions, "SLOW_SECONDS", 0.0)
    score = functions.judge("7", own("accuracy", answer=7), None)
    assert score.slow.function == f"{HERE}.accuracy"
    slower = dataclasses.replace(score, slow=SlowCall("other.f", score.slow.seconds + 1))
    parts = parse_terms(weighted(*(("function", 1.0, own("accuracy")) for _ in range(2))))
    assert combine(parts, [score, slower]).slow.function == "other.f"


def test_a_function_that_is_not_there_or_has_changed_is_found_before_any_work():
    assert missing_resources("function", own("accuracy")) == []
    (reason,) = missing_resources("function", {"function": "no_such_module.f", "columns": {}})
    assert "there is no module no_such_module" in reason
    right = functions.compute_function_digest(f"{HERE}.accuracy")
    assert missing_resources("function", own("accuracy") | {"digest": right}) == []
    (reason,) = missing_resources("function", own("accuracy") | {"digest": "0" * 16})
    assert "has changed since the prompts were made" in reason


@pytest.mark.parametrize(
    ("verifier", "ground_truth", "reason"),
    [
        ("function", {"function": "rewards.f"}, "expected an object with 'function' and 'columns'"),
        ("function", {"function": "f", "columns": {}}, "must be an import path"),
        ("function", {"function": "os.system('x')", "columns": {}}, "must be an import path"),
        ("function", own("accuracy", prompts=[]), "columns must be an object without"),
        ("weighted", {"rewards": []}, "at least one"),
        ("weighted", weighted(("math", 0, "7")), "a finite number other than 0"),
        ("weighted", weighted(("math", 1, "7"), ("math", -1, "7")), "sum to more than 0"),
        ("weighted", weighted(("maths", 1, "7")), "cannot be scored by 'maths'"),
        ("weighted", weighted(("weighted", 1, {})), "cannot be scored by 'weighted'"),
        ("weighted", weighted(("math", 1, "")), "expected a non-empty string"),
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


@pytest.mark.long
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


def test_the_first_reward_alone_decides_whether_a_response_passes(pool):
    prompt = weighted(("math", 1.0, "7"), ("function", 0.5, own("length_penalty")), ("function", 1, own("polite_only")))
    right, wrong = judged(pool, "7", prompt), judged(pool, "please: 8, which is long", prompt)
    assert (right.passed, right.value) == (True, pytest.approx((1.0 - 0.25) / 2.5))
    assert (wrong.passed, wrong.value) == (False, pytest.approx((1.0 + 1.0) / 2.5))


def test_none_leaves_a_reward_out_and_all_none_is_an_error(pool):
    elsewhere = [{"role": "user", "content": "Answer."}]
    both = weighted(("math", 1.0, "7"), ("function", 3.0, own("polite_only")))
    assert pool.submit("weighted", "7", both, elsewhere).result(60).value == 1.0
    alone = pool.submit("function", "7", own("polite_only"), elsewhere).result(60)
    assert alone.error == f"none of the rewards {HERE}.polite_only applies"


def test_an_error_of_one_reward_is_an_error_of_the_response(pool):
    score = judged(pool, "7", weighted(("math", 1.0, "7"), ("function", 0.1, own("raises"))))
    assert score.error.startswith(f"reward function {HERE}.raises raised KeyError")
    assert score.failure.function == f"{HERE}.raises"


@pytest.mark.long
@pytest.mark.parametrize("name", ["takes_a_terabyte", "recurses", "kills_itself"])
def test_what_a_function_does_to_its_process_is_never_a_score_of_0(pool, name):
    score = judged(pool, "7", own(name), "function")
    assert score.error.startswith(f"reward function {HERE}.{name}")
    assert not score.failure.may_pass


@pytest.mark.complete
@pytest.mark.long
def test_a_function_that_hangs_ends_at_the_limit(pool):
    score = judged(pool, "7", own("spins"), "function")
    assert score.error == f"reward function {HERE}.spins: time limit of 3 s of CPU time"
    assert (score.timed_out, score.failure.may_pass) == (True, False)
    assert judged(pool, "7", "7", "math").passed


def test_the_same_response_is_judged_once(pool):
    before = pool.stats()["math"]
    scores = pool.score_many([Call("math", "it is 11", "11")] * 20)
    after = pool.stats()["math"]
    assert scores == [Score(1.0, True, scores[0].detail)] * 20
    assert (after.calls - before.calls, after.repeated - before.repeated) == (1, 19)


@pytest.mark.long
def test_verifiers_of_a_prompt():
    assert collect_verifiers("math", "7") == {"math"}
    assert collect_verifiers("weighted", weighted(("math", 1, "7"), ("chat_open", 1, None))) == {"math", "chat_open"}
