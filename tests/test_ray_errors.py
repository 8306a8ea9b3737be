"""Errors of real Ray actors, whose texts are tracebacks with a terminal's colours, as a person reads them."""

import os
import signal

import pytest
from flytekit.bin import entrypoint
from flytekit.exceptions.user import FlyteRecoverableException, FlyteUserRuntimeException

import workflows.rlvr  # noqa: F401 has flytekit patched
from tasks.failures import (
    LONGEST,
    InfrastructureError,
    MistakeError,
    describe_error,
    find_infrastructure_cause,
    one_line,
)
from tasks.flyte import errors, stages
from tasks.recipe.run import RewardsConfig
from tasks.training.actors.rewards import RayJudge, RewardProcess
from tasks.verifiers import VerifiersConfig

pytestmark = [pytest.mark.engine, pytest.mark.long]

INNER = "the inner message"
ERRORS = {kind.__name__: kind for kind in (InfrastructureError, MistakeError, ValueError)}
ENDS = ("is killed", "exits", "leaves")
"""How an actor's process ends without an error."""


@pytest.fixture(scope="module")
def ray():
    import ray

    ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)
    yield ray
    ray.shutdown()


CASES = [
    *(("constructor", how, INNER) for how in ERRORS),
    *(("method", how, INNER) for how in ERRORS),
    *(("method", how, "its worker process has died") for how in ENDS),
]


@pytest.fixture(scope="module")
def raised(ray):
    """Returns the error of an actor that fails in its constructor or in a method; all of them are started at once."""

    class Fails:
        def __init__(self, how=""):
            self.work(how)

        def work(self, how):
            if how in ERRORS:
                raise ERRORS[how](INNER + " and more" * 100 * (how == "InfrastructureError"))
            if how == "is killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if how == "exits":
                os._exit(3)
            if how == "leaves":
                ray.actor.exit_actor()

    fails = ray.remote(Fails).options(num_cpus=0)
    lives = fails.remote()

    def call(where, how):
        if where == "constructor":
            return fails.remote(how).work.remote("")
        return (lives if how in ERRORS else fails.remote()).work.remote(how)

    calls = {(where, how): call(where, how) for where, how, _ in CASES}

    def error_of(where, how):
        with pytest.raises(ray.exceptions.RayError) as caught:
            ray.get(calls[where, how])
        return caught.value

    return error_of


def is_plain(text, words):
    assert words in text
    assert text.isprintable()
    assert not [trace for trace in ("Traceback", "Trace:", 'File "', "^^^", "ray::") if trace in text]
    assert len(text) <= LONGEST


@pytest.mark.parametrize(("where", "how", "words"), CASES)
def test_the_sentence_on_an_actor_is_plain_and_has_what_it_raised(raised, where, how, words):
    error = raised(where, how)
    for text in (one_line(error), describe_error(error), one_line(f"a rank was lost: {error}", LONGEST)):
        is_plain(text, words)
    assert how in one_line(error) or how not in ERRORS


@pytest.mark.parametrize(("where", "how", "words"), CASES)
def test_the_console_shows_that_sentence_and_so_does_the_end_of_the_log(raised, monkeypatch, capsys, where, how, words):
    error, at_the_end = raised(where, how), []
    monkeypatch.setattr(errors.atexit, "register", lambda *call: at_the_end.append(call))

    def fails():
        raise error

    with pytest.raises(Exception) as of_stage:  # noqa: PT011 whichever
        stages._convert_failures(fails)()
    is_retried = isinstance(of_stage.value, FlyteRecoverableException)
    assert is_retried == (find_infrastructure_cause(error) is not None)
    wrapped = FlyteUserRuntimeException(of_stage.value)
    wrapped.__cause__ = of_stage.value
    text = entrypoint.get_traceback_str(wrapped)
    is_plain(text, words)
    assert "Flyte" not in text
    capsys.readouterr()
    [(print_last, sentence)] = at_the_end
    print_last(sentence)
    lines = capsys.readouterr().err.splitlines()
    assert lines == [""] * (errors.LAST_LINES - 1) + [text.strip()]


def test_a_reward_process_that_cannot_open_its_verifiers_ends_the_run_with_the_mistake(ray):
    import asyncio

    remote = ray.remote(RewardProcess).options(num_cpus=0, max_concurrency=10, max_restarts=-1, max_task_retries=3)
    process = remote.remote(RewardsConfig(workers=1), VerifiersConfig(), ["chat_open"])
    with pytest.raises(MistakeError, match="no judge for them"):
        asyncio.run(RayJudge(process, RewardsConfig()).score("chat_open", "7", None, []))
