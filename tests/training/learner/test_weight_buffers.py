"""Files of weights that are mapped once and used again: the bytes of safetensors, and no version is changed in use."""

import errno
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tasks.kubernetes.pod_templates import SHARED_MEMORY
from tasks.storage.durable import WriteError
from tasks.storage.tensor_digest import compute_contents
from tasks.training.learner.weight_buffers import Layout, WeightBuffers
from tasks.training.learner.weight_files import BUFFERS
from tests.paths import ROOT

KINDS = {
    "layers.0.weight": torch.arange(6, dtype=torch.bfloat16).reshape(2, 3),
    "layers.0.bias": torch.tensor([1.5, -2.5]),
    "layers.10.weight": torch.full((3, 1, 5), 0.25, dtype=torch.bfloat16),
    "layers.2.count": torch.tensor(7),
    "layers.2.flags": torch.tensor([True, False, True]),
    'naïve "name"': torch.zeros(0, 4, dtype=torch.float16),
}


def policy(version):
    return {name: torch.full((3, 5), float(version + index)) for index, name in enumerate(("a", "b"))}


def write(buffers, path, tensors):
    with buffers.open_version(path) as version:
        for name, tensor in tensors.items():
            version.fill({name: tensor})
        return version.contents()


@pytest.fixture
def buffers(tmp_path):
    return WeightBuffers(tmp_path, Layout.build(policy(0)))


def names(folder):
    return sorted(path.name for path in folder.iterdir() if path.name != BUFFERS)


def files(folder):
    """The files of all buffers, by their identity on the file system."""
    return {path.stat().st_ino for path in (folder / BUFFERS).iterdir()}


def test_a_file_has_the_bytes_that_safetensors_writes(tmp_path):
    written = write(WeightBuffers(tmp_path, Layout.build(KINDS)), tmp_path / "v1", KINDS)
    save_file(KINDS, tmp_path / "expected")
    assert (tmp_path / "v1").read_bytes() == (tmp_path / "expected").read_bytes()
    assert written == compute_contents(KINDS) == compute_contents(load_file(tmp_path / "v1"))
    assert (tmp_path / "v1").stat().st_mode & 0o777 == (tmp_path / "expected").stat().st_mode & 0o777


def test_tensors_in_any_memory_order_are_written_in_rows(tmp_path):
    tensor = torch.arange(6.0).reshape(2, 3)
    write(WeightBuffers(tmp_path, Layout.build({"a": tensor.T})), tmp_path / "v1", {"a": tensor.T})
    assert torch.equal(load_file(tmp_path / "v1")["a"], tensor.T)


def test_a_buffer_is_used_again_only_after_its_version_was_removed(tmp_path, buffers):
    for version in (1, 2, 3):  # read, newest, next
        write(buffers, tmp_path / f"v{version}", policy(version))
    three = files(tmp_path)
    assert len(three) == 3
    (tmp_path / "v2").unlink()
    write(buffers, tmp_path / "v4", policy(4))
    assert files(tmp_path) == three
    for version in (1, 3, 4):
        assert compute_contents(load_file(tmp_path / f"v{version}")) == compute_contents(policy(version))
    write(buffers, tmp_path / "v5", policy(5))
    assert len(files(tmp_path)) == 4


def test_writing_a_version_again_replaces_its_file_atomically(tmp_path, buffers):
    write(buffers, tmp_path / "v1", policy(1))
    with (tmp_path / "v1").open("rb") as reader:
        write(buffers, tmp_path / "v1", policy(9))
        assert compute_contents(load_file(f"/proc/self/fd/{reader.fileno()}")) == compute_contents(policy(1))
    assert compute_contents(load_file(tmp_path / "v1")) == compute_contents(policy(9))
    write(buffers, tmp_path / "v2", policy(2))
    assert len(files(tmp_path)) == 2  # the first one's is free again


def test_a_version_that_is_not_finished_has_no_name(tmp_path, buffers):
    def stop(version):
        version.fill({"a": policy(1)["a"]})
        raise InterruptedError

    with pytest.raises(InterruptedError), buffers.open_version(tmp_path / "v1") as version:
        stop(version)
    with pytest.raises(AssertionError, match="'b'"), buffers.open_version(tmp_path / "v1") as version:
        version.fill({"a": policy(1)["a"]})
    assert names(tmp_path) == []
    write(buffers, tmp_path / "v1", policy(1))
    assert len(files(tmp_path)) == 1


@pytest.mark.parametrize("wrong", [torch.zeros(15), torch.zeros(1, 5), torch.zeros(3, 5, dtype=torch.float64)])
def test_a_tensor_of_another_shape_or_type_is_not_converted(tmp_path, buffers, wrong):
    with pytest.raises(AssertionError, match="a differs"), buffers.open_version(tmp_path / "v1") as version:
        version.fill({"a": wrong})


def test_full_memory_is_one_sentence():
    terabyte = {"a": torch.empty(2**40, dtype=torch.uint8, device="meta")}
    with tempfile.TemporaryDirectory(dir=SHARED_MEMORY) as folder:
        large = WeightBuffers(Path(folder), Layout.build(terabyte))
        sentence = r"buffers/0 could not be written: .*No space left on device.*; [\d.]+ GiB are free there"
        with pytest.raises(WriteError, match=sentence), large.open_version(Path(folder) / "v1"):
            pass
        assert names(Path(folder)) == []


def test_a_file_system_without_hard_links_is_named(tmp_path, buffers, monkeypatch):
    def refuses(source, target):
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr("os.link", refuses)
    with pytest.raises(WriteError, match=r"v1 cannot be a second name of a file: Operation not perm.*; make /dev/shm"):
        write(buffers, tmp_path / "v1", policy(1))


KILLED = """
import sys, time
from pathlib import Path
from tasks.training.learner.weight_buffers import Layout, WeightBuffers
from tests.training.learner.test_weight_buffers import policy, write
folder = Path(sys.argv[1])
buffers = WeightBuffers(folder, Layout.build(policy(0)))
for number in (1, 2):
    write(buffers, folder / f"v{number}", policy(number))
(folder / "v1").unlink()
with buffers.open_version(folder / "v3") as version:  # into the file of v1
    version.fill({"a": policy(3)["a"]})
    print("half", flush=True)
    time.sleep(600)
"""


@pytest.mark.long
def test_a_writer_that_is_killed_leaves_complete_versions_alone(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", KILLED, tmp_path], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert process.stdout.readline() == "half\n"
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert names(tmp_path) == ["v2"]
    before = files(tmp_path)

    again = WeightBuffers(tmp_path, Layout.build(policy(0)))
    assert compute_contents(load_file(tmp_path / "v2")) == compute_contents(policy(2))
    assert (tmp_path / "v2").stat().st_nlink == 1  # its memory is free as soon as its readers are done
    for version in (3, 4):
        write(again, tmp_path / f"v{version}", policy(version))
    assert len(before) == len(files(tmp_path)) == 2
    for version in (2, 3, 4):
        assert compute_contents(load_file(tmp_path / f"v{version}")) == compute_contents(policy(version))


def test_closed_buffers_leave_their_versions(tmp_path, buffers):
    write(buffers, tmp_path / "v1", policy(1))
    buffers.close()
    assert [path.name for path in tmp_path.iterdir()] == ["v1"]
    assert compute_contents(load_file(tmp_path / "v1")) == compute_contents(policy(1))
