"""Fewer steps than a run has taken: a run of its own, from a copy of that run's checkpoint if it still has it."""

import asyncio
import json
import shutil
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tasks.storage.lease import Lease, RunInUseError
from tasks.training.control.validation import split_validation
from tasks.training.learner.checkpoint_shards import LearnerShards, Upload
from tasks.training.records import shorter_runs
from tasks.training.records.checkpoint import Checkpoints
from tasks.training.records.ending import end
from tasks.training.records.run_storage import open_run_storage
from tasks.training.records.shorter_runs import find_run_location
from tasks.training.run_attempt import print_attempt
from tests.object_store import BUCKET, object_store
from tests.training.records.test_remote_store import connect
from tests.training.stand_ins import RecordingLearner, Run, config, prompts

SCORES = {0: "wrong", 3: "half", 6: "right"}
"""Second response to a validation's prompts by version; the first is right. Other versions are as bad as version 0."""

FILES = 7
"""Number of files of a copy: state, groups, learner; ledger, metrics, responses, the best policy."""


class KilledError(BaseException):
    """Stands for the death of the process at this point."""


@dataclass
class Machine:
    """A machine on which runs are trained: its folder of run folders, and perhaps a bucket that others use too."""

    runs: Path
    bucket: object = None
    capsys: object = None
    lines: list[str] = field(default_factory=list)

    def location(self, options):
        return find_run_location("abc", options, "", lambda _: connect(self.bucket))

    @contextmanager
    def holding(self, options):
        """The location of a run, and what its caller holds of it."""
        location = self.location(options)
        self.capsys.readouterr()
        with (
            open_run_storage(
                location.folder, location.address, lambda _: connect(self.bucket), 4, location.begin
            ) as held,
            print_attempt(location.folder, options, lambda *_, **__: None),
        ):
            self.lines = self.capsys.readouterr().err.splitlines()
            yield location, held

    def train(self, steps, learner=None, **more):
        """A run of so many steps, as the local command and the pipeline's stage do it."""
        options = recipe(steps, **more)
        held_out = {int(prompt.prompt_id[1:]) for prompt in split_validation(prompts(60), options)[1]}
        asked = []

        async def answers(actor, prompt):
            if prompt in held_out:
                asked.append(actor.version)
            return ["right", SCORES.get(actor.version, "wrong") if prompt in held_out else "wrong"]

        with self.holding(options) as (location, held):
            learner = learner(held.uploads) if learner else RecordingLearner()
            run = Run(location.folder, options, prompts(60), answers, learner, on_saved=held.on_saved)
            run.asked = asked
            run.play()
            asyncio.run(end(run.folder, run.ledger, run.checkpoints, None))
            return run


def recipe(steps, **more):
    validation = {"every": 3, "prompts": 2, "samples": 2, "hand_over": "best"}
    return config(**{"steps": steps, "checkpoint_every": 4, "validation": validation, "stall_seconds": 100, **more})


def contents(folder):
    """The bytes of all files of a run but its lease."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != "lease.json"}


def without_validation(rows):
    return [{name: value for name, value in row.items() if not name.startswith("validation/")} for row in rows]


def stored(machine, prefix="runs/abc/"):
    """The bytes of a run's objects in the bucket, but its lease."""
    storage = connect(machine.bucket)
    keys = [key for key in machine.bucket.keys(prefix) if not key.endswith("lease.json")]
    return {key: storage.cat_file(f"{BUCKET}/{key}") for key in keys}


def saved(run):
    return sorted(path.name for path in (run.folder / "checkpoints").iterdir())


