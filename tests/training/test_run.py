"""Training for real: a tiny model, vLLM actors, DeepSpeed ranks, and what happens when processes are killed."""

import math
import re
import signal
import uuid
from collections import Counter
from contextlib import nullcontext

import pytest

from tasks.charts.panels import PANELS
from tasks.generation.config import SamplingConfig
from tasks.recipe.learner import DenseAttentionError, LoraConfig
from tasks.recipe.run import TrainingConfig, ValidationConfig
from tasks.tables.parquet import read_table
from tasks.tables.schemas import LEDGER, MIXTURE
from tasks.training.cluster.processes import ResourceError, check_resources
from tasks.training.records.response_files import TRAINING_ROLLOUTS
from tasks.training.run import RunInputs, train
from tests import tiny_model
from tests.training.driven import ENGINE, LEARNER, LOG, metrics, run
from tests.training.mixtures import mixture

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1200)]  # a run with restarts, beside two other processes

RECIPE = TrainingConfig.model_validate(
    {
        "steps": 6,
        "groups_per_step": 2,
        "sampling": {"samples": 4, "max_tokens": 16},
        "optimizer": {"learning_rate": 1e-3},
        "learner": {"cpu_threads": 1},
        "actors": {"engine": {"max_model_len": 128, "max_num_seqs": 16, "cpu_threads": 1}},
        "checkpoint_every": 1,
        "stall_seconds": 240,
    }
)
OF_OTHER_OPTIONS = {
    "kl",
    "masked",
    "off_policy",
    "retired_prompts",
    "deferred_prompts",
    "recovered_groups",
    "replayed_groups",
    "sampling_rounds",
    "learner_mfu",
    "engines_mbu",
}
"""Metrics of options that the runs of this file do not use, and of GPUs."""
CONTENTS = [
    f"Write a sentence about the {word}" for word in ("sea", "river", "rain", "dog", "fox", "sum", "word", "answer")
]


@pytest.fixture(scope="module")
def prompts(tmp_path_factory):
    return mixture(tmp_path_factory.mktemp("mixture"), CONTENTS)


@pytest.fixture
def folder(tmp_path):
    """A run folder whose name no other run has."""
    folder = tmp_path / uuid.uuid4().hex
    folder.mkdir()
    return folder


def check_ledger(folder):
    """Every step trained two groups, none of them twice; returns the rows."""
    rows = read_table(folder / "ledger.parquet", LEDGER).to_pylist()
    trained = [row for row in rows if row["fate"] == "trained"]
    assert Counter(row["step"] for row in trained) == dict.fromkeys(range(RECIPE.steps), RECIPE.groups_per_step)
    assert len({row["group"] for row in rows}) == len(rows)
    for row in trained:
        assert 0 < sum(row["scores"]) < RECIPE.sampling.samples
        assert row["advantage_spread"] > 0
        assert 0 <= row["step"] - row["last_version"] <= row["step"] - row["first_version"] <= RECIPE.max_staleness
    return rows


def check_agreement(folder):
    """Where nothing older than the learner's policy is trained on, engine and learner agree on every token."""
    fresh = [row for row in metrics(folder) if row["staleness_max"] == 0]
    assert fresh[0]["step"] == 0
    assert all(row["mismatch"] < 0.02 for row in fresh)  # nats; bfloat16 alone makes 0.005


@pytest.fixture(scope="module")
def untied_model(tmp_path_factory):
    return tiny_model.build(tmp_path_factory.mktemp("untied"), tied=False)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((1, {}), id="the only engine and the only rank", marks=pytest.mark.complete),
        pytest.param((2, {"zero_stage": 3, "persistence_threshold": 0}), id="1 of 2", marks=pytest.mark.complete),
    ],
)
def killed(untied_model, prompts, tmp_path_factory, request):
    """The folder of a run of which an engine and a learner rank were killed; both restart."""
    number, sharded = request.param
    folder = tmp_path_factory.mktemp("runs") / uuid.uuid4().hex
    folder.mkdir()
    recipe = RECIPE.model_copy(
        update={
            "learner": RECIPE.learner.model_copy(update={"ranks": number, "cpus": 1 / number, **sharded}),
            "actors": RECIPE.actors.model_copy(update={"count": number, "cpus": 1 / number}),
            "checkpoint_every": 2,
            "validation": ValidationConfig(every=3, prompts=2, samples=2),
        }
    )
    assert run(recipe, untied_model, prompts, folder, kills={0: ENGINE, 2: LEARNER}) == 0
    return folder


