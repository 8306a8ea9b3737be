"""A run's memory in an S3 bucket: what an empty machine finds there after kills, failures and damage."""

import errno
import functools
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import s3fs

from tasks.recipe.run import TrainingConfig
from tasks.storage.lease import RunInUseError
from tasks.storage.locations import RESPONSE_LIST, resolve_address
from tasks.training.records.checkpoint import Checkpoints
from tasks.training.records.identity import run_setup
from tasks.training.records.remote_store import RunStore
from tasks.training.records.run_state import RunState
from tests.object_store import BUCKET, KEYS, object_store

PLACE = f"s3://{BUCKET}/rlvr-runs/abc"


class UnsteadyS3(s3fs.S3FileSystem):
    """The bucket, behind a network that fails for the first few uploads of a file."""

    failures = 0
    uploading = None  # a gate that uploads wait for

    def put_file(self, *arguments, **options):
        if self.uploading:
            self.uploading.wait()
        if self.failures > 0:
            self.failures -= 1
            raise OSError("the network is down")
        return super().put_file(*arguments, **options)


@pytest.fixture(scope="module")
def server():
    with object_store() as store:
        yield store


@pytest.fixture
def bucket(server):
    """Empty: moto keeps what the test before has put there."""
    objects = server.keys()
    for key in objects:
        connect(server).rm_file(f"{BUCKET}/{key}")
    return server


def connect(bucket):
    """The bucket, behind a network that is well again; one client, which takes a second to make."""
    storage = client(bucket.endpoint)
    storage.failures, storage.uploading = 0, None
    return storage


@functools.cache
def client(endpoint):
    keys = {"key": KEYS["aws_access_key_id"], "secret": KEYS["aws_secret_access_key"]}
    return UnsteadyS3(endpoint_url=endpoint, skip_instance_cache=True, **keys)


def take_checkpoint(folder, version, learner=b"weights"):
    """What training leaves at a checkpoint, and a row in each file that comes after it."""
    checkpoint = folder / "checkpoints" / f"step_{version:08d}"
    (checkpoint / "learner").mkdir(parents=True)
    (checkpoint / "learner" / "rank_0").write_bytes(learner)
    (folder / "tensorboard").mkdir(exist_ok=True)
    (folder / "tensorboard" / "events").write_text(f"{version}")
    lengths = {}
    for key, name in (("ledger_bytes", "ledger.jsonl"), ("journal_bytes", "metrics.jsonl")):
        with (folder / name).open("a") as file:
            file.write(f"before {version}\n")
            lengths[key] = file.tell()
            file.write(f"after {version}\n")
    beginning = RunState.begin(run_setup(TrainingConfig()))
    beginning.model_copy(update={**lengths, "version": version}).write(checkpoint)
    return checkpoint


def save(bucket, folder, *versions, retry_seconds=()):
    with RunStore(connect(bucket), PLACE, folder, retry_seconds) as store:
        for version in versions:
            store.save(take_checkpoint(folder, version))


def restored(bucket, folder):
    with RunStore(connect(bucket), PLACE, folder, ()) as store:
        return store.restore()


@pytest.fixture
def machines(tmp_path):
    """Run folders on two machines."""
    folders = tmp_path / "first", tmp_path / "second"
    for folder in folders:
        folder.mkdir()
    return folders


def uploads(bucket):
    return sorted({key.split("/")[2].partition(".")[0] for key in bucket.keys("rlvr-runs/abc/step_")})


@pytest.mark.long
def test_an_empty_machine_gets_what_the_checkpoint_knew(bucket, machines):
    first, second = machines
    assert restored(bucket, second) is None
    save(bucket, first, 1, 2)
    assert restored(bucket, second) == 2
    newest = Checkpoints(second / "checkpoints").find_newest()
    assert (newest / "learner" / "rank_0").read_bytes() == b"weights"
    assert (second / "ledger.jsonl").read_text() == "before 1\nafter 1\nbefore 2\n"
    assert (second / "metrics.jsonl").read_text() == "before 1\nafter 1\nbefore 2\n"
    assert (second / "tensorboard" / "events").read_text() == "2"
    assert restored(bucket, second) is None  # it is there


@pytest.mark.long
def test_the_responses_of_a_run_are_kept_once_by_whichever_machine_it_went_on_on(bucket, machines):
    for number, machine in enumerate(machines):
        restored(bucket, machine)
        (machine / "rollouts").mkdir()
        (machine / "rollouts" / f"{number:08d}.parquet").write_text(f"responses {number}")
        save(bucket, machine, number + 1)
    assert list(bucket.keys("rlvr-runs/abc/rollouts")) == [f"rlvr-runs/abc/rollouts/{n:08d}.parquet" for n in range(2)]


