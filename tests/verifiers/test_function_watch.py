"""A reward function that always fails ends its stage early; one that fails or dawdles at times is named once."""

import pytest

from tasks.verifiers import Reward, Score
from tasks.verifiers.function_watch import (
    FAILURES,
    PROMPTS,
    FunctionWatch,
    LoggedFunctions,
    RewardFunctionError,
    RewardServiceError,
)
from tasks.verifiers.scores import FunctionFailure, SlowCall


def failed(name="mine.f", reason="raised KeyError (mine.py, line 3)", *, may_pass=False):
    error = f"reward function {name} raised KeyError: 'x' (mine.py, line 3)"
    return Score.from_error(error, FunctionFailure(name, reason, may_pass))


def judged(name="mine.f"):
    return Score(1.0, True, "", rewards=(Reward(name, 1.0, 1.0),))


def count(watch, scores, prompts=PROMPTS):
    """Give the watch scores of responses to some prompts; return how many it took."""
    for number, score in enumerate(scores):
        try:
            watch.judged(f"p{number % prompts}", score)
        except (RewardFunctionError, RewardServiceError) as error:
            return number + 1, error
    return len(scores), None


def test_a_function_that_always_fails_ends_the_stage_with_its_name_exception_and_line():
    taken, error = count(FunctionWatch(), [failed()] * 100)
    assert taken == FAILURES
    assert str(error) == (
        f"reward function mine.f fails on {FAILURES} responses one after another: "
        "raised KeyError: 'x' (mine.py, line 3)"
    )


def test_a_service_that_is_away_is_no_mistake_and_ends_no_stage_that_has_other_work():
    away = [failed(may_pass=True)] * 100
    assert isinstance(count(FunctionWatch(), away)[1], RewardServiceError)
    assert count(FunctionWatch(ends_when_away=False), away) == (100, None)


def test_one_odd_prompt_or_a_success_now_and_then_ends_nothing():
    assert count(FunctionWatch(), [failed()] * 100, prompts=PROMPTS - 1)[1] is None
    assert count(FunctionWatch(), ([failed()] * (FAILURES - 1) + [judged()]) * 10)[1] is None


def test_another_function_that_succeeds_does_not_hide_one_that_fails():
    assert count(FunctionWatch(), [failed("mine.f"), judged("mine.g")] * 50, prompts=2 * PROMPTS)[0] == 2 * FAILURES - 1


def test_an_episode_that_its_environment_ends_is_a_success_of_it_whoever_judges():
    """Its score has the verifier's rewards, or one of the name `environment`, and never its own name."""
    crashed = Score.from_error("environment mine.game raised KeyError", FunctionFailure("mine.game", "raised KeyError"))
    unjudged = Score.from_error("reward function mine.f raised", FunctionFailure("mine.f", "raised"))

    def taken(*others):
        watch = FunctionWatch()
        for number in range(100):
            for score in (crashed, *others):
                try:
                    watch.judged(f"p{number % PROMPTS}", score, "mine.game")
                except RewardFunctionError as error:
                    return number + 1, str(error)
        watch.finish()
        return 100, ""

    fails = (FAILURES, f"environment mine.game fails on {FAILURES} responses one after another: raised KeyError")
    assert taken() == fails
    assert taken(judged("environment")) == taken(judged("math")) == (100, "")
    assert taken(Score.from_error("the judge is away")) == fails
    assert taken(unjudged)[1].startswith("reward function mine.f fails on 16")


def test_a_cached_success_is_one():
    watch = FunctionWatch()
    watch.count_success(["mine.f"])
    count(watch, [failed()])
    watch.finish()


def test_at_the_end_a_function_that_never_succeeded_is_an_error_even_after_few_responses():
    watch = FunctionWatch()
    count(watch, [failed(reason=f"raised {number}") for number in range(5)])
    with pytest.raises(RewardFunctionError, match=r"mine\.f fails on every response \(5\): raised KeyError"):
        watch.finish()
    watch = FunctionWatch()
    count(watch, [failed(), judged(), failed()])
    watch.finish()


def test_slow_and_failing_functions_are_named_once(caplog):
    watch = FunctionWatch()
    slow = Score(1.0, True, "", rewards=(Reward("mine.f", 1.0, 1.0),), slow=SlowCall("mine.f", 30.25))
    count(watch, [slow, slow, failed(), failed(), slow])
    first, second = caplog.messages
    assert first.startswith("reward function mine.f is slow: one call took 30.2 s")
    assert second.startswith("reward function mine.f raised KeyError: 'x' (mine.py, line 3)")


def test_two_watches_of_one_stage_name_a_slow_and_a_failing_function_once(caplog):
    logged = LoggedFunctions()
    slow = Score(1.0, True, "", rewards=(Reward("mine.f", 1.0, 1.0),), slow=SlowCall("mine.f", 30.25))
    for ends_when_away in (False, True):
        count(FunctionWatch(ends_when_away=ends_when_away, logged=logged), [slow, failed()])
    assert len(caplog.messages) == 2