def check_run(folder):
    """The steps are all there and make sense, and trained what they should."""
    assert [row["step"] for row in metrics(folder)] == list(range(RECIPE.steps))
    assert [path.name for path in (folder / "checkpoints").iterdir()] == [f"step_{RECIPE.steps:08d}"]
    check_agreement(folder)
    for row in metrics(folder):
        assert all(math.isfinite(value) for value in row.values())
        assert 0 < row["batch_reward"] < 1
        assert row["grad_norm"] > 0
        assert row["response_length"] <= 16
    return check_ledger(folder)


def test_the_charts_draw_what_a_run_records(killed):
    recorded = {name for row in metrics(killed) for name in row}
    drawn = {name for panel in PANELS for name in panel.metrics}
    assert drawn - recorded == OF_OTHER_OPTIONS


def test_a_run_hands_over_a_policy(untied_model, killed):
    import torch
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    check_run(killed)
    model = AutoModelForCausalLM.from_pretrained(killed / "policy")
    assert AutoTokenizer.from_pretrained(killed / "policy").chat_template
    with torch.no_grad():
        assert model(torch.tensor([[5, 6, 7]])).logits.isfinite().all()
    before, after = (load_file(path / "model.safetensors") for path in (untied_model, killed / "policy"))
    assert before.keys() == after.keys()
    assert any(not torch.equal(before[name], after[name]) for name in before)


def validated(folder):
    """Mean scores by version."""
    rows = [row for row in metrics(folder) if "validation/version" in row]
    return {int(row["validation/version"]): row["validation/score"] for row in rows}


def test_policies_are_validated_on_prompts_that_are_never_trained_on(killed):
    assert validated(killed).keys() <= {0, 3, 6}  # with the engine that kept it, a version may be lost
    assert 6 in validated(killed)
    assert all(0 <= score <= 1 for score in validated(killed).values())
    trained_on = {row["prompt_id"] for row in check_ledger(killed)}
    assert len(trained_on) == len(CONTENTS) - 2


@pytest.mark.complete
def test_a_killed_driver_is_resumed_from_its_checkpoint_and_hands_over_the_best_policy(tiny_model, prompts, folder):
    validation = ValidationConfig(every=2, prompts=2, samples=2, hand_over="best")
    recipe = RECIPE.model_copy(update={"validation": validation})
    assert run(recipe, tiny_model, prompts, folder, kill_driver_after=4) == -signal.SIGKILL
    assert [row["step"] for row in metrics(folder)][:4] == [0, 1, 2, 3]  # the next is taken while it is written
    lines = "".join((folder / "metrics.jsonl").read_text().splitlines(keepends=True)[:4])
    assert run(recipe, tiny_model, prompts, folder) == 0
    assert (folder / "resumed_from").read_text() == "4"
    assert (folder / "metrics.jsonl").read_text().startswith(lines)  # what was trained is not trained again
    check_run(folder)
    scores = validated(folder)
    best = max(scores, key=lambda version: (scores[version], -version))
    source = folder / "policies" / f"validated_{best:08d}" if best else tiny_model
    assert [path.name for path in (folder / "policies").iterdir()] == ([source.name] if best else [])
    assert (folder / "policy" / "model.safetensors").read_bytes() == (source / "model.safetensors").read_bytes()


@pytest.mark.complete
def test_a_run_of_two_learner_ranks_is_resumed_by_one(tiny_model, prompts, folder):
    def of_ranks(ranks):
        learner = RECIPE.learner.model_copy(update={"ranks": ranks, "cpus": 0.5})
        return RECIPE.model_copy(update={"learner": learner})

    assert run(of_ranks(2), tiny_model, prompts, folder, kill_driver_after=3) == -signal.SIGKILL
    assert run(of_ranks(1), tiny_model, prompts, folder) == 0
    assert (folder / "resumed_from").read_text() == "3"
    check_run(folder)


