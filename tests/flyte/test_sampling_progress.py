"""What is said of a stage that samples before its first response, and when it stops early."""

from tasks.flyte.stages import sampling_progress
from tasks.generation.config import EngineConfig
from tasks.machine import progress
from tests.evaluation.test_policy_comparison import prompts


def test_until_the_first_response_the_engine_is_loading_and_the_last_line_says_why_it_stopped(capsys, monkeypatch):
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.01)
    printed = []
    monkeypatch.setattr(progress, "_print", printed.append)
    table = prompts(a="math", b="math")
    with sampling_progress("rollouts", table, 4, EngineConfig().loading) as (judged, end):
        while not printed:
            pass
        judged({"prompt_id": "a", "score": 0.5})
        end("stopped early: 1 prompt was decided")
    assert printed[0].endswith("the engine is loading")
    assert printed[-1].startswith("rollouts: 1/4")
    assert printed[-1].endswith("stopped early: 1 prompt was decided")
