"""One process at a time works on a run, on storage that several machines see."""

import asyncio
import itertools
import json
import subprocess
import sys
import time

import pytest

from tasks.storage.lease import Lease, LeaseLostError, RunInUseError

SECONDS = 0.6


def lease(folder):
    return Lease.from_folder(folder, SECONDS)


def holder(folder, **changes):
    """The file as another process has left it."""
    content = {
        "id": "other",
        "host": "node-7",
        "machine": "elsewhere",
        "pid": 12,
        "started": 0.0,
        "beats": 3,
        **changes,
    }
    (folder / "lease.json").write_text(json.dumps(content))


@pytest.mark.long
def test_a_second_process_of_this_machine_is_refused_at_once(tmp_path):
    with lease(tmp_path):
        with pytest.raises(RunInUseError, match=r"lease\.json: process \d+ on .* works on this run"), lease(tmp_path):
            pass
        time.sleep(2 * SECONDS)
        assert json.loads((tmp_path / "lease.json").read_text())["beats"] > 2
    assert not list(tmp_path.iterdir())


def test_what_a_killed_process_of_this_machine_left_is_taken_over_at_once(tmp_path):
    code = f"""
import os, signal
from pathlib import Path
from tasks.storage.lease import Lease
Lease.from_folder(Path({str(tmp_path)!r}), 1000).__enter__()
os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", code], check=False)
    assert (tmp_path / "lease.json").exists()
    with Lease.from_folder(tmp_path, 1000):
        pass


def test_another_machine_that_is_silent_is_waited_for_and_then_taken_over_from(tmp_path, caplog):
    holder(tmp_path)
    started = time.monotonic()
    with lease(tmp_path) as mine:
        assert time.monotonic() - started >= SECONDS
        mine.check()
    assert "process 12 on node-7" in caplog.text


def test_another_machine_that_works_on_the_run_is_left_alone(tmp_path, monkeypatch):
    holder(tmp_path)
    beats = itertools.count(4)  # a thread that another test has left may sleep too
    monkeypatch.setattr(time, "sleep", lambda _: holder(tmp_path, beats=next(beats)))
    with pytest.raises(RunInUseError, match="process 12 on node-7 works on this run"), lease(tmp_path):
        pass
    assert json.loads((tmp_path / "lease.json").read_text())["id"] == "other"


def test_a_damaged_file_is_taken_over_like_that_of_a_silent_machine(tmp_path):
    (tmp_path / "lease.json").write_text("{")
    with lease(tmp_path) as mine:
        mine.check()


def test_an_attempt_whose_run_was_taken_over_ends_and_deletes_nothing(tmp_path):
    async def works(mine):
        async with mine.held():
            holder(tmp_path)
            await asyncio.sleep(100)

    with lease(tmp_path) as mine:
        with pytest.raises(LeaseLostError, match="process 12 on node-7 has taken over this run from process"):
            asyncio.run(works(mine))
        with pytest.raises(LeaseLostError):
            mine.check()
    assert json.loads((tmp_path / "lease.json").read_text())["id"] == "other"


def test_storage_that_is_away_for_a_moment_costs_no_lease(tmp_path, caplog):
    with lease(tmp_path) as mine:
        (tmp_path / "lease.json").rename(tmp_path / "aside")
        (tmp_path / "lease.json").mkdir()  # what is read is an error, and no other name
        mine.check()
        (tmp_path / "lease.json").rmdir()
        (tmp_path / "aside").rename(tmp_path / "lease.json")
        mine.check()
    assert "cannot be read" in caplog.text


def test_a_run_that_was_taken_over_before_there_was_anything_to_cancel_does_not_begin(tmp_path):
    async def works(mine):
        async with mine.held():
            await asyncio.sleep(100)

    with lease(tmp_path) as mine:
        holder(tmp_path)
        with pytest.raises(LeaseLostError):
            mine.check()
        with pytest.raises(LeaseLostError, match="process 12 on node-7 has taken over"):
            asyncio.run(works(mine))


def test_a_process_is_the_same_when_the_time_of_day_is_set(tmp_path, monkeypatch):
    with lease(tmp_path):
        monkeypatch.setattr("psutil.boot_time", lambda: time.time() - 5)
        monkeypatch.setattr("psutil._pslinux.boot_time", lambda: time.time() - 5)
        with pytest.raises(RunInUseError), lease(tmp_path):
            pass
