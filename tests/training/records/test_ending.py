"""The end of a run: a kill at any moment leaves a run that has ended, or one that resumes."""

import asyncio
import os
import shutil
from functools import partial

import pytest

from tasks.tables.parquet import read_table
from tasks.tables.schemas import LEDGER
from tasks.training.records.checkpoint import Checkpoints
from tasks.training.records.ending import end, has_ended, reopen
from tests.training.stand_ins import Run, config, prompts

OPTIONS = config(steps=8, checkpoint_every=4)


class KilledError(BaseException):
    """Stands for the death of the process at this point."""


def attempt(folder):
    """An attempt at the run, but for its end."""
    reopen(folder)
    return Run(folder, OPTIONS, prompts(60)).play()


def ended(run):
    asyncio.run(end(run.folder, run.ledger, run.checkpoints, {"seed": 0}))


def saved(folder):
    return sorted(path.name for path in (folder / "checkpoints").iterdir())


@pytest.fixture(scope="module")
def taken(tmp_path_factory):
    """A run that has taken all of its steps."""
    return attempt(tmp_path_factory.mktemp("run"))


def killed_at(monkeypatch, number):
    """Have the process die before its change of this number of the file system."""
    changes = []

    def changing(change, *arguments, **options):
        changes.append(arguments)
        if len(changes) == number:
            raise KilledError
        return change(*arguments, **options)

    for name in ("replace", "rename", "unlink", "rmdir"):
        monkeypatch.setattr(os, name, partial(changing, getattr(os, name)))


def end_killed_at(run, monkeypatch, number):
    """End a run; returns whether the process died on the way."""
    with monkeypatch.context() as patched:
        killed_at(patched, number)
        try:
            ended(run)
        except KilledError:
            return True
    return False


def copied(run, folder, **options):
    """A copy of a run that has taken all of its steps."""
    shutil.copytree(run.folder, folder)
    copy = Run(folder, OPTIONS, prompts(60))
    copy.ledger, copy.checkpoints = run.ledger, Checkpoints(folder / "checkpoints", **options)
    assert saved(folder) == ["step_00000004", "step_00000008"]
    return copy


def test_a_kill_at_any_moment_of_the_end_leaves_a_run_that_has_ended_or_resumes(taken, tmp_path, monkeypatch):
    rows, states = taken.metrics(), set()
    for number in range(1, 100):
        run = copied(taken, folder := tmp_path / str(number))
        killed = end_killed_at(run, monkeypatch, number)
        states.add((has_ended(folder), *saved(folder)))
        if has_ended(folder):
            assert read_table(folder / "ledger.parquet", LEDGER).num_rows == len(taken.rows())
        again = attempt(folder)
        assert not has_ended(folder)
        ended(again)
        assert has_ended(folder)
        assert (again.learner.steps, again.metrics(), saved(folder)) == ([], rows, ["step_00000008"])
        if not killed:
            break
    assert states == {
        (False, "step_00000004", "step_00000008"),
        (True, "step_00000004", "step_00000008"),
        (True, "step_00000004.partial", "step_00000008"),
        (True, "step_00000008"),
    }


def test_an_attempt_that_has_lost_the_run_deletes_no_checkpoint(taken, tmp_path):
    class LostError(Exception):
        pass

    def may_not():
        raise LostError

    zombie = copied(taken, tmp_path / "run", may_replace=may_not)
    with pytest.raises(LostError):
        ended(zombie)
    assert saved(zombie.folder) == ["step_00000004", "step_00000008"]


def test_checkpoints_that_cannot_be_deleted_do_not_cost_the_run(taken, tmp_path, monkeypatch, caplog):
    def fail(*_):
        raise PermissionError("not permitted")

    run = copied(taken, tmp_path / "run")
    monkeypatch.setattr("shutil.rmtree", fail)
    ended(run)
    assert has_ended(run.folder)
    assert "were not deleted: not permitted" in caplog.text
