"""Episodes in difficulty and evaluation: sampled once, cached with their turns, and judged again from the cache."""

import json

import pyarrow as pa
import pytest

from tasks.generation.config import EngineConfig, SamplingConfig
from tasks.generation.environment_spec import EnvironmentSpec
from tasks.rollouts.judging import RolloutError
from tasks.rollouts.sample_and_score import sample_and_score
from tasks.rollouts.sampling_loop import Workload
from tasks.tables.schemas import PROMPTS
from tasks.verifiers import VerifiersConfig
from tasks.verifiers.function_watch import RewardFunctionError
from tests.rollouts.test_rollout_cache import CountingEngine
from tests.rollouts.test_sample_and_score import cache_in, table

pytestmark = pytest.mark.long
ENGINE = EngineConfig(max_model_len=512, max_num_seqs=4)
SAMPLING = SamplingConfig(samples=2, max_tokens=200, seed=5)


def prompts(room, verifier="environment", truth=None, **columns):
    environment = EnvironmentSpec(f"tests.environments.rooms.{room}", columns=columns).to_json()
    plain = table("Count.", verifier=verifier, truth=truth)
    column = plain.schema.get_field_index("environment")
    return plain.set_column(column, PROMPTS.field("environment"), pa.array([environment], pa.large_string()))


@pytest.fixture
def scored(tiny_model, tmp_path, monkeypatch):
    def score(prompts, config=ENGINE):
        engine = CountingEngine()
        monkeypatch.setattr("tasks.rollouts.sampling_loop.run_engine", engine)
        rollouts = sample_and_score(
            [Workload(prompts, SAMPLING, cache_in(tmp_path))],
            tiny_model,
            config,
            policy="initial",
            stage="evaluation",
            verifiers=VerifiersConfig(),
        )
        return rollouts.table.to_pylist(), len(engine.requests)

    return score


def test_an_episode_is_sampled_once_and_its_turns_are_in_the_table(scored):
    rows, requests = scored(prompts("count", to=3))
    assert requests == 6
    for row in rows:
        assert [turn["role"] for turn in row["turns"]] == ["assistant", "user", "assistant", "user", "assistant"]
        assert [turn["sampled"] for turn in row["turns"]] == [True, False] * 2 + [True]
        assert [turn["content"] for turn in row["turns"] if not turn["sampled"]] == ["turn 2", "turn 3"]
        assert row["turns"][0]["token_ids"] == [0, 1, 2]
        assert row["response"] == row["turns"][-1]["content"]
        assert (row["num_tokens"], row["score"], row["passed"]) == (9, 1.0, True)
        assert row["rewards"] == [{"name": "environment", "value": 3.0}]
        assert json.loads(row["outcome"])["reward"] == 3.0
    assert scored(prompts("count", to=3)) == (rows, 0)
    assert scored(prompts("count", to=2))[1] == 4  # other columns, another episode


def test_a_verifier_judges_the_last_turn(scored):
    rows, _ = scored(prompts("silent", "math", "7"))
    assert [(row["score"], row["outcome"]) for row in rows] == [(0.0, None)] * 2
    assert [len(row["turns"]) for row in rows] == [1, 1]


def test_an_environment_that_fails_in_every_episode_ends_the_stage(scored):
    with pytest.raises(RewardFunctionError) as failed:
        scored(prompts("raising"))
    assert "raised KeyError (tests/environments/rooms.py, line" in str(failed.value)


def test_one_that_fails_at_times_is_set_aside_there(scored):
    """The verdicts on its other episodes are cached when the failures are judged again."""
    rows, _ = scored(prompts("odd"))
    assert [(row["score"], row["passed"]) for row in rows] == [(1.0, True), (None, None)]
    assert "raised KeyError" in rows[1]["error"]


def test_one_that_failed_for_a_cause_that_may_pass_is_played_again_by_the_next_attempt(scored, tmp_path):
    asked = prompts("outage", until=str(tmp_path / "back"))
    rows, requests = scored(asked)
    assert (requests, [row["passed"] for row in rows]) == (2, [True, None])
    (tmp_path / "back").touch()
    rows, requests = scored(asked)
    assert (requests, [row["passed"] for row in rows]) == (1, [True, True])
    assert scored(asked) == (rows, 0)


def test_a_server_cannot_play(scored):
    server = EngineConfig(server={"url": "http://localhost:1/v1", "model": "m"}, max_model_len=512)
    with pytest.raises(RolloutError, match="environment need an engine"):
        scored(prompts("count"), server)
