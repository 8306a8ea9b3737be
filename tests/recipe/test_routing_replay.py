"""The way of routes from an engine's response to a step and to the tables, and where a run with them is refused."""

import asyncio
import json

import numpy as np
import pytest

from tasks.config.loading import SpecError
from tasks.failures import MistakeError
from tasks.generation.interface import Completion, VersionSpan
from tasks.inputs.files import load_quickstart
from tasks.inputs.preflight import check_together
from tasks.recipe.objective import ShapingConfig
from tasks.recipe.routing_replay import check_replayed_episodes, check_replayed_model, check_routing_replay
from tasks.recipe.run import TrainingConfig
from tasks.sourcing.environment_options import EnvironmentOptions
from tasks.storage.model_folder import ModelError
from tasks.tables.parquet import read_table, write_table
from tasks.training.cluster.processes import check_resources
from tasks.training.control.batch import advantages, train_batch
from tasks.training.groups.group import Group, JudgedGroup, Stage
from tasks.training.records.response_files import TRAINING_ROLLOUTS, RolloutFiles
from tasks.training.records.routes import decode_routes
from tasks.training.records.saved_groups import SAVED_GROUPS, load_groups, make_groups_table
from tasks.verifiers import Score
from tests.training.stand_ins import RecordingLearner, config, prompts

ON = TrainingConfig(routing_replay=True)


def routes(tokens, dtype=np.uint8, seed=0):
    return np.random.default_rng(seed).integers(0, 200, (tokens, 3, 2)).astype(dtype)


def group(number, *given):
    """A group of responses of four tokens, with these routes."""
    [prompt] = prompts(1)
    result = Group.create(number, prompt, len(given), sampled_at=0.0, policy_version=0)
    for index, (sample, known) in enumerate(zip(result.samples, given, strict=True)):
        ids, logprobs = np.arange(4, dtype=np.int32), np.full(4, -0.5, np.float32)
        sample.completion = Completion("c", ids, logprobs, "stop", [VersionSpan(0, 0, 4)], routes=known)
        sample.score, sample.stage = Score(float(index % 2), index % 2 == 1, ""), Stage.JUDGED
    return result


def test_a_step_gets_the_routes_of_the_responses():
    given = [routes(5, seed=0), routes(5, seed=1)]
    batch = [JudgedGroup.from_group(group(0, *given), ShapingConfig(), finished_at=1.0)]
    learner = RecordingLearner()
    asyncio.run(train_batch(batch, 0, 1e-6, learner, config(), advantages))
    [step] = learner.steps
    assert [sequence.routes is known for sequence, known in zip(step.sequences, given, strict=True)] == [True, True]


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_routes_come_back_from_a_checkpoint(tmp_path, dtype):
    before = group(3, routes(7, dtype), routes(1, dtype, seed=1)[:0], None)
    write_table(tmp_path / "groups.parquet", make_groups_table([before]), SAVED_GROUPS)
    _, [after] = load_groups(tmp_path / "groups.parquet", {p.prompt_id: p for p in prompts(1)}, ShapingConfig())
    first, empty, none = (sample.completion.routes for sample in after.samples)
    assert first.dtype == dtype
    np.testing.assert_array_equal(first, routes(7, dtype))
    assert empty.shape == (0, 3, 2)
    assert none is None


@pytest.mark.parametrize("share", [0, 1])
def test_routes_are_a_column_of_kept_groups_alone(tmp_path, share):
    files = RolloutFiles(tmp_path, keep_tokens=share)
    files.add(group(0, routes(7), None), "trained", step=0)
    asyncio.run(files.flush())
    [first, second] = read_table(tmp_path / "00000000.parquet", TRAINING_ROLLOUTS).to_pylist()
    assert second["routes"] is None
    assert (first["routes"] is not None) == (share == 1)
    if share:
        np.testing.assert_array_equal(decode_routes(first["routes"]), routes(7))


def test_routes_count_as_what_waits_to_be_written(tmp_path, monkeypatch):
    monkeypatch.setattr("tasks.training.records.response_files.FLUSH_BYTES", 6 * 1000)
    files = RolloutFiles(tmp_path, keep_tokens=1)
    files.add(group(0, routes(990)), "trained", step=0)
    assert not files.is_due
    files.add(group(1, routes(10)), "trained", step=0)
    assert files.is_due


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lora": {"rank": 4, "alpha": 8}}, "routing_replay and lora"),
        ({"learner": {"torch_compile": True}}, "routing_replay and learner.torch_compile"),
        ({"actors": {"engine": {"model_runner": "v1"}}}, "routing_replay and actors.engine.model_runner = v1"),
        ({"actors": {"engine": {"vllm": {"enable_prefix_caching": False}}}}, "enable_prefix_caching = false"),
        ({"actors": {"engine": {"vllm": {"enable_return_routed_experts": True}}}}, "enable_return_routed_experts"),
    ],
)
def test_options_that_cannot_be_right_with_it_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        TrainingConfig.model_validate({"routing_replay": True, **options})


def test_it_is_refused_on_cpus(monkeypatch):
    monkeypatch.setattr("ray.cluster_resources", lambda: {"CPU": 8.0})
    check_routing_replay(ON, gpu=True)
    check_routing_replay(TrainingConfig(), gpu=False)
    with pytest.raises(MistakeError, match=r"routing_replay = true: .* on GPUs alone"):
        check_resources(ON)


def test_it_is_refused_with_environments():
    data, training, evaluation = load_quickstart()
    source = data.sources[0]
    asked = training.model_copy(update={"routing_replay": True})
    check_replayed_episodes(asked, episodes=False)
    with_one = source.model_copy(update={"environment": EnvironmentOptions(name="rooms.maze")})
    with pytest.raises(SpecError, match=r"routing_replay = true: .* environment"):
        check_together(data.model_copy(update={"sources": [with_one, *data.sources[1:]]}), asked, evaluation)


@pytest.mark.parametrize(("kind", "fits"), [("qwen3_moe", True), ("qwen3", False), ("glm4_moe", False)])
def test_it_is_refused_for_models_whose_routers_it_does_not_know(tmp_path, kind, fits):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
    check_replayed_model(TrainingConfig(), tmp_path)
    if fits:
        check_replayed_model(ON, tmp_path)
        return
    with pytest.raises(ModelError, match=f"models of the type `{kind}`, only of qwen2_moe, qwen3_moe"):
        check_replayed_model(ON, tmp_path)
