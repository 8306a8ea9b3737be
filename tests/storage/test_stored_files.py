"""An upload takes little memory, whatever the size of the file."""

import os
import re
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import fsspec
import pytest

from tasks.storage.stored_files import MOST_PARTS, PART_BYTES, digest, fetch_file, put_file
from tests.object_store import BUCKET, KEYS, object_store
from tests.paths import ROOT

MIB = 2**20
UPLOADS = """
import re, sys
from pathlib import Path
import fsspec
from tasks.storage.stored_files import put_file

def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) // 1024

def upload(path):
    put_file(s3, Path(path), "s3://runs/file")
    return peak()

s3 = fsspec.filesystem("s3", endpoint_url=sys.argv[1], key="test", secret="test")
small, large = sys.argv[2:]
print(upload(small), *[upload(large) for _ in range(2)])
"""


@pytest.fixture(scope="module")
def store():
    with object_store() as made:
        yield made


def sized(path, mib):
    """A file of zeros, which takes no disk."""
    with path.open("wb") as file:
        file.truncate(mib * MIB)
    return path


@pytest.mark.long
def test_an_upload_takes_less_memory_than_its_file_and_the_next_takes_no_more(store, tmp_path):
    paths = [str(sized(tmp_path / f"{mib}.bin", mib)) for mib in (1, 160)]
    command = [sys.executable, "-c", UPLOADS, store.endpoint, *paths]
    done = subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, text=True, check=True)
    before, first, last = map(int, done.stdout.split())
    assert first - before < 220  # MiB: ten parts, each of them twice; in parts of 50 MiB it is 340
    assert last - first < 50


@pytest.mark.parametrize(("mib", "parts"), [(0, ""), (1, ""), (40, "-5")])
def test_a_file_arrives_whole_in_parts_of_eight_mib(store, tmp_path, mib, parts):
    system = fsspec.filesystem(
        "s3", endpoint_url=store.endpoint, key=KEYS["aws_access_key_id"], secret=KEYS["aws_secret_access_key"]
    )
    path, address = sized(tmp_path / "file", mib), f"s3://{BUCKET}/{mib}"
    put_file(system, path, address)
    assert re.fullmatch(rf'"[0-9a-f]{{32}}{parts}"', system.info(address)["ETag"])  # S3 appends the number of parts
    fetch_file(system, address, tmp_path / "back", digest(path, path.stat().st_size))
    assert (tmp_path / "back").stat().st_size == mib * MIB


def test_a_file_beyond_ten_thousand_parts_has_larger_ones(tmp_path):
    class Google:
        protocol = ("gs", "gcs")

        def put_file(self, path, address, chunksize):
            self.chunksize = chunksize

    system, path = Google(), sized(tmp_path / "file", 200_000)
    put_file(system, path, "gs://bucket/file")
    assert system.chunksize % 2**18 == 0  # Google's
    assert PART_BYTES * MOST_PARTS < path.stat().st_size <= system.chunksize * MOST_PARTS


def test_other_storage_is_given_no_size_of_parts(tmp_path):
    path = sized(tmp_path / "file", 1)
    put_file(fsspec.filesystem("file"), path, str(tmp_path / "copy"))
    assert Path(tmp_path / "copy").stat().st_size == MIB


@pytest.mark.parametrize(("stored", "raised"), [(b"1234", False), (b"123", True), (None, True)])
def test_a_completion_whose_answer_was_lost_is_no_fault_if_the_object_is_whole(tmp_path, stored, raised):
    class Late(type(fsspec.filesystem("memory"))):
        def put_file(self, path, address):
            if stored is not None:
                self.pipe_file(address, stored)
            raise FileNotFoundError("The specified upload does not exist.")

    path, address = tmp_path / "file", f"memory://{tmp_path.name}/file"
    path.write_bytes(b"1234")
    with pytest.raises(FileNotFoundError) if raised else nullcontext():
        put_file(Late(), path, address)
