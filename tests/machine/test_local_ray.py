"""Ray is not asked to join a cluster that does not answer, and a folder that cannot be written is named."""

import signal
import socket
from pathlib import Path

import pytest
import ray

from tasks.failures import MistakeError
from tasks.machine.local_ray import MachineError, RayStartError, can_be_written, start_ray
from tasks.storage.locations import check_folders


def test_a_cluster_that_does_not_answer_is_an_error_at_once():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # taken, and nothing listens
        address = f"127.0.0.1:{free.getsockname()[1]}"
        for name in (address, f"ray://{address}"):
            with pytest.raises(MachineError, match=f"no Ray cluster answers at {name}"):
                start_ray(name)


@pytest.mark.parametrize("failures", [1, 2])
def test_a_ray_that_is_too_slow_is_started_again_once(monkeypatch, failures):
    calls = []

    def init(**options):
        calls.append(options)
        if len(calls) <= failures:
            raise Exception("The current node timed out during startup. This could happen because ...")

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    if failures == 1:
        start_ray()
    else:
        with pytest.raises(RayStartError, match="Ray did not start on this machine"):
            start_ray()
    assert len(calls) == 2


def test_a_folder_that_cannot_be_written_is_known_by_writing(tmp_path):
    assert can_be_written(tmp_path)
    assert not list(tmp_path.iterdir())
    assert not can_be_written(Path("/proc"))


@pytest.mark.parametrize("variable", ["RLVR_RUNS", "RLVR_OUTPUTS"])
def test_folders_of_runs_and_results_are_made_or_named(monkeypatch, tmp_path, variable):
    for name in ("RLVR_RUNS", "RLVR_OUTPUTS"):
        monkeypatch.setenv(name, str(tmp_path / name))
    check_folders()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["RLVR_OUTPUTS", "RLVR_RUNS"]
    monkeypatch.setenv(variable, "/proc/folder")
    with pytest.raises(MistakeError, match=f"/proc/folder cannot be written .*set {variable} to another"):
        check_folders()