@pytest.mark.long
def test_the_files_of_responses_are_listed_with_their_steps(bucket, machines):
    for number, machine in enumerate(machines):
        restored(bucket, machine)
        (machine / "rollouts").mkdir()
        rows = {"step": [None, 3 * number + 1], "last_version": [3 * number, 3 * number]}
        pq.write_table(pa.table(rows), machine / "rollouts" / f"{number:08d}.parquet")
        save(bucket, machine, number + 1)
    listed = json.loads(connect(bucket).cat_file(f"{PLACE}/{RESPONSE_LIST}"))
    assert listed == {"00000000.parquet": [0, 1], "00000001.parquet": [3, 4]}


def test_a_second_machine_does_not_work_on_a_run_that_is_going_on(bucket, machines):
    first, second = machines
    with RunStore(connect(bucket), PLACE, first, (), 1.0) as store:
        with pytest.raises(RunInUseError, match=r"lease\.json: process \d+ on .* works on this run"):
            RunStore(connect(bucket), PLACE, second, (), 1.0).__enter__()
        store.lease.check()
    assert not bucket.keys("rlvr-runs/abc/lease")


@pytest.mark.long
def test_only_the_newest_two_stay(bucket, machines):
    save(bucket, machines[0], 1, 2, 9, 10)
    assert uploads(bucket) == ["step_00000009", "step_00000010"]


def test_what_is_newer_here_stays(bucket, machines):
    first, second = machines
    save(bucket, first, 1)
    take_checkpoint(second, 2)
    assert restored(bucket, second) is None
    assert [path.name for path in (second / "checkpoints").iterdir()] == ["step_00000002"]


KILLED = """
import os, signal, sys
from pathlib import Path
from types import SimpleNamespace
from tests.training.records import test_remote_store as t

class Killing(t.s3fs.S3FileSystem):
    def pipe_file(self, path, *arguments, **options):
        if path.endswith("manifest.json"):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().pipe_file(path, *arguments, **options)

t.UnsteadyS3 = Killing
t.save(SimpleNamespace(endpoint=sys.argv[1]), Path(sys.argv[2]), 2)
"""


@pytest.mark.long
def test_a_kill_before_the_manifest_leaves_the_checkpoint_before(bucket, machines):
    first, second = machines
    save(bucket, first, 1)
    done = subprocess.run([sys.executable, "-c", KILLED, bucket.endpoint, str(first)], cwd=Path.cwd())
    assert done.returncode == -signal.SIGKILL
    assert uploads(bucket) == ["step_00000001", "step_00000002"]  # half of it is there
    assert restored(bucket, second) == 1
    save(bucket, second, 2, 3)  # the next attempt, and what was cut short goes
    assert uploads(bucket) == ["step_00000002", "step_00000003"]
    assert len([key for key in bucket.keys("rlvr-runs/abc/") if key.endswith("manifest.json")]) == 2


@pytest.mark.long
@pytest.mark.parametrize("name", ["manifest.json", "learner/rank_0", "ledger.jsonl"])
@pytest.mark.parametrize("damage", [b"garbage", None])
def test_what_is_damaged_is_skipped_for_the_one_before(bucket, machines, caplog, name, damage):
    first, second = machines
    save(bucket, first, 1, 2)
    (key,) = (k for k in bucket.keys("rlvr-runs/abc/step_00000002.") if k.endswith(name))
    storage = connect(bucket)
    if damage is None:
        storage.rm_file(f"{BUCKET}/{key}")
    else:
        storage.pipe_file(f"{BUCKET}/{key}", damage)
    assert restored(bucket, second) == 1
    if (name, damage) != ("manifest.json", None):  # that is an upload that was cut short
        (record,) = (r for r in caplog.records if r.levelname == "WARNING")
        assert "is skipped for the checkpoint before it" in record.getMessage()


@pytest.mark.parametrize("name", ["/etc/x", "../x", "a/../../x"])
def test_a_manifest_that_leaves_the_run_folder_is_damage(bucket, machines, name):
    manifest = {"version": 5, "files": {name: {"size": 1, "sha256": "0"}}}
    connect(bucket).pipe_file(f"{PLACE}/step_00000005.x/manifest.json", json.dumps(manifest).encode())
    assert restored(bucket, machines[1]) is None


def test_an_upload_that_fails_for_some_time_is_tried_again(bucket, machines):
    first, second = machines
    storage = connect(bucket)
    storage.failures = 2
    with RunStore(storage, PLACE, first, (0.0, 0.0)) as store:
        store.save(take_checkpoint(first, 1))
    assert restored(bucket, second) == 1


def test_an_upload_that_fails_is_a_warning_and_the_next_one_counts(bucket, machines, caplog):
    first, second = machines
    storage = connect(bucket)
    storage.failures = 2
    with RunStore(storage, PLACE, first, (0.0,)) as store:
        store.save(take_checkpoint(first, 1))
        store.save(take_checkpoint(first, 2))
    assert "step_00000001 was not uploaded" in caplog.text
    assert restored(bucket, second) == 2