@pytest.mark.complete
def test_easy_prompts_come_first_solved_ones_retire_and_hard_ones_wait(tiny_model, tmp_path, folder):
    rates = [0.9, 0.1, 0.5, 0.7, 0.3, 0.2, 0.8, 0.6]
    recipe = RECIPE.model_validate(
        {
            **RECIPE.model_dump(),
            "steps": 12,
            "async_steps": 1,
            "resampling": {"kind": "none"},
            "replay": {"size": 4, "max_replays": 2},
            "prompts": {
                "curriculum": {"band": 0.0},
                "reroll": {"start_fraction": 0.2},
                "retirement": {"pass_rate": 0.75, "consecutive_groups": 2, "when_all_solved": "stop"},
            },
        }
    )
    prompts = mixture(tmp_path, CONTENTS, rates=rates)
    assert run(recipe, tiny_model, prompts, folder) == 0
    rows = read_table(folder / "ledger.parquet", LEDGER).to_pylist()
    easiest = sorted(zip(rates, read_table(prompts, MIXTURE)["prompt_id"].to_pylist(), strict=True), reverse=True)
    sampled = [row["prompt_id"] for row in sorted(rows, key=lambda row: row["group"]) if row["fate"] != "replayed"]
    assert sampled[: len(rates)] == [prompt_id for _, prompt_id in easiest]
    solved = [row for row in rows if row["fate"] != "replayed" and row["scores"] and sum(row["scores"]) / 4 >= 0.75]
    assert metrics(folder)[-1]["retired_prompts"] <= len({row["prompt_id"] for row in solved})
    assert sum(row["replayed_groups"] for row in metrics(folder)) == sum(row["fate"] == "replayed" for row in rows)


@pytest.mark.complete
def test_responses_follow_a_regular_expression_and_end_at_a_stop_text(tiny_model, prompts, folder):
    sampling = SamplingConfig(samples=4, max_tokens=16, guided_regex="[a-z ]{1,40}", stop=["s"])
    assert run(RECIPE.model_copy(update={"sampling": sampling}), tiny_model, prompts, folder) == 0
    rows = [
        row
        for file in (folder / "rollouts").glob("*.parquet")
        for row in read_table(file, TRAINING_ROLLOUTS).to_pylist()
    ]
    assert rows
    assert all(re.fullmatch("[a-z ]{1,40}", row["response"]) for row in rows)
    assert all("s" not in row["response"][:-1] for row in rows)
    assert all(math.isfinite(value) for row in metrics(folder) for value in row.values())


@pytest.mark.complete
def test_in_float32_engine_and_learner_agree_to_its_last_digits(tiny_model, prompts, folder):
    learner, engine = RECIPE.learner, RECIPE.actors.engine
    recipe = RECIPE.model_copy(
        update={
            "async_steps": 0,
            "max_staleness": 0,
            "learner": learner.model_copy(update={"dtype": "float32"}),
            "actors": RECIPE.actors.model_copy(update={"engine": engine.model_copy(update={"dtype": "float32"})}),
        }
    )
    assert run(recipe, tiny_model, prompts, folder) == 0
    assert [row["staleness_max"] for row in metrics(folder)] == [0] * RECIPE.steps
    for row in metrics(folder):
        assert row["mismatch"] < 1e-5  # nats; bfloat16 makes 0.005
        assert math.isfinite(row["loss"])


@pytest.mark.complete
def test_a_run_trains_an_adapter_that_its_engine_follows(tiny_model, prompts, folder):
    lora = LoraConfig(rank=4, alpha=8)
    recipe = RECIPE.model_copy(update={"lora": lora, "async_steps": 0, "max_staleness": 0})
    assert run(recipe, tiny_model, prompts, folder) == 0
    check_ledger(folder)
    # all of a batch is sampled by the adapter that it trains: engine and learner agree
    assert [row["staleness_max"] for row in metrics(folder)] == [0] * RECIPE.steps
    assert all(row["mismatch"] < 0.02 for row in metrics(folder))
    assert {path.name for path in (folder / "policy" / "adapter").iterdir()} >= {
        "adapter_config.json",
        "adapter_model.safetensors",
    }


