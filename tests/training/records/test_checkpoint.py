"""Checkpoints: a folder has its name only when it is complete, and only the newest are kept."""

import asyncio
import json

import pytest

from tasks.recipe.run import TrainingConfig
from tasks.training.records.checkpoint import Checkpoints, is_due
from tasks.training.records.identity import run_setup
from tasks.training.records.run_state import FORMAT, RunState
from tasks.training.records.saved_groups import make_groups_table
from tests.training.stand_ins import RecordingLearner


class KilledError(BaseException):
    """Stands for the process being killed at this point."""


class LearnerKilledWhileSaving(RecordingLearner):
    async def save(self, folder):
        folder.mkdir()
        (folder / "half").write_text("")
        raise KilledError


def state(version):
    return RunState.begin(run_setup(TrainingConfig())).model_copy(update={"version": version})


def save(checkpoints, version, learner=None):
    learner = learner or RecordingLearner(version=version)

    async def main():
        begun = await checkpoints.begin(state(version), make_groups_table([]), learner)
        await checkpoints.settle(await checkpoints.complete(begun))

    asyncio.run(main())


def test_a_checkpoint_holds_the_state_and_the_learner(tmp_path):
    announced = []
    checkpoints = Checkpoints(tmp_path / "run", announced.append)
    assert checkpoints.find_newest() is None
    save(checkpoints, 3)
    newest = checkpoints.find_newest()
    assert announced == [newest]
    assert RunState.read(newest) == state(3)
    assert json.loads((newest / "learner" / "learner.json").read_text()) == 3


def test_only_the_newest_two_stay(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    for version in (1, 2, 9, 10):
        save(checkpoints, version)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_00000009", "step_00000010"]
    assert checkpoints.find_newest().name == "step_00000010"


def test_the_newest_of_those_that_can_be_gone_back_to_stays_until_the_next_one(tmp_path):
    checkpoints = Checkpoints(tmp_path, every=4)
    stay = []
    for version in (2, 4, 6, 7, 8, 9, 11):
        save(checkpoints, version)
        stay.append([int(path.name[5:]) for path in sorted(tmp_path.iterdir())])
    assert stay == [[2], [2, 4], [4, 6], [4, 6, 7], [7, 8], [8, 9], [8, 9, 11]]


@pytest.mark.parametrize(
    ("every", "recover", "expected"),
    [
        (100, 10, [*range(10, 101, 10)]),
        (16, 10, [10, 16, 26, 32, 42, 48, 58, 64, 74, 80, 90, 96]),
        (40, None, [40, 80]),
        (20, 20, [20, 40, 60, 80, 100]),
        (20, 30, [20, 40, 60, 80, 100]),
    ],
)
def test_checkpoints_are_due_by_their_interval_and_for_recovery_after_steps_without_one(every, recover, expected):
    config = TrainingConfig(checkpoint_every=every, recover_every=recover)
    taken = [0]
    for version in range(1, 101):
        if is_due(config, version, taken[-1]):
            taken.append(version)
    assert taken[1:] == expected


def test_an_attempt_that_has_lost_the_run_deletes_nothing_of_the_next(tmp_path):
    class LostError(Exception):
        pass

    def may_not():
        if lost:
            raise LostError

    lost = []
    zombie = Checkpoints(tmp_path, may_replace=may_not)
    theirs = tmp_path / "step_00000004.partial"
    theirs.mkdir()
    lost.append(True)
    with pytest.raises(LostError):
        save(zombie, 3)
    assert theirs.is_dir()


def test_a_kill_while_saving_leaves_the_previous_checkpoint(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 1)
    with pytest.raises(KilledError):
        save(checkpoints, 2, LearnerKilledWhileSaving())
    assert checkpoints.find_newest().name == "step_00000001"
    assert Checkpoints(tmp_path).find_newest().name == "step_00000001"
    assert [path.name for path in tmp_path.iterdir()] == ["step_00000001"]  # the half one is cleaned away


def test_a_kill_between_the_last_byte_and_the_name_leaves_the_previous_checkpoint(tmp_path, monkeypatch):
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 1)

    def killed(*_):
        raise KilledError

    monkeypatch.setattr(type(tmp_path), "rename", killed)
    with pytest.raises(KilledError):
        save(checkpoints, 2)
    monkeypatch.undo()
    assert Checkpoints(tmp_path).find_newest().name == "step_00000001"


def test_a_checkpoint_that_is_half_deleted_is_none(tmp_path, monkeypatch):
    """A run of fewer steps may copy it at this moment."""
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 1)
    save(checkpoints, 2)

    def killed(folder):
        assert folder.name == "step_00000001.partial"
        raise KilledError

    monkeypatch.setattr("shutil.rmtree", killed)
    with pytest.raises(KilledError):
        save(checkpoints, 3)
    monkeypatch.undo()
    Checkpoints(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_00000002", "step_00000003"]


@pytest.mark.parametrize("damage", ['{"version": 1', "", None])
def test_a_damaged_state_is_one_error_that_names_the_checkpoint(tmp_path, damage):
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 1)
    state = checkpoints.find_newest() / "state.json"
    state.unlink() if damage is None else state.write_text(damage)
    with pytest.raises(ValueError, match=r"checkpoint .*step_00000001: state.json cannot be read"):
        RunState.read(checkpoints.find_newest())


@pytest.mark.parametrize("content", ["{}", "[]", f'{{"format": {FORMAT}, "version": 3}}'])
def test_a_state_without_its_parts_is_the_same_error(tmp_path, content):
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 1)
    (checkpoints.find_newest() / "state.json").write_text(content)
    with pytest.raises(ValueError, match=r"step_00000001: state.json"):
        RunState.read(checkpoints.find_newest())


def test_a_state_is_of_the_moment_at_which_it_was_taken():
    prompts = {"visits": {"solved": {"p1": 1}}}
    state = RunState.begin(run_setup(TrainingConfig())).model_dump() | {"prompts": prompts}
    taken = RunState(**state)
    prompts["visits"]["solved"]["p1"] = 2
    assert taken.prompts == {"visits": {"solved": {"p1": 1}}}
