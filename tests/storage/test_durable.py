"""Files that are on the disk: what torch and safetensors say of a full one."""

import asyncio
import multiprocessing
import resource
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from tasks.failures import find_infrastructure_cause
from tasks.storage.durable import WriteError, convert_write_errors, write_whole, write_whole_in_threads

BYTES = 1 << 16


def with_torch(path):
    import torch

    torch.save({"weights": torch.zeros(BYTES)}, path)


def with_safetensors(path):
    import torch
    from safetensors.torch import save_file

    save_file({"weights": torch.zeros(BYTES)}, path)


def as_a_policy(path):
    import torch
    from huggingface_hub import save_torch_state_dict

    path.mkdir()
    save_torch_state_dict({"weights": torch.zeros(BYTES)}, path)


def written_with_little_room(write, path):
    """In a process whose files may not be large."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (BYTES, BYTES))
    with convert_write_errors(path):
        write(path)


@pytest.mark.long
@pytest.mark.parametrize("write", [with_torch, with_safetensors, as_a_policy])
def test_what_does_not_fit_is_an_error_of_the_infrastructure_with_the_room_that_is_left(tmp_path, write):
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        error = pool.submit(written_with_little_room, write, tmp_path / "state").exception()
    assert isinstance(error, WriteError)
    assert f"{tmp_path / 'state'} could not be written: " in str(error)
    assert "GiB are free there" in str(error)
    assert find_infrastructure_cause(error) is error


def test_a_folder_that_went_away_meanwhile_hides_no_error(tmp_path):
    with (
        pytest.raises(WriteError, match="could not be written: Parent directory"),
        convert_write_errors(tmp_path / "a" / "b" / "c"),
    ):
        raise RuntimeError("Parent directory does not exist")


def test_a_folder_that_an_async_block_writes_takes_the_place_of_another(tmp_path):
    old = tmp_path / "old"
    for left in (old, tmp_path / "old.partial"):
        left.mkdir()
        (left / "old").touch()

    async def write():
        async with write_whole_in_threads(old) as partial:
            partial.mkdir()
            (partial / "new").touch()

    asyncio.run(write())
    assert [path.relative_to(tmp_path) for path in tmp_path.rglob("*")] == [Path("old"), Path("old/new")]


@pytest.mark.parametrize("durable", [False, True])
def test_a_file_that_is_written_whole_replaces_the_old_one_at_the_end(tmp_path, durable):
    path = tmp_path / "file"
    path.write_text("old")
    with write_whole(path, durable=durable) as partial:
        partial.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_replaces_the_old_one_and_what_an_attempt_left(tmp_path):
    path = tmp_path / "folder"
    for left in (path, tmp_path / "folder.partial"):
        left.mkdir()
        (left / "old").touch()
    with write_whole(path, durable=True) as partial:
        partial.mkdir()
        (partial / "new").touch()
    assert [item.name for item in path.iterdir()] == ["new"]


def test_a_block_that_fails_leaves_the_old_content(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")

    def fails():
        with write_whole(path) as partial:
            partial.write_text("half")
            raise OSError("no space")

    with pytest.raises(OSError, match="no space"):
        fails()
    assert path.read_text() == "old"
