import os
import signal
import sys
from typing import NamedTuple

import pytest
from flytekit import Deck, FlyteContextManager, task
from flytekit.core.context_manager import FlyteEntities
from flytekit.core.python_function_task import PythonFunctionTask
from flytekit.core.type_engine import TypeEngine
from flytekit.deck import DeckField
from flytekit.exceptions.user import FlyteRecoverableException

import workflows.rlvr  # noqa: F401 declares every task
from tasks.failures import InfrastructureError, MistakeError, describe_error
from tasks.flyte import stages
from tasks.flyte.local_run import LocalRun
from tasks.flyte.stages import show
from tasks.inputs.files import Recipe
from tasks.machine.memory_limit import MemoryLimitError, MemoryWatch, ShortOfMemoryError
from tests.machine.test_memory_limit import Group, training


def test_no_deck_starts_pip():
    decks = [e for e in FlyteEntities.entities if isinstance(e, PythonFunctionTask) and not e.disable_deck]
    assert len(decks) >= 8
    assert [task.name for task in decks if DeckField.DEPENDENCIES in task.deck_fields] == []


@pytest.mark.parametrize("has_deck", [True, False])
def test_a_task_without_a_deck_publishes_none(monkeypatch, has_deck):
    context = FlyteContextManager.current_context()
    parameters = context.user_space_params.with_enable_deck(enable_deck=has_deck).build()
    state = context.new_execution_state().with_params(user_space_params=parameters)
    published = []
    monkeypatch.setattr(Deck, "publish", lambda: published.append("deck"))
    with FlyteContextManager.with_context(context.with_execution_state(state)):
        show(f"deck {has_deck}", "<p>1</p>")
        assert (f"deck {has_deck}" in [deck.name for deck in parameters.decks]) == has_deck
    assert published == ["deck"] * has_deck


class Two(NamedTuple):
    first: int
    second: str


@task
def gives_two() -> Two:
    return Two(1, "x")


@task
def gives_one() -> int:
    return 3


@task
def is_interrupted() -> int:
    signal.raise_signal(signal.SIGINT)
    return 1


@pytest.fixture
def outputs(tmp_path, monkeypatch):
    """The folder of local results, which holds all that runs write."""
    for name in ("RLVR_OUTPUTS", "RLVR_RUNS", "FLYTE_SDK_LOCAL_SANDBOX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "outputs"


def test_results_of_a_local_run_are_printed_by_name_and_the_size_of_all_once(outputs):
    (outputs / "runs").mkdir(parents=True)
    (outputs / "runs" / "weights").write_bytes(bytes(2_500_000))
    os.link(outputs / "runs" / "weights", outputs / "weights")
    size = "outputs contains 2.5 MB (rlvr prune shows what can be removed)"
    assert LocalRun(gives_two)() == f"first       1\nsecond      x\n{size}"
    assert LocalRun(gives_one)() == f"gives_one   3\n{size}"


def test_a_size_that_cannot_be_told_does_not_cost_the_run(outputs, monkeypatch):
    def fail():
        raise PermissionError

    monkeypatch.setattr("tasks.flyte.local_run.describe_size", fail)
    assert LocalRun(gives_one)() == "gives_one   3"


def test_folders_that_lie_apart_are_named(outputs, tmp_path, monkeypatch):
    monkeypatch.setenv("RLVR_RUNS", str(tmp_path.parent / "elsewhere"))
    assert LocalRun(gives_one)().splitlines()[-1].startswith(f"{tmp_path.parent}/elsewhere and outputs contain 0 bytes")


@pytest.mark.usefixtures("outputs")
def test_a_relative_folder_of_flytes_files_is_refused(monkeypatch):
    monkeypatch.setenv("FLYTE_SDK_LOCAL_SANDBOX", "mine/flyte")
    with pytest.raises(MistakeError, match=r"must be an absolute path: export \w+=\$PWD/mine/flyte"):
        LocalRun(gives_one)()


@pytest.mark.usefixtures("outputs")
def test_a_local_run_that_is_interrupted_says_how_to_go_on(capsys):
    signal.signal(signal.SIGINT, lambda *_: sys.exit(1))  # as flytekit does when it is imported
    with pytest.raises(KeyboardInterrupt):
        LocalRun(is_interrupted)()
    assert "the same command continues" in capsys.readouterr().err


def test_a_models_type_is_its_own_also_where_it_is_part_of_a_union():
    before = TypeEngine.to_literal_type(Recipe)
    one, other = TypeEngine.to_literal_type(Recipe | None).union_type.variants
    after = TypeEngine.to_literal_type(Recipe)
    assert before == after
    assert after.structure is None
    assert one.structure.tag == "Pydantic Transformer"
    assert other.structure.tag == "none"


@pytest.mark.parametrize(("attempt", "kind"), [("0", FlyteRecoverableException), ("1", MemoryLimitError)])
@pytest.mark.parametrize("failure", [InfrastructureError("the engine died"), FlyteRecoverableException("it died")])
def test_a_stage_that_the_kernel_ends_for_memory_is_tried_again_once(monkeypatch, tmp_path, attempt, kind, failure):
    group = Group(tmp_path, 2)
    training(group)
    watch = MemoryWatch(group.read())
    monkeypatch.setattr(stages, "watch", lambda: watch)
    monkeypatch.setenv("FLYTE_ATTEMPT_NUMBER", attempt)

    def fails():
        raise failure

    with pytest.raises(FlyteRecoverableException) as raised:
        stages._convert_failures(fails)()
    assert "memory" not in str(raised.value)
    group.count(1)
    with pytest.raises(kind, match=r"died: the kernel killed a process because of the memory limit of 14\.0 GiB"):
        stages._convert_failures(fails)()


@pytest.mark.parametrize(("attempt", "kind"), [("0", FlyteRecoverableException), ("1", MemoryLimitError)])
def test_a_stage_whose_engine_does_not_start_for_memory_is_tried_again_once(monkeypatch, attempt, kind):
    monkeypatch.setenv("FLYTE_ATTEMPT_NUMBER", attempt)

    def fails():
        raise InfrastructureError("no actor is left") from ShortOfMemoryError("0.1 of 16 GiB are free")

    with pytest.raises(kind) as raised:
        stages._convert_failures(fails)()
    again = "; this happened in two attempts" if attempt == "1" else ""
    assert describe_error(raised.value) == f"no actor is left: 0.1 of 16 GiB are free{again}"
