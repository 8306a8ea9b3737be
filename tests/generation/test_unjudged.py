"""Responses that cannot be scored: a function that always fails ends the stage, and too many are no result."""

from contextlib import nullcontext

import fsspec
import pyarrow as pa
import pytest

from tasks.failures import InfrastructureError
from tasks.generation.config import EngineConfig, SamplingConfig
from tasks.rollouts.judging import Judging, UnjudgedError
from tasks.rollouts.rollout_cache import RolloutCache
from tasks.rollouts.sampling_loop import Workload, sample
from tasks.tables.parquet import build_table
from tasks.tables.schemas import RESPONSES, messages_key
from tasks.verifiers import VerifiersConfig
from tasks.verifiers.function_watch import FAILURES, RewardFunctionError, RewardServiceError
from tests.rollouts.test_rollout_cache import CountingEngine
from tests.rollouts.test_sample_and_score import JUDGED_BY, table

ENGINE, SAMPLING = EngineConfig(max_model_len=128), SamplingConfig(samples=4, max_tokens=16, seed=5)
CONFIG = VerifiersConfig(time_limit_seconds=5)


def prompts(module, name, count=8):
    truth = {"function": f"{module}.{name}", "columns": {}}
    return table(*(f"Prompt {number}" for number in range(count)), verifier="function", truth=truth)


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Write the user's module, and return its name; each test has its own, as imports are cached."""
    monkeypatch.syspath_prepend(str(tmp_path))
    name = f"rewards_{tmp_path.name.replace('-', '_')}"

    def write(code):
        (tmp_path / f"{name}.py").write_text(code)
        return name

    return write


def judged(folder, prompts, *texts, max_unjudged=0.1):
    """Judge these responses to each of the prompts."""
    cache = RolloutCache.open(fsspec.filesystem("file"), str(folder / "cache"), "policy", ENGINE, SAMPLING, JUDGED_BY)
    rows = [
        {"prompt_id": name, "sample": number, "response": text, "num_tokens": 1, "finish_reason": "stop"}
        for name in prompts["prompt_id"].to_pylist()
        for number, text in enumerate(texts)
    ]
    with Judging(prompts, cache, CONFIG) as judging:
        rollouts = judging.rollouts(build_table(rows, RESPONSES, "responses"), "initial")
        judging.check_share(max_unjudged)
    return rollouts, judging


def test_a_function_that_always_fails_ends_the_stage_early_with_its_line(tmp_path, written):
    module = written("def f(completions, **columns):\n    return [columns['nowhere'][0]]\n")
    with pytest.raises(RewardFunctionError) as error:
        judged(tmp_path, prompts(module, "f"), *"abcd")
    assert f"{module}.f fails on {FAILURES} responses one after another: raised KeyError: 'nowhere'" in str(error.value)
    assert f"{module}.py, line 2)" in str(error.value)


def test_a_service_that_is_away_fails_recoverably_and_the_next_attempt_judges(tmp_path, written):
    module = written("def f(completions, **_):\n    raise ConnectionError('away')\n")
    with pytest.raises(RewardServiceError, match="raised ConnectionError: away"):
        judged(tmp_path, prompts(module, "f"), *"abcd")
    assert issubclass(RewardServiceError, InfrastructureError)


@pytest.mark.parametrize(("kind", "ends"), [("KeyError", True), ("ConnectionError", False)])
def test_sampling_ends_before_all_rollouts_are_paid_unless_judging_may_try_again(
    tiny_model, tmp_path, written, monkeypatch, kind, ends
):
    engine = CountingEngine()
    monkeypatch.setattr("tasks.rollouts.sampling_loop.run_engine", engine)
    table = prompts(written(f"def f(completions, **_):\n    raise {kind}('x')\n"), "f", count=50)
    options = ENGINE.model_copy(update={"max_num_seqs": 4})
    cache = RolloutCache.open(
        fsspec.filesystem("file"), str(tmp_path / "cache"), "policy", options, SAMPLING, JUDGED_BY
    )
    with pytest.raises(RewardFunctionError, match="raised KeyError") if ends else nullcontext():
        sample([Workload(table, SAMPLING, cache)], tiny_model, options, verifiers=CONFIG)
    assert len(engine.requests) < 100 if ends else len(engine.requests) == 200
    cache.responses.find([messages_key(row["messages"]) for row in table.to_pylist()])
    stored = sum((messages_key(row["messages"]), n) in cache.responses for row in table.to_pylist() for n in range(4))
    assert stored == len(engine.requests)


AT_TIMES = """
import pathlib
def f(completions, **_):
    text = completions[0][0]["content"]
    if text == "odd" and pathlib.Path({marker!r}).exists():
        raise {kind}("the service")
    return [0.5]
"""


@pytest.mark.parametrize(("kind", "error"), [("TimeoutError", UnjudgedError), ("ValueError", RewardFunctionError)])
def test_too_many_unjudged_responses_fail_and_a_rerun_judges_only_them(tmp_path, written, kind, error):
    marker = tmp_path / "away"
    marker.touch()
    table = prompts(written(AT_TIMES.format(marker=str(marker), kind=kind)), "f")
    sentence = r"8 of 32 responses could not be scored, more than the share of 0\.1 that max_unjudged allows"
    with pytest.raises(error, match=sentence):
        judged(tmp_path, table, "a", "odd", "b", "c")
    marker.unlink()
    rollouts, judging = judged(tmp_path, table, "a", "odd", "b", "c")
    assert rollouts["score"].to_pylist() == [0.5] * 32
    assert judging.judged == 8


def test_below_the_share_they_are_counted_and_have_their_reason(tmp_path, written):
    marker = tmp_path / "away"
    marker.touch()
    module = written(AT_TIMES.format(marker=str(marker), kind="ValueError"))
    table = prompts(module, "f")
    rollouts, judging = judged(tmp_path, table, "a", "odd", "b", "c", max_unjudged=0.25)
    assert (judging.unjudged, judging.responses) == (8, 32)
    unjudged = rollouts.filter(pa.compute.is_null(rollouts["score"])).to_pylist()
    assert [row["passed"] for row in unjudged] == [None] * 8
    assert all("raised ValueError: the service" in row["error"] for row in unjudged)
    assert rollouts["rewards"].to_pylist()[:2] == [[{"name": f"{module}.f", "value": 0.5}], None]
    assert rollouts["detail"].to_pylist()[:2] == [f"{module}.f: returned 0.5", None]
    again, judging = judged(tmp_path, table, "a", "odd", "b", "c", max_unjudged=0.25)
    assert judging.judged == 8  # the others' verdicts are cached, and say the same
    assert again.equals(rollouts)
