"""Checkpoints are written while training goes on: what they hold, when they count, and what happens if they fail."""

import asyncio
import json

import pytest

from tasks.training.learner.checkpoint_shards import ShardUploadError
from tasks.training.learner.client import LearnerLostError
from tests.training.stand_ins import RecordingLearner, Run, config, prompts, until


class SlowDisk(RecordingLearner):
    """Its files are on the disk when `on_disk(number of checkpoints before)` returns what `written` says, or raises."""

    def __init__(self, on_disk):
        super().__init__()
        self.on_disk = on_disk
        self.saved = 0

    async def save(self, folder):
        await super().save(folder)
        self.saved += 1

    async def wait_until_written(self):
        return await self.on_disk(self.saved - 1)


def checkpoints(folder):
    return sorted(path.name for path in (folder / "checkpoints").iterdir())


def run(folder, on_disk, **options):
    return Run(folder, config(steps=6, **options), prompts(60), learner=SlowDisk(on_disk))


def test_steps_are_taken_while_a_checkpoint_is_written_which_holds_what_was_when_it_began(tmp_path):
    seen = []

    async def two_steps_later(number):
        if number == 0:
            await until(lambda: played.learner.version == 4)
            seen.extend(checkpoints(tmp_path))
        return True

    played = run(tmp_path, two_steps_later, checkpoint_every=2)
    played.play()
    assert seen == ["step_00000002.partial"]
    assert checkpoints(tmp_path) == ["step_00000004", "step_00000006"]
    for version in (4, 6):
        folder = tmp_path / "checkpoints" / f"step_{version:08d}"
        assert json.loads((folder / "state.json").read_text())["version"] == version
        assert (folder / "state.json").stat().st_size < 10_000  # tokens are in the table of groups
        assert json.loads((folder / "learner" / "learner.json").read_text()) == version


def test_a_checkpoint_that_is_due_waits_for_the_one_before_it_and_the_run_for_its_last(tmp_path):
    writing = []

    async def slow(number):
        writing.append(number)
        assert len(writing) == 1
        await asyncio.sleep(3)
        writing.remove(number)
        return True

    run(tmp_path, slow, checkpoint_every=1).play()
    assert checkpoints(tmp_path) == ["step_00000005", "step_00000006"]


def test_a_killed_run_goes_on_from_the_checkpoint_before_the_one_that_was_being_written(tmp_path):
    async def killed_while_it_writes_the_second(number):
        if number == 1:
            raise KeyboardInterrupt
        return True

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, killed_while_it_writes_the_second, checkpoint_every=2).play()
    assert checkpoints(tmp_path) == ["step_00000002", "step_00000004.partial"]
    after = Run(tmp_path, config(steps=6, checkpoint_every=2), prompts(60)).play()
    assert len(after.learner.steps) == 4
    trained = after.rows("trained")
    assert sorted({row["step"] for row in trained}) == list(range(6))
    assert len({row["group"] for row in trained}) == len(trained)


def test_a_disk_that_is_full_ends_the_run_with_the_checkpoint_before_it(tmp_path):
    async def full(number):
        if number == 1:
            raise OSError(28, "No space left on device")
        return True

    played = run(tmp_path, full, checkpoint_every=2)
    with pytest.raises(OSError, match="No space left"):
        played.play()
    assert played.learner.version < 6
    assert checkpoints(tmp_path) == ["step_00000002", "step_00000004.partial"]


def test_a_checkpoint_that_is_lost_with_a_rank_is_taken_at_the_next_step(tmp_path):
    async def lost(number):
        if number == 0:
            raise LearnerLostError("a learner rank was lost")
        return True

    played = run(tmp_path, lost, checkpoint_every=3)
    played.play()
    assert played.learner.saved == 3
    assert checkpoints(tmp_path) == ["step_00000004", "step_00000006"]


def test_one_that_the_storage_does_not_take_is_left_out_until_the_next_is_due(tmp_path):
    async def away(number):
        if number < 2:
            raise ShardUploadError("s3://bucket/run was not uploaded: Connection refused")
        return True

    played = run(tmp_path, away, checkpoint_every=100, recover_every=2)
    played.play()
    assert played.learner.saved == 3
    assert checkpoints(tmp_path) == ["step_00000006"]


def test_a_run_whose_last_checkpoint_the_storage_does_not_take_ends_without_it(tmp_path):
    async def away(_number):
        raise ShardUploadError("s3://bucket/run was not uploaded: Connection refused")

    played = run(tmp_path, away, checkpoint_every=100)
    played.play()
    assert played.learner.version == 6
    assert checkpoints(tmp_path) == ["step_00000006.partial"]


def test_the_last_checkpoint_is_taken_again_where_it_is_lost(tmp_path):
    async def lost(number):
        return number > 0

    run(tmp_path, lost, checkpoint_every=100).play()
    assert checkpoints(tmp_path) == ["step_00000006"]