@pytest.fixture
def machine(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("RLVR_RUNS", str(tmp_path))
    return Machine(tmp_path, capsys=capsys)


@pytest.fixture(scope="module")
def server():
    with object_store() as store:
        yield store


@pytest.fixture
def machines(server, tmp_path, monkeypatch, capsys):
    """Function that gives an empty machine; all have one bucket."""
    objects = server.keys()
    for key in objects:
        connect(server).rm_file(f"{BUCKET}/{key}")
    monkeypatch.setenv("RLVR_RUNS", f"s3://{BUCKET}/runs")
    numbers = iter(range(9))

    def another():
        folder = tmp_path / f"machine-{next(numbers)}"
        folder.mkdir()
        monkeypatch.chdir(folder)
        return Machine(folder / "outputs" / "runs", server, capsys)

    return another


def check_first_four_steps(shorter, longer_rows, longer_ledger):
    """What a run of four steps has, which is a copy of the first of a longer run: all but its last validation."""
    rows = shorter.metrics()
    assert shorter.learner.steps == []
    assert without_validation(rows) == without_validation(longer_rows[:4])
    assert [row["validation/version"] for row in rows if "validation/version" in row] == [0, 3, 4]
    assert rows[-1]["validation/version"] == 4  # the last version, which the longer run had no cause to validate
    assert set(shorter.controller.validation.state()) == {"0", "3", "4"}
    assert shorter.controller.validation.best == 3  # of the longer run it is 6
    assert (shorter.folder / "policies" / "validated_00000003" / "model").read_text() == "weights 3"
    trained = [row for row in longer_ledger if row["step"] is not None and row["step"] < 4]
    assert shorter.rows("trained") == trained
    sampled = [row["group"] for row in shorter.rows()]
    assert len(set(sampled)) == len(sampled)
    assert all(row["fate"] in ("trained", "unused") for row in shorter.rows())


def killed_after_eight_steps(machine, learner=RecordingLearner, **more):
    """A run of twelve steps, of which the checkpoints 4 and 8 are there."""

    class Ends(learner):
        async def step(self, *batch):
            if self.version == 8:
                raise KilledError
            return await super().step(*batch)

    with pytest.raises(KilledError):
        machine.train(12, lambda parts: Ends(parts) if learner is UploadingLearner else Ends(), **more)
    return Run(machine.runs / "abc", recipe(12, **more), prompts(60))


def test_of_a_run_that_has_ended_the_last_checkpoint_stays_and_fewer_steps_begin_from_the_beginning(machine):
    eight = machine.train(8)
    rows, before = eight.metrics(), contents(machine.runs / "abc")
    assert saved(eight) == ["step_00000008"]
    assert eight.controller.validation.best == 6
    assert [path.name for path in (eight.folder / "policies").iterdir()] == ["validated_00000006"]
    assert machine.lines == []

    four = machine.train(4)
    assert machine.lines == [
        "training: the run of this recipe has taken 8 steps: 4 steps are a separate run, from the beginning, as it "
        "has no checkpoint of step 4"
    ]
    assert (four.folder.name, len(four.learner.steps), four.controller.validation.best) == ("abc-4", 4, 3)
    assert contents(machine.runs / "abc") == before

    ten = machine.train(10)
    assert (ten.folder.name, len(ten.learner.steps), saved(ten)) == ("abc", 2, ["step_00000010"])
    assert ten.metrics()[:8] == rows
    assert [row["step"] for row in ten.metrics()] == list(range(10))


def test_twelve_steps_that_are_interrupted_then_four_then_six_then_twelve(machine):
    longer = killed_after_eight_steps(machine)
    rows, ledger, before = longer.metrics(), longer.rows(), contents(machine.runs / "abc")
    assert saved(longer) == ["step_00000004", "step_00000008"]

    four = machine.train(4)
    assert machine.lines == [
        "training: the run of this recipe has taken 8 steps: 4 steps are a separate run, from a copy of its "
        "checkpoint of step 4",
        f"training: 4 of 4 steps are done: resumed from the checkpoint in {machine.runs}/abc-4",
    ]
    check_first_four_steps(four, rows, ledger)
    kept = [row for row in longer.rollouts() if row["step"] is not None and row["step"] < 4]
    assert [row for row in four.rollouts() if row["step"] is not None] == kept

    six = machine.train(6)
    assert machine.lines == [
        "training: the run of this recipe has taken 8 steps: 6 steps are a separate run, from the beginning, as it "
        "has no checkpoint of step 6"
    ]
    assert (six.folder.name, len(six.learner.steps), six.controller.validation.best) == ("abc-6", 6, 6)
    assert contents(machine.runs / "abc") == before

    twelve = machine.train(12)
    assert (twelve.folder.name, len(twelve.learner.steps), saved(twelve)) == ("abc", 4, ["step_00000012"])
    assert twelve.metrics()[:8] == rows
    assert [row["step"] for row in twelve.metrics()] == list(range(12))


def test_policies_that_were_exported_on_the_way_come_along(machine):
    killed_after_eight_steps(machine, export_every=2)
    four = machine.train(4, export_every=2)
    policies = {path.name: (path / "model").read_text() for path in (four.folder / "policies").iterdir()}
    assert policies.pop("validated_00000003") == "weights 3"
    assert policies.pop("validated_00000004", "weights 4") == "weights 4"  # until the next checkpoint
    assert policies == {"step_00000002": "weights 2", "step_00000004": "weights 4"}


def test_a_shorter_run_that_is_started_again_has_its_validation(machine):
    killed_after_eight_steps(machine)
    first = machine.train(4)
    again = machine.train(4)
    assert machine.lines[0].endswith("4 steps are a separate run")
    assert again.metrics() == first.metrics()
    assert first.asked
    assert again.asked == []
    assert again.controller.validation.state() == first.controller.validation.state()


def test_a_run_that_was_ended_at_its_last_step_makes_its_validation_up(machine):
    """The same as of a copy: a run of more steps has taken the checkpoint, without a validation of this version."""

    async def end(step):
        if step == 4:
            raise KilledError

    with pytest.raises(KilledError):
        machine.train(8, lambda _: RecordingLearner(end))
    four = machine.train(4)
    assert four.folder.name == "abc"
    assert four.learner.steps == []
    assert four.metrics()[-1]["validation/version"] == 4


@pytest.mark.parametrize("options", [{"prompts": {"reroll": {"start_fraction": 0.5}}}, {"checkpoint_every": 8}])
def test_without_a_checkpoint_that_fits_a_shorter_run_begins_from_the_beginning(machine, options):
    killed_after_eight_steps(machine, **options)
    before = contents(machine.runs / "abc")
    four = machine.train(4, **options)
    assert "4 steps are a separate run, from the beginning, as " in machine.lines[0]
    assert ("prompts.reroll" in machine.lines[0]) == ("prompts" in options)
    assert len(four.learner.steps) == 4
    assert contents(machine.runs / "abc") == before


def interrupted_at(monkeypatch, number, do, copier=shorter_runs.shutil, name="copyfile"):
    """Have `do()` called before a copy: that of the file of this number; returns a list of the copies."""
    copies, copy = [], getattr(copier, name)

    def copying(*arguments, **options):
        copies.append(arguments)
        if len(copies) == number:
            do()
        return copy(*arguments, **options)

    monkeypatch.setattr(copier, name, copying)
    return copies


def kill():
    raise KilledError


def test_a_copy_that_is_killed_at_any_file_does_not_count_and_is_made_by_the_next_attempt(machine, monkeypatch):
    longer = killed_after_eight_steps(machine)
    rows, ledger = longer.metrics(), longer.rows()
    number = 1
    while True:
        with monkeypatch.context() as patched:
            copies = interrupted_at(patched, number, kill)
            try:
                with machine.holding(recipe(4)):
                    break
            except KilledError:
                assert Checkpoints.find_newest_below(machine.runs / "abc-4" / "checkpoints") is None
        number += 1
    assert len(copies) == number - 1 == FILES
    check_first_four_steps(machine.train(4), rows, ledger)


def test_a_checkpoint_that_is_deleted_while_it_is_copied_is_none(machine, monkeypatch):
    killed_after_eight_steps(machine)
    shutil.copytree(machine.runs / "abc", machine.runs / "whole")
    checkpoint = machine.runs / "abc" / "checkpoints" / "step_00000004"

    def delete():
        checkpoint.rename(checkpoint.with_suffix(".partial"))  # as `Checkpoints` does
        shutil.rmtree(checkpoint.with_suffix(".partial"))

    for number in range(1, FILES + 1):
        with monkeypatch.context() as patched:
            interrupted_at(patched, number, delete)
            four = machine.train(4)
        assert machine.lines == [
            "training: the run of this recipe has taken 8 steps: 4 steps are a separate run, from the beginning, "
            "as it has no checkpoint of step 4"
        ], number
        assert len(four.learner.steps) == 4
        assert [row["step"] for row in four.metrics()] == list(range(4))
        for name in ("abc", "abc-4"):
            shutil.rmtree(machine.runs / name)
        shutil.copytree(machine.runs / "whole", machine.runs / "abc")


def test_a_shorter_run_needs_its_own_lease_and_not_that_of_the_longer_one(machine):
    killed_after_eight_steps(machine)
    with Lease.from_folder(machine.runs / "abc"):
        with pytest.raises(RunInUseError):
            machine.train(10)
        with machine.holding(recipe(4)), pytest.raises(RunInUseError, match=r"abc-4/lease\.json"):
            machine.train(4)
        assert len(machine.train(4).metrics()) == 4


class UploadingLearner(RecordingLearner):
    """As ranks whose nodes do not see the run folder: its part of a checkpoint is at the run's address alone."""

    def __init__(self, storage):
        super().__init__()
        self.storage = storage

    async def save(self, folder):
        part = folder.parents[2] / "parts" / "rank_0"
        part.parent.mkdir(exist_ok=True)
        part.write_text(json.dumps(self.version))
        upload = f"{folder.parent.stem}.1a2b3c4d"
        files = Upload(self.storage, upload).put(part.parent, [part])
        LearnerShards(address=self.storage.address, upload=upload, files=files).write(folder)

    async def load(self, folder):
        parts = LearnerShards.read(folder)
        upload = Upload(self.storage, parts.upload)
        assert upload.lack(parts.files) == ""
        upload.fetch(folder / "fetched", parts.files)
        self.version = json.loads((folder / "fetched" / "rank_0").read_text())


@pytest.mark.long
@pytest.mark.parametrize("learner", [RecordingLearner, UploadingLearner])
def test_on_storage_four_steps_then_six_then_twelve_and_empty_machines_between(machines, learner):
    first = machines()
    longer = killed_after_eight_steps(first, learner)
    rows, ledger, before = longer.metrics(), longer.rows(), stored(first)
    assert {key.split("/")[2].partition(".")[0] for key in before if "/step_" in key} == {
        "step_00000004",
        "step_00000008",
    }
    make = UploadingLearner if learner is UploadingLearner else None

    second = machines()
    with Lease(connect(second.bucket), f"s3://{BUCKET}/runs/abc/lease.json"):  # the longer one goes on
        four = second.train(4, make)
    assert second.lines[0].endswith("from a copy of its checkpoint of step 4")
    check_first_four_steps(four, rows, ledger)
    copied = {key.removeprefix("runs/abc-4/") for key in stored(second, "runs/abc-4/")}
    assert "rollouts/00000000.parquet" in copied
    assert not any("tensorboard" in key for key in copied)

    third = machines()
    again = third.train(4, make)
    assert third.lines[0].endswith("4 steps are a separate run")
    check_first_four_steps(again, rows, ledger)

    six = third.train(6, make)
    assert (six.folder.name, len(six.learner.steps)) == ("abc-6", 6)
    assert stored(third) == before

    twelve = second.train(12, make)
    assert (twelve.folder.name, len(twelve.learner.steps)) == ("abc", 4)
    assert [row["step"] for row in twelve.metrics()] == list(range(12))


@pytest.mark.long
def test_a_checkpoint_of_this_machine_is_uploaded_to_the_address_of_the_shorter_run(machines):
    first = machines()
    longer = killed_after_eight_steps(first)
    rows, ledger = longer.metrics(), longer.rows()
    for key in first.bucket.keys("runs/abc/step_00000004"):  # an upload that failed has left nothing
        connect(first.bucket).rm_file(f"{BUCKET}/{key}")
    assert first.train(4).learner.steps == []
    second = machines()
    check_first_four_steps(second.train(4), rows, ledger)


@pytest.mark.long
def test_a_checkpoint_whose_parts_are_elsewhere_is_copied_there(machines):
    """A local folder does not hold the ranks' files: the copy of it alone would need the longer run's address."""
    machine = machines()
    longer = killed_after_eight_steps(machine, UploadingLearner)
    rows, ledger = longer.metrics(), longer.rows()
    four = machine.train(4, UploadingLearner)
    check_first_four_steps(four, rows, ledger)
    assert "runs/abc-4/step_00000004.1a2b3c4d/parts/rank_0" in machine.bucket.keys("runs/abc-4/")


@pytest.mark.long
def test_a_copy_on_storage_that_is_killed_does_not_count(machines, monkeypatch):
    first = machines()
    longer = killed_after_eight_steps(first)
    rows, ledger, before = longer.metrics(), longer.rows(), stored(first)
    second = machines()
    for number in (1, 2, 3):
        with monkeypatch.context() as patched:
            interrupted_at(patched, number, kill, connect(first.bucket), "cp_file")
            with pytest.raises(KilledError):
                second.train(4)
        assert not [key for key in stored(first, "runs/abc-4/") if key.endswith("manifest.json")]
    check_first_four_steps(second.train(4), rows, ledger)
    assert stored(first) == before


@pytest.mark.long
@pytest.mark.parametrize(("number", "objects"), [(1, 9), (4, 9), (6, 9), (6, 2)])
def test_an_upload_that_is_deleted_while_it_is_copied_is_none(machines, monkeypatch, number, objects):
    """At the last of its files, the deletion has perhaps come to one that was copied."""
    first = machines()
    killed_after_eight_steps(first)
    storage = connect(first.bucket)

    def delete():  # as `RunStore` does
        keys = sorted(first.bucket.keys("runs/abc/step_00000004"), key=lambda key: not key.endswith("manifest.json"))
        for key in keys[:objects]:
            storage.rm_file(f"{BUCKET}/{key}")

    interrupted_at(monkeypatch, number, delete, storage, "cp_file")
    second = machines()
    four = second.train(4)
    assert second.lines[0].endswith("from the beginning, as it has no checkpoint of step 4")
    assert len(four.learner.steps) == 4


@pytest.mark.long
@pytest.mark.parametrize(("refusal", "steps"), [(None, 0), (PermissionError("AccessDenied"), 4)])
def test_storage_may_copy_after_its_answer_or_refuse_to_copy_by_itself(machines, monkeypatch, caplog, refusal, steps):
    first = machines()
    killed_after_eight_steps(first)
    storage = connect(first.bucket)
    copy, asked = storage.cp_file, []

    def copies_later(*names):
        asked.append(names)
        if refusal:
            raise refusal
        if len(asked) > 1:  # the first is not there yet
            copy(*names)

    monkeypatch.setattr(storage, "cp_file", copies_later)
    monkeypatch.setattr(shorter_runs, "WAITS", (0.0,))
    assert len(machines().train(4).learner.steps) == steps
    assert ("is not copied yet; trying again" in caplog.text) == (refusal is None)
    assert ("cannot be copied to" in caplog.text) == (refusal is not None)
