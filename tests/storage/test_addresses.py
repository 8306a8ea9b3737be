"""A user's files on blob storage are read with flytekit's configuration, then with the environment's."""

import boto3
import pytest
import s3fs
from flytekit import FlyteContextManager
from flytekit.configuration import DataConfig
from flytekit.core.data_persistence import FileAccessProvider

from tasks.config.loading import SpecError
from tasks.generation.models import ModelError, StoredFolder
from tasks.sourcing.files import list_files
from tasks.sourcing.loader_specs import JsonlLoader
from tasks.storage.addresses import open_address
from tests.object_store import BUCKET, KEYS, object_store

ROWS = f"s3://{BUCKET}/rows.jsonl"
pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def stores():
    """Two storages: one that flytekit is configured for, and one that the environment names."""
    with object_store() as flytes, object_store() as environments:
        yield flytes, environments


@pytest.fixture
def configured(stores, monkeypatch, tmp_path):
    """Function that configures flytekit, the environment, or both."""
    s3fs.S3FileSystem.clear_instance_cache()  # an instance keeps the credentials of an earlier test
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    entered = []

    def configure(*, flyte, environment):
        for name, value in stores[0].environment.items() if flyte else ():
            monkeypatch.setenv(name, value)
        if environment:
            monkeypatch.setenv("AWS_ENDPOINT_URL", stores[1].endpoint)
            monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEYS["aws_access_key_id"])
            monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", KEYS["aws_secret_access_key"])
        access = FileAccessProvider(str(tmp_path / "pod"), str(tmp_path / "raw"), data_config=DataConfig.auto())
        context = FlyteContextManager.with_context(FlyteContextManager.current_context().with_file_access(access))
        context.__enter__()
        entered.append(context)

    yield configure
    for context in entered:
        context.__exit__(None, None, None)


def put(store, name, content):
    boto3.client("s3", endpoint_url=store.endpoint, **KEYS).put_object(Bucket=BUCKET, Key=name, Body=content)


def rows(address=ROWS):
    [file] = list_files(JsonlLoader(kind="jsonl", path=address), "loader")
    return file.filesystem.cat_file(file.path)


def test_rows_are_read_with_what_flytekit_is_given_and_else_with_the_environments(stores, configured):
    flytes, environments = stores
    put(environments, "rows.jsonl", b"of the environment")
    put(environments, "part-1.jsonl", b"a part")
    configured(flyte=True, environment=True)
    assert rows() == b"of the environment", "flytekit's storage has none"
    assert rows(f"s3://{BUCKET}/part-*.jsonl") == b"a part"
    put(flytes, "flyte/rows.jsonl", b"of flytekit")
    assert rows(f"s3://{BUCKET}/flyte/rows.jsonl") == b"of flytekit"
    with pytest.raises(SpecError, match="no such file"):
        rows(f"s3://{BUCKET}/nowhere.jsonl")


def test_flytekits_variables_are_enough(stores, configured):
    put(stores[0], "alone.jsonl", b"of flytekit")
    configured(flyte=True, environment=False)
    assert rows(f"s3://{BUCKET}/alone.jsonl") == b"of flytekit"
    put(stores[0], "policy/model.safetensors", b"weights")
    _, files = StoredFolder(address=f"s3://{BUCKET}/policy").files()
    assert list(files) == ["model.safetensors"]


def test_a_refusal_names_the_address_what_was_tried_and_the_variables(configured):
    configured(flyte=False, environment=False)
    said = (
        rf"{ROWS} cannot be read: .*; tried with flytekit's configuration \(FLYTE_AWS_ENDPOINT, .* --config\) and with"
    )
    with pytest.raises(SpecError, match=rf"^loader\.path: {said} the environment's credentials \(AWS_ENDPOINT_URL"):
        rows()
    with pytest.raises(ModelError, match=r"model: .* cannot be read"):
        StoredFolder(address=ROWS).files()


def test_a_path_and_an_address_without_credentials_are_opened_as_fsspec_does(tmp_path):
    assert open_address(str(tmp_path))[1] == str(tmp_path)
    assert open_address("memory://rows")[1] == "/rows"
