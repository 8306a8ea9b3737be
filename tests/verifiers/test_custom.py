"""Verifiers of a user's own, by import path: judged as ours are, under limits, and never a 0 for their own failures."""

import os
import time

import pytest

from tasks.rollouts.judging import RolloutError, check_prompts
from tasks.tables.parquet import build_table
from tasks.tables.schemas import PROMPTS, canonical_json
from tasks.verifiers import VerifierPool, VerifiersConfig, check_ground_truth, missing_resources
from tasks.verifiers.custom import compute_own_digest, load_own_verifier
from tasks.verifiers.function_watch import FunctionWatch, RewardFunctionError
from tasks.verifiers.registry import TOO_LARGE
from tasks.verifiers.scores import GroundTruthError, Reward, is_own

NAME = "tests.verifiers.own_by_a_user"
QUESTION = [{"role": "user", "content": "e4?"}]


@pytest.fixture(scope="module")
def own_pool():
    os.environ["RLVR_TEST_SETTING"] = "x"
    with VerifierPool(1, VerifiersConfig(time_limit_seconds=0.4)) as pool:
        pool.wait_ready([NAME])
        yield pool
    del os.environ["RLVR_TEST_SETTING"]


@pytest.fixture
def judged(own_pool):
    return lambda truth, response="yes": own_pool.submit(NAME, response, {"ground_truth": truth}, QUESTION).result()


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Write the module of a verifier into the working directory, and return its import path."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    folder = f"own_{tmp_path.name.replace('-', '_')}"
    (tmp_path / folder).mkdir()

    def write(code, name="chess"):
        path = tmp_path / folder / f"{name}.py"
        path.write_text(code)
        os.utime(path, ns=(time.time_ns(), time.time_ns()))
        return f"{folder}.{name}"

    return write


FINE = "def check_ground_truth(ground_truth): pass\ndef judge(response, ground_truth, messages): return {}\n"


@pytest.mark.parametrize(
    ("name", "own"), [("my_verifiers.chess", True), ("math", False), ("a..b", False), ("a.b-c", False), (None, False)]
)
def test_a_name_with_a_dot_is_an_import_path(name, own):
    assert is_own(name) == own


@pytest.mark.long
def test_a_number_or_a_score_is_the_judgement(judged):
    assert judged("yes").value == 1.0
    assert judged("yes").passed
    assert (judged("half").value, judged("half").passed) == (0.5, False)
    assert judged("half").rewards == (Reward(NAME, 1.0, 0.5),)
    assert judged("question", "e4? e5").value == 1.0
    assert judged("warm").value == 1.0
    given = judged("score")
    assert (given.value, given.passed, given.detail) == (0.25, True, "three lines here")
    assert given.rewards == (Reward(NAME, 1.0, 0.25), Reward("style", 0.0, 7.0))
    assert given.reward == 0.25


@pytest.mark.long
@pytest.mark.parametrize(
    ("truth", "said"),
    [
        ("raise", "judge raised LookupError: no move in 'yes' (tests/verifiers/own_by_a_user.py, line "),
        ("deep", "judge raised RecursionError"),
        ("exit", "judge raised SystemExit: 3"),
        ("cannot", "could not judge: no engine"),
        ("text", "must return a number in [0, 1] or a tasks.verifiers.Score, got '1.0'"),
        ("none", "must return a number in [0, 1]"),
        ("two", "must return a number in [0, 1]"),
        ("nan", "must return a number in [0, 1]"),
        ("network", "judge raised"),
        ("write", "judge raised"),
    ],
)
def test_a_failure_is_an_error_with_the_verifiers_name_and_never_a_0(judged, truth, said):
    score = judged(truth)
    assert score.error.startswith(f"verifier {NAME}")
    assert said in score.error
    assert "\n" not in score.error
    assert score.failure.function == NAME
    assert not score.failure.may_pass
    assert "yes" not in score.failure.reason


@pytest.mark.long
def test_a_response_that_takes_more_than_it_may_scores_0(judged):
    spun, eaten = judged("spin"), judged("eat")
    assert (spun.error, spun.value, spun.timed_out) == (None, 0.0, True)
    assert (eaten.error, eaten.value) == (None, 0.0)
    assert eaten.detail.startswith(TOO_LARGE)


@pytest.mark.long
def test_it_is_locked_up(judged):
    assert judged("environment").value == 0.0
    assert judged("network").error
    assert judged("write").error
    assert not os.path.exists("written")


@pytest.mark.long
def test_it_is_a_part_of_several_rewards(own_pool):
    parts = [
        {"verifier": NAME, "weight": 1.0, "ground_truth": {"ground_truth": "half"}},
        {"verifier": NAME, "weight": 3.0, "ground_truth": {"ground_truth": "yes"}},
    ]
    score = own_pool.submit("weighted", "yes", {"rewards": parts}).result()
    assert score.value == (0.5 + 3.0) / 4
    assert not score.passed
    parts[1]["ground_truth"] = {"ground_truth": "raise"}
    failed = own_pool.submit("weighted", "yes", {"rewards": parts}).result()
    assert failed.error.startswith(f"verifier {NAME}: judge raised")


