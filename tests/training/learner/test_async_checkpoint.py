"""What a learner rank saves is as it was when it was asked for: of a GPU by a copy, in main memory by waiting."""

import threading
import time
from pathlib import Path

import pytest
import torch

from tasks.training.learner.async_checkpoint import BackgroundCheckpointEngine, CopyMemory


@pytest.fixture
def disk():
    """Writing begins when this is set."""
    return threading.Event()


def held_by(disk, folder, *, copies):
    """An engine whose files wait for the disk."""

    def wait(path):
        assert disk.wait(60)
        Path(path).touch()

    engine = BackgroundCheckpointEngine(None, copies=copies)
    engine.write(wait, folder / "before")
    return engine


@pytest.fixture
def engine(disk, tmp_path):
    return held_by(disk, tmp_path, copies=True)


def written(engine):
    while not engine.is_written():
        time.sleep(0.01)


def read(path):
    return torch.load(path, weights_only=True)


def test_files_hold_what_was_when_each_was_asked_for(engine, disk, tmp_path):
    weights = torch.arange(6.0)
    state = {"embedding": weights, "others": [weights, weights[:2]], "step": 3}
    for name in ("first", "second"):
        engine.save(state, str(tmp_path / name))
        weights += 10
    assert not engine.is_written()
    disk.set()
    written(engine)
    engine.save(state, str(tmp_path / "third"))  # in the memory of one of them
    written(engine)
    for name, expected in (("first", 0), ("second", 10), ("third", 20)):
        restored = read(tmp_path / name)
        assert torch.equal(restored["embedding"], torch.arange(6.0) + expected)
        assert torch.equal(restored["others"][1], torch.arange(2.0) + expected)
        assert restored["others"][0].data_ptr() == restored["embedding"].data_ptr()  # a tied tensor stays one
        assert restored["step"] == 3


def test_state_that_is_not_copied_changes_once_it_is_written(disk, tmp_path):
    weights, rates = torch.arange(6.0), {"lr": 1.0}
    engine = held_by(disk, tmp_path, copies=False)
    engine.save({"embedding": weights, "head": weights, "groups": [rates]}, str(tmp_path / "file"))
    rates["lr"] = 2.0  # numbers need no waiting
    step = threading.Thread(target=lambda: (engine.wait(), weights.add_(10)))
    step.start()
    step.join(0.1)
    assert torch.equal(weights, torch.arange(6.0))
    disk.set()
    step.join()
    restored = read(tmp_path / "file")
    assert torch.equal(restored["embedding"], torch.arange(6.0))
    assert restored["head"].data_ptr() == restored["embedding"].data_ptr()
    assert restored["groups"] == [{"lr": 1.0}]
    assert torch.equal(weights, torch.arange(6.0) + 10)


def test_a_step_does_not_end_by_what_kept_a_file_from_the_disk(disk, tmp_path):
    disk.set()
    engine = held_by(disk, tmp_path, copies=False)
    engine.save({"step": 3}, str(tmp_path / "no folder" / "file"))
    engine.wait()
    with pytest.raises((OSError, RuntimeError), match="no folder"):
        written(engine)


def test_copies_let_state_change_at_once(engine, disk):
    engine.wait()
    assert not engine.is_written()
    disk.set()


def test_files_are_uploaded_when_all_of_a_checkpoint_are_on_the_disk(engine, disk, tmp_path):
    engine.begin()
    for name in ("first", "second"):
        engine.save({"step": 3}, str(tmp_path / name))
    upload = engine.after_writing(lambda paths: [(path.name, path.exists()) for path in paths])
    assert not upload.done()
    disk.set()
    assert upload.result() == [("first", True), ("second", True)]


def test_a_checkpoint_that_could_not_be_written_is_not_uploaded_and_is_nothing_to_the_next(engine, disk, tmp_path):
    disk.set()
    engine.begin()
    engine.save({"step": 3}, str(tmp_path / "no folder" / "file"))
    upload = engine.after_writing(len)
    with pytest.raises((OSError, RuntimeError), match="no folder"):
        upload.result()
    engine.begin()
    engine.save({"step": 4}, str(tmp_path / "file"))
    assert engine.after_writing(len).result() == 1
    written(engine)


def test_copies_take_memory_that_was_given_back():
    memory = CopyMemory()
    tensor = torch.ones(3, 4)
    first, second = memory.make_copy(tensor), memory.make_copy(tensor)
    assert first.data_ptr() != second.data_ptr()
    memory.give_back([first])
    assert memory.make_copy(tensor.bfloat16()).dtype == torch.bfloat16
    third = memory.make_copy(tensor + 1)
    assert third.data_ptr() == first.data_ptr()
    assert torch.equal(third, tensor + 1)


def test_what_kept_a_file_from_the_disk_is_raised(engine, disk, tmp_path):
    disk.set()
    engine.save({"step": 3}, str(tmp_path / "no folder" / "file"))
    with pytest.raises((OSError, RuntimeError), match="no folder"):
        written(engine)
