"""What a backend runs again: nothing where nothing changed, and after a file was lost only what makes it."""

import boto3
import pytest
from flytekit import FlyteContextManager
from flytekit.configuration import DataConfig
from flytekit.core.data_persistence import FileAccessProvider
from flytekit.exceptions.user import FlyteUserRuntimeException
from flytekit.types.directory import FlyteDirectory
from flytekit.types.file import FlyteFile

from tasks.evaluation.task import compare_policies
from tasks.flyte.lost_outputs import COMPOSE_AGAIN, WRITERS, describe_lost_output
from tasks.inputs.composed_again import compose_again
from tasks.inputs.files import load_quickstart
from tasks.kubernetes.pods import PodConfig
from tasks.mixing.task import mix_prompts
from tasks.storage.locations import RUNS
from tasks.training.task import train_policy
from tests.flyte.admin_stand_in import console_form
from tests.object_store import BUCKET, KEYS, object_store
from tests.workflows.caching_backend import CachingBackend
from tests.workflows.jobs import literals
from workflows.data import data
from workflows.rlvr import rlvr
from workflows.training import train

pytestmark = pytest.mark.long


@pytest.fixture
def store(monkeypatch, tmp_path):
    """An object store, where Flyte keeps all files."""
    with object_store() as made:
        for name, value in made.environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.delenv(RUNS, raising=False)
        access = FileAccessProvider(str(tmp_path / "pod"), made.prefix, data_config=DataConfig.auto())
        context = FlyteContextManager.current_context()
        with FlyteContextManager.with_context(context.with_file_access(access)):
            yield made


@pytest.fixture
def backend(store, stand_ins, monkeypatch):
    monkeypatch.setattr("tasks.charts.drawing._render_svg", lambda *_: "<svg/>")  # drawing takes half of the time
    return CachingBackend({}, store, {}, lambda _: None)


def files(**changes):
    return dict(zip(("data", "training", "evaluation"), load_quickstart(), strict=True)) | changes


def launch(backend, **changes):
    return backend.launch(rlvr, literals(rlvr, **files(**changes)))


def test_a_second_launch_runs_two_tasks_alone_and_so_does_a_relaunch_from_the_console(backend):
    launch(backend)
    assert len(backend.ran) > 20
    launch(backend)
    assert backend.ran == ["preflight", "report"]
    shown = {name: console_form(literal) for name, literal in literals(rlvr, **files()).items()}
    backend.launch(rlvr, shown)
    assert backend.ran == ["preflight", "report"]


def test_another_machine_runs_nothing_again_and_another_rate_what_depends_on_it(backend):
    launch(backend)
    recipe = load_quickstart()[1]
    node = recipe.cluster.model_copy(update={"node": PodConfig(cpu=4)})
    launch(backend, training=recipe.model_copy(update={"cluster": node, "stall_seconds": 60.0}))
    assert backend.ran == ["preflight", "report"]
    faster = recipe.optimizer.model_copy(update={"learning_rate": 2e-5})
    launch(backend, training=recipe.model_copy(update={"optimizer": faster, "steps": 15}))
    composed = {"checking", "compose_data", "compose_training", "compose_evaluation"}
    handed = {"hand_to_check", "hand_to_training", "hand_to_evaluation"}
    again = {"train_policy", "evaluate_policy", "compare_policies"}
    assert set(backend.ran) == {"preflight", "report"} | composed | handed - {"hand_to_check"} | again


def test_a_model_that_was_not_checked_is_checked_once_the_recipe_asks_for_it(backend):
    unchecked = load_quickstart()[1].model_copy(update={"model_check": False})
    launch(backend, training=unchecked)
    assert "check_model" not in backend.ran
    launch(backend)
    assert "check_model" in backend.ran
    assert "train_policy" not in backend.ran


def test_a_part_that_is_started_by_itself_is_taken_from_the_cache_as_a_whole(backend):
    made = launch(backend)
    inputs = literals(data, **files(), model=FlyteDirectory(made["model"].scalar.blob.uri))
    backend.launch(data, inputs)
    assert backend.ran == ["pin_data"], "its files are those of the pipeline"
    inputs = literals(
        train,
        data=load_quickstart()[0],
        training=load_quickstart()[1],
        model=FlyteDirectory(made["model"].scalar.blob.uri),
        mixture=FlyteFile(made["mixture"].scalar.blob.uri),
    )
    backend.launch(train, inputs)
    assert backend.ran == ["pin_training", "compose_training"], "no source is read, and the stages are cached"
    backend.launch(train, inputs)
    assert backend.ran == ["pin_training"]


LOST = {
    "mixture": (mix_prompts, {"hand_to_training", "hand_to_evaluation"}),
    "policy": (train_policy, {"hand_to_evaluation"}),
    "evaluation": (compare_policies, set()),
}


@pytest.mark.parametrize("output", LOST)
def test_after_the_commands_for_a_lost_output_the_next_launch_succeeds_and_all_other_stages_are_kept(
    backend, store, output
):
    writer, handing = LOST[output]
    address = launch(backend)[output].scalar.blob.uri
    client = boto3.client("s3", endpoint_url=store.endpoint, **KEYS)
    for name in store.keys(address.removeprefix(f"s3://{BUCKET}/")):
        client.delete_object(Bucket=BUCKET, Key=name)
    path, name = WRITERS[address.rpartition("/")[2]].split()
    assert f"{path.removesuffix('.py').replace('/', '.')}.{name}" == writer.name
    with pytest.raises(FlyteUserRuntimeException) as raised:
        launch(backend)
    assert describe_lost_output(address) in str(raised.value)
    backend.overwrite(writer)
    backend.given["compose_again"] = {}
    backend.overwrite(compose_again)
    assert COMPOSE_AGAIN.endswith("tasks/inputs/composed_again.py compose_again")
    launch(backend)
    composed = {"compose_data", "compose_training", "compose_evaluation"}
    assert set(backend.ran) == {"preflight", "report"} | composed | handing
    launch(backend)
    assert backend.ran == ["preflight", "report"]