@pytest.mark.long
def test_one_that_always_fails_ends_a_stage_and_one_that_fails_once_does_not(judged):
    failed, fine = judged("raise"), judged("yes")
    watch = FunctionWatch()
    watch.judged("a", failed)
    watch.judged("a", fine)
    watch.finish()
    watch = FunctionWatch()
    for number in range(15):
        watch.judged(f"{number}", failed)
    with pytest.raises(RewardFunctionError) as error:
        watch.judged("15", failed)
    assert str(error.value).startswith(f"verifier {NAME} fails on 16 responses one after another: judge raised")


def test_ground_truths_are_checked_by_the_module(written):
    assert check_ground_truth(NAME, {"ground_truth": "yes"}) is None
    assert check_ground_truth(NAME, {"ground_truth": 3}) == "malformed ground truth: want a text, got 3"
    assert "check_ground_truth raised KeyError" in check_ground_truth(NAME, {"ground_truth": "stumble"})
    for form in ("yes", {"ground_truth": "yes", "more": 1}, {}):
        assert "expected an object with 'ground_truth'" in check_ground_truth(NAME, form)
    assert missing_resources(NAME, {"ground_truth": "needs a board"}) == ["a board"]
    assert check_ground_truth("nowhere_at_all.chess", {"ground_truth": 1}) is None
    [reason] = missing_resources("nowhere_at_all.chess", {"ground_truth": 1})
    assert reason.startswith("verifier nowhere_at_all.chess: there is no module nowhere_at_all.chess in ")


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import nothing_of_this", "cannot be imported: ModuleNotFoundError: No module named 'nothing_of_this'"),
        ("def judge(", "cannot be imported: SyntaxError"),
        ("raise SystemExit(1)", "cannot be imported: SystemExit: 1"),
        ("def check_ground_truth(ground_truth): pass", "has no judge(response, ground_truth, messages)"),
        ("def judge(response, ground_truth, messages): return 1", "has no check_ground_truth(ground_truth)"),
        (FINE.format(1) + "judge = 3", "judge is of type int, not a function"),
        (FINE.format(1) + "async def judge(*all): pass", "judge is async"),
        (
            FINE.format(1) + "def judge(response, ground_truth): pass",
            "judge(response, ground_truth) cannot be called as judge(response, ground_truth, messages)",
        ),
        (FINE.format(1) + "def warm_up(model): pass", "warm_up(model) cannot be called as warm_up()"),
    ],
)
def test_a_module_that_is_no_verifier_is_refused_in_one_sentence(written, code, said):
    name = written(code)
    [reason] = missing_resources(name, {"ground_truth": 1})
    assert reason.startswith(f"verifier {name}")
    assert said in reason
    assert "\n" not in reason


def test_a_module_that_changed_after_the_prompts_were_made_is_refused(written):
    name = written(FINE.format("1"))
    truth = load_own_verifier(name).checked("x")
    assert truth == {"ground_truth": "x", "digest": compute_own_digest(name)}
    assert missing_resources(name, truth) == []
    written(FINE.format("0"))
    [reason] = missing_resources(name, truth)
    assert "has changed since the prompts were made: read the source again" in reason
    assert load_own_verifier(name).checked("x") != truth
    assert load_own_verifier(name).judge("", {"ground_truth": "x"}, None).value == 0.0


def test_a_helper_of_the_module_is_in_its_digest(written):
    helper = written("VALUE = 1", "helper")
    name = written(f"import {helper}\n" + FINE.format(f"{helper}.VALUE"))
    before = load_own_verifier(name).checked("x")
    assert load_own_verifier(name).judge("", before, None).value == 1.0
    written("VALUE = 0.25", "helper")
    assert load_own_verifier(name).checked("x")["digest"] != before["digest"]
    assert load_own_verifier(name).judge("", {"ground_truth": "x"}, None).value == 0.25


@pytest.mark.long
def test_a_warm_process_keeps_its_code_and_a_failing_warm_up_is_every_judgements_error(written):
    name = written(FINE.format("1"))
    truth = load_own_verifier(name).checked("x")
    with VerifierPool(1) as pool:
        assert pool.submit(name, "a", truth).result().value == 1.0
        written(FINE.format("0"))
        assert pool.submit(name, "b", truth).result().value == 1.0
    with VerifierPool(1) as pool:
        assert "has changed since" in pool.submit(name, "a", truth).result().error
    name = written(FINE.format("1") + "def warm_up(): raise OSError('no weights')", "checkers")
    with VerifierPool(1) as pool:
        for response in "ab":
            score = pool.submit(name, response, {"ground_truth": "x"}).result()
            assert score.error.startswith(f"verifier {name}: warm_up raised OSError: no weights")


def test_prompts_are_checked_before_a_rollout(written):
    def table(truth):
        row = {
            "prompt_id": "p" * 32,
            "domain": "chess",
            "source": "games",
            "row": 0,
            "messages": QUESTION,
            "verifier": NAME,
            "ground_truth": canonical_json(truth),
            "metadata": "{}",
            "cluster": None,
        }
        return build_table([row], PROMPTS, "prompts")

    check_prompts(table(load_own_verifier(NAME).checked("yes")))
    with pytest.raises(RolloutError, match=r"source 'games': ground truth .*: want a text, got 3"):
        check_prompts(table({"ground_truth": 3}))
    with pytest.raises(RolloutError, match="lacks a board"):
        check_prompts(table({"ground_truth": "needs a board"}))
    with pytest.raises(RolloutError, match="has changed since the prompts were made"):
        check_prompts(table({"ground_truth": "yes", "digest": "0" * 16}))
    with pytest.raises(GroundTruthError):
        load_own_verifier(NAME).checked(None)