def test_a_run_survives_the_death_of_an_engine_and_of_a_learner_rank(killed):
    rows = check_ledger(killed)
    warnings = (killed / LOG).read_text()
    assert sum(row["actors_lost"] for row in metrics(killed)) == 1, warnings
    assert sum(row["learner_restarts"] for row in metrics(killed)) == 1, warnings
    assert "failed" not in {row["fate"] for row in rows}  # what the engine had not finished was generated by others
    # a new engine begins with the initial checkpoint, and takes the learner's weights before it samples anything
    check_agreement(killed)


@pytest.mark.complete
def test_learner_and_engine_take_turns_on_one_gpu_and_either_may_die(tiny_model, prompts, folder):
    """The GPU is pretended: engine and rank stop for each other as on a real one, and stay in main memory."""
    recipe = RECIPE.model_copy(
        update={"placement": "time_shared", "checkpoint_every": 2, "validation": ValidationConfig(every=3, prompts=2)}
    )
    kills = {1: ENGINE, 3: LEARNER}
    assert run(recipe, tiny_model, prompts, folder, kills=kills, pretend_gpu=True) == 0
    check_run(folder)
    warnings = (folder / LOG).read_text()
    assert sum(row["actors_lost"] for row in metrics(folder)) == 1, warnings
    assert sum(row["learner_restarts"] for row in metrics(folder)) == 1, warnings
    assert all(row["actors_idle"] > 0 for row in metrics(folder))  # asleep
    assert all(row["preemptions"] == 0 for row in metrics(folder))


@pytest.fixture(scope="module")
def two_cores():
    """A local Ray that has two cores."""
    import ray

    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.mark.usefixtures("two_cores")
def test_a_run_that_goes_on_needs_one_actor_to_begin_with(caplog):
    recipe = RECIPE.model_copy(update={"actors": RECIPE.actors.model_copy(update={"count": 4})})
    with pytest.raises(ResourceError):
        check_resources(recipe)
    check_resources(recipe, resuming=True)
    assert "need 5 CPUs, and the cluster has 2: the run continues with the actors that fit" in caplog.text
    learner = recipe.learner.model_copy(update={"cpus": 2})
    with pytest.raises(ResourceError):
        check_resources(recipe.model_copy(update={"learner": learner}), resuming=True)


def test_rows_that_would_have_a_dense_mask_on_gpus_are_an_error(monkeypatch):
    resources = {"CPU": 8.0, "GPU": 8.0}
    monkeypatch.setattr("torch.backends.cuda.is_built", lambda: True)
    monkeypatch.setattr("ray.cluster_resources", lambda: resources)
    monkeypatch.setattr("ray.nodes", lambda: [{"Alive": True, "NodeManagerAddress": "a", "Resources": resources}])
    for dtype, tokens, refused in (("float32", 4097, True), ("float32", 4096, False), ("auto", 35_840, False)):
        learner = RECIPE.learner.model_copy(update={"dtype": dtype, "micro_batch_tokens": tokens})
        with pytest.raises(DenseAttentionError) if refused else nullcontext():
            check_resources(RECIPE.model_copy(update={"learner": learner}))


@pytest.mark.usefixtures("two_cores")
@pytest.mark.parametrize(
    ("part", "change", "message"),
    [
        ("learner", {"cpus": 64}, "need 65 CPUs, and the cluster has 2"),
        ("actors", {"count": 3}, r"actors\.count = 3 \(actors\.cpus = 1 each\) need 4 CPUs, and the cluster has 2"),
    ],
)
def test_a_cluster_that_is_too_small_is_an_error_with_both_numbers(
    tiny_model, prompts, tmp_path, part, change, message
):
    options = RECIPE.model_dump()
    recipe = TrainingConfig.model_validate({**options, part: {**options[part], **change}})
    with pytest.raises(ResourceError, match=message):
        check_resources(recipe)
    with pytest.raises(ResourceError, match=message):
        train(RunInputs(recipe, tiny_model, prompts, tmp_path / "run"))
    assert not (tmp_path / "run").exists()
