"""On blob storage a digest is read from what its writer left, and nothing else is downloaded."""

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from flytekit import FlyteContextManager
from flytekit.configuration import DataConfig
from flytekit.core.data_persistence import FileAccessProvider
from flytekit.core.type_engine import TypeEngine
from flytekit.models.core.types import BlobType
from flytekit.models.literals import Blob, BlobMetadata, Literal, Scalar
from flytekit.types.directory import FlyteDirectory
from flytekit.types.file import FlyteFile

from tasks.flyte.stages import Folder, Parquet, content_digest, read_stored_digest
from tasks.tables.content_digest import ContentError, file_digest, seal, write_parquet
from tests.object_store import object_store

TABLE = pa.table({"name": ["a", "b"], "score": [0.5, 1.0]})
KINDS = {Parquet: BlobType("parquet", 0), Folder: BlobType("", 1)}


@pytest.fixture(scope="module")
def storage(tmp_path_factory):
    """Flyte's file access, to a bucket."""
    with object_store() as store, pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAW", store.prefix)
        for name, value in store.environment.items():
            patch.setenv(name, value)
        access = FileAccessProvider(str(tmp_path_factory.mktemp("pod")), store.prefix, data_config=DataConfig.auto())
        context = FlyteContextManager.current_context()
        with FlyteContextManager.with_context(context.with_file_access(access)) as inside:
            yield inside


def in_a_pod(storage, path, kind):
    """The file or folder as the task of another pod gets it, and its address."""
    address = f"{storage.file_access.raw_output_prefix}{path.parent.name}/{path.name}"
    storage.file_access.put_data(str(path), address, is_multipart=path.is_dir())
    literal = Literal(scalar=Scalar(blob=Blob(metadata=BlobMetadata(type=KINDS[kind]), uri=address)))
    return TypeEngine.to_python_value(storage, literal, kind), address


def is_here(value):
    return any(path.is_file() for path in (Path(value.path), *Path(value.path).rglob("*")))


@pytest.mark.long
def test_a_tables_digest_needs_its_footer_alone(storage, tmp_path):
    write_parquet(tmp_path / "t.parquet", [TABLE], TABLE.schema)
    value, address = in_a_pod(storage, tmp_path / "t.parquet", Parquet)
    assert content_digest(value) == file_digest(tmp_path / "t.parquet")
    assert not is_here(value)
    assert content_digest(FlyteFile(address)) == file_digest(tmp_path / "t.parquet")  # as on a command line


def test_a_table_without_a_claim_is_downloaded_for_it(storage, tmp_path):
    pq.write_table(TABLE, tmp_path / "t.parquet")
    value, address = in_a_pod(storage, tmp_path / "t.parquet", Parquet)
    assert content_digest(value) == file_digest(tmp_path / "t.parquet")
    assert is_here(value)
    assert content_digest(FlyteFile(address)) == file_digest(tmp_path / "t.parquet")


def test_a_folder_without_a_manifest_is_downloaded_for_it(storage, tmp_path):
    (tmp_path / "model" / "inner").mkdir(parents=True)
    (tmp_path / "model" / "inner" / "config").write_text("{}")
    value, address = in_a_pod(storage, tmp_path / "model", Folder)
    assert content_digest(FlyteDirectory(address)) == file_digest(tmp_path / "model")
    assert content_digest(value) == file_digest(tmp_path / "model")


def test_a_models_digest_needs_its_manifest_alone(storage, tmp_path):
    (tmp_path / "model" / "inner").mkdir(parents=True)
    for name in ("weights", "inner/config"):
        (tmp_path / "model" / name).write_text(name)
    value, address = in_a_pod(storage, seal(tmp_path / "model"), Folder)
    assert content_digest(value) == file_digest(tmp_path / "model")
    assert not is_here(value)
    assert content_digest(FlyteDirectory(address)) == file_digest(tmp_path / "model")
    with storage.file_access.get_filesystem_for_path(address).open(f"{address}/weights", "w") as file:
        file.write("other weights")
    with pytest.raises(ContentError, match=r"sha256\.json was written for other files"):
        content_digest(value)


POD = """
import os, sys
from pathlib import Path
from flytekit.configuration import DataConfig
from flytekit.core.data_persistence import FileAccessProvider
from tasks.machine.quiet import silence_libraries

silence_libraries()
access = FileAccessProvider(sys.argv[1], os.environ["RAW"], data_config=DataConfig.auto())
path = Path(sys.argv[1]) / "file"
path.write_text("content")
access.get_data(access.put_raw_data(str(path)), str(path) + " again")
"""


@pytest.mark.long
@pytest.mark.usefixtures("storage")
def test_a_process_that_went_well_logs_no_error(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", POD, str(tmp_path)], env=os.environ, capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "file again").read_text() == "content"


def test_a_folder_without_a_manifest_is_known_by_its_checksums_wherever_it_lies_and_nothing_is_downloaded(
    storage, tmp_path
):
    digests = []
    for name, content in (("one", "{}"), ("two", "{}"), ("other", "{ }")):
        (tmp_path / name / "model").mkdir(parents=True)
        (tmp_path / name / "model" / "config").write_text(content)
        value, address = in_a_pod(storage, tmp_path / name / "model", Folder)
        digests.append(read_stored_digest(value))
        assert not is_here(value)
        assert read_stored_digest(FlyteDirectory(address)) == digests[-1]
    assert digests[0] == digests[1] != digests[2]
    assert read_stored_digest(FlyteDirectory(str(tmp_path / "one" / "model"))) == file_digest(
        tmp_path / "one" / "model"
    )
