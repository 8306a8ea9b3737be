"""Metrics at Weights & Biases and MLflow: the real packages, offline, each following a run folder."""

import contextlib
import importlib.util
import json
import os
import signal
import struct
import uuid
from pathlib import Path

import pytest

from tasks.recipe.run import TrainingConfig
from tasks.training.telemetry import trackers
from tasks.training.telemetry.trackers import TrackerError, check, follow_run
from tests.training import driven
from tests.training.mixtures import mixture
from tests.training.test_run import CONTENTS, RECIPE

CONFIG = TrainingConfig().model_dump(mode="json")


def took(folder, steps):
    """What training does: a line for each of `steps`."""
    with (folder / "metrics.jsonl").open("a") as file:
        for step in steps:
            file.write(json.dumps({"step": step, "reward": step / 10, "reward/math": 0.5}) + "\n")


@pytest.fixture
def folder(tmp_path):
    """A run folder."""
    made = tmp_path / "0123456789abcdef"
    made.mkdir()
    (made / "metrics.jsonl").touch()
    return made


def train_twice(folder, tracker):
    """Two attempts; the first was killed after a checkpoint, and the second repeats the step after that."""
    with contextlib.suppress(ZeroDivisionError), follow_run([tracker], folder, CONFIG):
        took(folder, range(3))
        raise ZeroDivisionError
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text("".join(lines[:2]))
    with follow_run([tracker], folder, CONFIG):
        took(folder, range(2, 5))


def mlflow_runs(store):
    from mlflow.tracking import MlflowClient

    client = MlflowClient(str(store))
    experiment = client.get_experiment_by_name(trackers.PROJECT)
    return client, client.search_runs([experiment.experiment_id])


@pytest.mark.long
def test_mlflow_has_each_step_once_in_one_run_that_went_on(folder, tmp_path, monkeypatch):
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", str(tmp_path / "store"))
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    train_twice(folder, "mlflow")
    client, [run] = mlflow_runs(tmp_path / "store")
    history = client.get_metric_history(run.info.run_id, "reward")
    assert [(each.step, each.value) for each in history] == [(step, step / 10) for step in range(5)]
    assert "reward.math" in run.data.metrics  # MLflow's stores may have no reward and reward/math
    assert (run.info.run_name, run.info.status) == (folder.name, "FINISHED")
    assert run.data.params["objective.clip_low"] == str(CONFIG["objective"]["clip_low"])


def wandb_records(folder):
    """Records of all offline runs, each in one file: a header of 7 bytes, then LevelDB's log format."""
    from wandb.proto.wandb_internal_pb2 import Record

    for path in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        data, at, text = path.read_bytes(), 7, b""
        while at + 7 <= len(data):
            if (left := 32768 - at % 32768) < 7:  # a block's end is padded
                at += left
                continue
            length, kind = struct.unpack("<HB", data[at + 4 : at + 7])
            text += data[at + 7 : at + 7 + length]
            at += 7 + length
            if kind in (1, 4):  # whole, or the last part
                yield path, Record.FromString(text)
                text = b""


@pytest.mark.long
def test_wandb_has_each_step_once_under_the_name_of_the_run_folder(folder, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    train_twice(folder, "wandb")
    records = [record for _, record in wandb_records(folder)]
    assert {record.run.run_id for record in records if record.HasField("run")} == {folder.name}
    steps = [record.history.step.num for record in records if record.HasField("history")]
    assert steps == list(range(5))


@pytest.mark.engine
@pytest.mark.complete
def test_a_run_whose_driver_was_killed_goes_on_in_the_same_run_of_the_tracker(tiny_model, tmp_path, monkeypatch):
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", str(tmp_path / "store"))
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    folder = tmp_path / uuid.uuid4().hex
    folder.mkdir()
    recipe = RECIPE.model_copy(update={"trackers": ["mlflow"]})
    prompts = mixture(tmp_path, CONTENTS)
    assert driven.run(recipe, tiny_model, prompts, folder, kill_driver_after=3) == -signal.SIGKILL
    assert driven.run(recipe, tiny_model, prompts, folder) == 0
    client, [run] = mlflow_runs(tmp_path / "store")
    steps = [each.step for each in client.get_metric_history(run.info.run_id, "batch_reward")]
    assert steps == list(range(recipe.steps))


@pytest.mark.long
@pytest.mark.parametrize("tracker", ["wandb", "mlflow"])
def test_a_service_that_does_not_answer_ends_nothing_and_is_said_once(folder, tracker, monkeypatch, capfd):
    pytest.importorskip(tracker)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("WANDB_API_KEY", "5" * 40)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://someone:secret@127.0.0.1:9")
    with follow_run([tracker], folder, CONFIG, flush_seconds=3):
        took(folder, range(3))
    said = [line for line in capfd.readouterr().err.splitlines() if line.startswith("trackers:")]
    assert len(said) == 1
    assert tracker in said[0]
    assert "secret" not in said[0]
    assert "5" * 40 not in said[0]


def test_without_trackers_no_process_is_started(folder):
    before = os.listdir(folder)
    with follow_run([], folder, CONFIG):
        took(folder, range(3))
    assert os.listdir(folder) == before


def test_a_package_that_is_missing_is_one_sentence_with_the_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    if importlib.util.find_spec("wandb"):
        pytest.skip("wandb is installed here")
    (tmp_path / "wandb").mkdir()  # W&B's own folder
    with pytest.raises(TrackerError, match=r"wandb is not installed here: pip install '\.\[wandb\]'"):
        check(["wandb"])


@pytest.mark.parametrize(
    ("tracker", "said"), [("wandb", "WANDB_API_KEY .*RLVR_SECRETS"), ("mlflow", "MLFLOW_TRACKING_URI")]
)
def test_a_key_or_an_address_that_is_missing_is_named_before_training(tracker, said, tmp_path, monkeypatch):
    pytest.importorskip(tracker)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_IDENTITY_TOKEN_FILE", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(TrackerError, match=said):
        check([tracker])
    Path(tmp_path / "netrc").write_text("machine api.wandb.ai login user password " + "5" * 40)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    check([tracker])
