"""An input that a lifecycle rule has deleted is one sentence: the output, who wrote it, and the command."""

import ast

import pytest
from flytekit import FlyteContextManager, dynamic, task
from flytekit.configuration import DataConfig, ImageConfig, SerializationSettings
from flytekit.core.data_persistence import FileAccessProvider
from flytekit.types.directory import FlyteDirectory
from flytekit.types.file import FlyteFile

from tasks.failures import find_infrastructure_cause
from tasks.flyte.lost_outputs import WRITERS, LostOutputError, describe_lost_output
from tasks.flyte.stages import Parquet, content_digest, read_footer, read_members, to_local
from tests.object_store import object_store
from tests.paths import ROOT

POD = "a1b2c3-n3-0-mix-0"


@pytest.fixture(scope="module")
def bucket(tmp_path_factory):
    """The prefix of an empty bucket, which Flyte's file access reads."""
    with object_store() as store, pytest.MonkeyPatch.context() as patch:
        for name, value in store.environment.items():
            patch.setenv(name, value)
        access = FileAccessProvider(str(tmp_path_factory.mktemp("pod")), store.prefix, data_config=DataConfig.auto())
        context = FlyteContextManager.current_context()
        with FlyteContextManager.with_context(context.with_file_access(access)):
            yield store.prefix


def given(address):
    """The file as a stage is given it: it is downloaded when it is opened."""

    def download():
        FlyteContextManager.current_context().file_access.get_data(address, "never")

    file = FlyteFile("never", download)
    file._remote_source = address
    return file


@task
def mixes(mixture: Parquet) -> str:
    return str(mixture)


@dynamic
def composes(mixture: FlyteFile) -> str:
    return mixes(mixture=mixture)


@pytest.mark.long
@pytest.mark.parametrize("opened", [to_local, content_digest, read_footer])
def test_a_file_that_is_gone_is_named_with_its_writer_and_the_command(bucket, opened):
    address = f"{bucket}/oz/{POD}/9f8e/mixture.parquet"
    with pytest.raises(LostOutputError) as raised:
        opened(given(address))
    text = str(raised.value)
    assert text == describe_lost_output(address)
    assert f"{address}, which pod {POD} wrote, is no longer on the storage" in text
    assert "`pyflyte run --remote --overwrite-cache tasks/mixing/task.py mix_prompts`" in text
    assert "\n" not in text
    assert find_infrastructure_cause(raised.value) is None  # it comes back with every attempt


@pytest.mark.long
def test_a_folder_that_is_gone_is_named(bucket):
    with pytest.raises(LostOutputError, match=r"/policy is no longer on the storage: .* train_policy"):
        content_digest(FlyteDirectory(f"{bucket}/policy"))
    assert read_members(FlyteDirectory(f"{bucket}/policy"), ["config.json"]) == {}


@pytest.mark.long
def test_a_dynamic_task_that_passes_it_on_says_the_same(bucket):
    address = f"{bucket}/oz/{POD}/9f8e/mixture.parquet"
    context = FlyteContextManager.current_context()
    settings = SerializationSettings(ImageConfig.auto(img_name="x/y:z"), version="v1", env={})
    state = context.new_execution_state().with_params(mode=context.new_execution_state().Mode.TASK_EXECUTION)
    builder = context.with_serialization_settings(settings).with_execution_state(state)
    with FlyteContextManager.with_context(builder) as inside, pytest.raises(LostOutputError) as raised:
        composes.compile_into_workflow(inside, composes.task_function, mixture=given(address))
    assert str(raised.value) == describe_lost_output(address)


def test_a_file_of_this_machine_is_not_an_output_that_is_gone(tmp_path):
    with pytest.raises(FileNotFoundError):
        content_digest(FlyteFile(str(tmp_path / "mixture.parquet")))


def test_the_tasks_that_write_outputs_exist():
    for writer in set(WRITERS.values()):
        path, name = writer.split()
        tree = ast.parse((ROOT / path).read_text())
        assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, writer


def test_an_address_that_is_not_flytes_names_no_writer():
    assert describe_lost_output("s3://mine/table.parquet").startswith(
        "s3://mine/table.parquet is no longer on the storage"
    )