@pytest.mark.long
def test_policies_that_cannot_be_read_end_no_run_and_hold_no_lease(bucket, machines, monkeypatch, caplog):
    first, second = machines

    def policies(store):
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    monkeypatch.setattr(RunStore, "_policies", policies)
    with RunStore(connect(bucket), PLACE, first, ()) as store:
        store.save(take_checkpoint(first, 1))
        store.save(take_checkpoint(first, 2))
        store.finish()
    assert "policies on the way were not uploaded" in caplog.text
    monkeypatch.undo()
    assert restored(bucket, second) == 2


@pytest.mark.long
def test_a_slow_upload_holds_up_the_checkpoint_after_the_next(bucket, machines):
    first, second = machines
    storage = connect(bucket)
    storage.uploading = threading.Event()
    with RunStore(storage, PLACE, first, ()) as store:
        store.save(take_checkpoint(first, 1))  # returns while the upload waits
        waiting = threading.Thread(target=store.save, args=(take_checkpoint(first, 2),))
        waiting.start()
        waiting.join(0.5)
        assert waiting.is_alive()
        assert uploads(bucket) in ([], ["step_00000001"])
        storage.uploading.set()
        waiting.join()
    assert restored(bucket, second) == 2


def test_an_upload_that_hangs_holds_up_the_end_only_for_a_while(bucket, machines, monkeypatch, caplog):
    monkeypatch.setattr("tasks.training.runtime.timeouts.LOG_SECONDS", 0.05)
    monkeypatch.setattr("tasks.training.records.remote_store.HANG_SECONDS", 0.3)
    storage, folder = connect(bucket), machines[0]
    storage.uploading = threading.Event()
    with RunStore(storage, PLACE, folder) as store:
        store.save(take_checkpoint(folder, 2))
        hanging = store._upload
        store.finish()
    assert "the run has ended, and waits for its last upload, since 0 s" in caplog.text
    assert caplog.text.count("no progress for HANG_SECONDS = 0.3") == 1
    storage.uploading.set()
    hanging.result()


@pytest.mark.long
def test_of_a_run_that_has_ended_the_last_checkpoint_stays_alone(bucket, machines):
    first, second = machines
    with RunStore(connect(bucket), PLACE, first, ()) as store:
        for version in (1, 2, 3):
            store.save(take_checkpoint(first, version))
        store.finish()
    assert uploads(bucket) == ["step_00000003"]
    assert restored(bucket, second) == 3  # for an attempt that is killed while its results are uploaded


def test_executions_and_attempts_share_the_place_of_a_run(monkeypatch):
    monkeypatch.delenv("RLVR_RUNS", raising=False)
    places = {resolve_address("abc", f"s3://bucket/{each}/") for each in ("x1/f3a-n0-0", "x1/f3a-n0-1", "zz/g88-n0-0")}
    assert places == {"s3://bucket/rlvr-runs/abc"}
    assert resolve_address("abc", "/home/raw/") is None
    monkeypatch.setenv("RLVR_RUNS", "gs://mine/runs/")
    assert resolve_address("abc", "s3://bucket/x1/") == "gs://mine/runs/abc"
    monkeypatch.setenv("RLVR_RUNS", str(os.sep))
    assert resolve_address("abc", "s3://bucket/x1/") is None
    monkeypatch.setenv("RLVR_RUNS", "file:///data/runs")
    with pytest.raises(ValueError, match="RLVR_RUNS = file:///data/runs: a folder is given by its path"):
        resolve_address("abc", "s3://bucket/x1/")


def test_looking_for_a_run_touches_nothing_that_another_writes(bucket, machines):
    folder, _ = machines
    being_written = folder / "checkpoints" / "step_00000001.partial"
    being_written.mkdir(parents=True)
    with RunStore(connect(bucket), PLACE, folder, ()) as store:
        assert store.restore() is None
    assert being_written.is_dir()


def test_policies_leave_the_machine_and_the_best_one_comes_back_with_its_checkpoint(bucket, machines):
    first, second = machines
    for name in ("step_00000002", "step_00000004.partial", "validated_00000002", "validated_00000003"):
        (first / "policies" / name).mkdir(parents=True)
        (first / "policies" / name / "model.safetensors").write_text(name)
    checkpoint = take_checkpoint(first, 4)
    state = json.loads((checkpoint / "state.json").read_text())
    (checkpoint / "state.json").write_text(json.dumps(state | {"policies": ["validated_00000002"]}))
    with RunStore(connect(bucket), PLACE, first, ()) as store:
        store.save(checkpoint)
    exported = list(bucket.keys("rlvr-runs/abc/policies"))
    assert exported == ["rlvr-runs/abc/policies/step_00000002/model.safetensors"]

    (second / "rollouts").mkdir()
    (second / "rollouts" / "00000007.parquet").write_text("of an attempt that went on from an older checkpoint")
    assert restored(bucket, second) == 4
    kept = {str(path.relative_to(second / "policies")): path.read_text() for path in (second / "policies").rglob("*.*")}
    assert kept == {"validated_00000002/model.safetensors": "validated_00000002"}
    assert not (second / "rollouts").exists()
