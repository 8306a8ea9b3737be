"""The weight files: readers get the newest, and a file lives as long as it is the newest or being read."""

import asyncio
import shutil
import subprocess
import sys

import pytest

from tasks.storage.lease import RunInUseError
from tasks.training.actors.weights import WeightStore, make_shared_memory_folder, open_weights_folder


def files(folder):
    return sorted(path.name for path in folder.iterdir())


async def publish(store, version):
    store.path(version).write_text(str(version))
    await store.publish(version)


def test_an_old_file_goes_when_its_last_reader_leaves(tmp_path):
    async def scenario():
        store = WeightStore(tmp_path)
        await publish(store, 1)
        with store.open() as (version, first), store.open():
            await publish(store, 2)
            await publish(store, 3)
            assert (version, first.read_text()) == (1, "1")
            assert files(tmp_path) == [store.path(1).name, store.path(3).name]
        assert files(tmp_path) == [store.path(3).name]
        with store.open() as (version, _):
            assert version == 3

    asyncio.run(scenario())


async def hold(store):
    with store.open():
        await asyncio.Event().wait()


def test_a_reader_that_is_cancelled_lets_go_of_its_file(tmp_path):
    async def scenario():
        store = WeightStore(tmp_path)
        await publish(store, 1)
        reader = asyncio.create_task(hold(store))
        await asyncio.sleep(0)
        await publish(store, 2)
        assert files(tmp_path) == [store.path(1).name, store.path(2).name]
        reader.cancel()
        await asyncio.wait([reader])
        assert files(tmp_path) == [store.path(2).name]

    asyncio.run(scenario())


def test_whoever_waits_for_a_newer_version_hears_of_it(tmp_path):
    async def scenario():
        store = WeightStore(tmp_path)
        await publish(store, 1)
        await store.wait_for_newer(0)  # already there
        waiting = [asyncio.create_task(store.wait_for_newer(1)) for _ in range(2)]
        await asyncio.sleep(0)
        assert not any(task.done() for task in waiting)
        await publish(store, 2)
        await asyncio.gather(*waiting)

    asyncio.run(scenario())


def test_a_folder_in_shared_memory_is_one_process_s_and_outlives_none(tmp_path):
    script = f"""
from pathlib import Path
from tasks.training.actors.weights import make_shared_memory_folder

with make_shared_memory_folder("a", Path({str(tmp_path)!r})) as folder:
    (folder / "v00000001").write_text("")
    print("held", flush=True)
    input()
"""
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(RunInUseError, match="rlvr-a is in use"), make_shared_memory_folder("a", tmp_path):
            pass
        with make_shared_memory_folder("b", tmp_path):
            assert files(tmp_path) == ["rlvr-a", "rlvr-b"]
        assert files(tmp_path) == ["rlvr-a"]  # in use, and so left alone
        holder.kill()
    assert files(tmp_path / "rlvr-a") == ["v00000001"]
    with make_shared_memory_folder("b", tmp_path):
        assert files(tmp_path) == ["rlvr-b"]
    assert files(tmp_path) == []


def test_weights_that_do_not_fit_into_shared_memory_go_through_the_run_folder(tmp_path, caplog):
    memory, run, model = (tmp_path / name for name in ("memory", "run", "model"))
    for folder in (memory, run, model):
        folder.mkdir()
    weights = model / "model.safetensors"
    weights.touch()
    with open_weights_folder(run, model, root=memory) as folder:
        assert folder.parent == memory
    with open_weights_folder(run, model, root=tmp_path / "nothing") as folder:
        assert folder.parent == run / "weights"
    assert caplog.text == ""
    with weights.open("wb") as file:
        file.truncate(8 << 40)  # a sparse file: 8 TB by its size, and nothing on the disk
    with open_weights_folder(run, model, root=memory) as folder:
        assert folder.parent == run / "weights"
    assert f"weights go through {run / 'weights'}" in caplog.text


def test_what_killed_runs_left_makes_room_and_what_is_another_users_is_left_alone(tmp_path, monkeypatch):
    memory, run, model, left = (tmp_path / name for name in ("memory", "run", "model", "memory/rlvr-killed"))
    for folder in (memory, run, model, left):
        folder.mkdir()
    (model / "model.safetensors").write_text("weights")
    (left / "v00000001").write_text("weights")
    usage = shutil.disk_usage(memory)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=0 if left.exists() else usage.free))
    with open_weights_folder(run, model, root=memory) as folder:
        assert folder.parent == memory

    left.mkdir()
    remove = shutil.rmtree

    def not_ours(path, *more, **options):
        if path == left:
            raise PermissionError(13, "Permission denied")
        remove(path, *more, **options)

    monkeypatch.setattr(shutil, "rmtree", not_ours)
    with make_shared_memory_folder("mine", memory):
        assert left.exists()


def test_an_attempt_that_was_taken_over_from_leaves_the_weights_of_the_next(tmp_path):
    with open_weights_folder(tmp_path, tmp_path, root=tmp_path / "nothing") as cut_off:
        before = WeightStore(cut_off)
        with open_weights_folder(tmp_path, tmp_path, root=tmp_path / "nothing") as folder:
            after = WeightStore(folder)
            after.path(1).write_text("of the attempt that has taken over")
            with pytest.raises(FileNotFoundError):
                before.path(1).write_text("of the first one, when its network is back")
            assert files(folder) == ["v00000001"]
        assert files(tmp_path / "weights") == []
