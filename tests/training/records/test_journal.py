"""The journal: one JSON line per step, and the same numbers in TensorBoard."""

import json
import time

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tasks.failures import MistakeError
from tasks.training.records.journal import Journal, cut_back_rows


def scalars(folder, name):
    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return {event.step: event.value for event in events.Scalars(name)}


def test_a_step_is_one_line_and_one_point_per_metric(tmp_path):
    journal = Journal(tmp_path)
    for step in range(2):
        journal.record({"step": step, "reward/math": 0.25 * step, "groups": 8})
    assert journal.rows() == [
        {"step": 0, "reward/math": 0.0, "groups": 8},
        {"step": 1, "reward/math": 0.25, "groups": 8},
    ]
    journal.close()
    assert scalars(tmp_path, "reward/math") == {0: 0.0, 1: 0.25}
    assert scalars(tmp_path, "groups") == {0: 8, 1: 8}


def test_after_a_resume_lost_steps_are_gone_from_file_and_curves(tmp_path):
    before = Journal(tmp_path)
    before.record({"step": 0, "reward": 0.0})
    before.record({"step": 1, "reward": 0.125})
    before.record({"step": 2, "reward": 0.125})
    before.close()
    cut_back_rows(tmp_path / "metrics.jsonl", 1)
    time.sleep(1.01 - time.time() % 1)  # TensorBoard orders its files by their second, as those of two processes are
    after = Journal(tmp_path)
    after.record({"step": 1, "reward": 0.5})
    after.close()
    assert [row["reward"] for row in after.rows()] == [0.0, 0.5]
    assert scalars(tmp_path, "reward") == {0: 0.0, 1: 0.5}


def test_a_metric_that_is_no_number_is_an_error_and_leaves_no_line(tmp_path):
    journal = Journal(tmp_path)
    with pytest.raises(ValueError, match="not JSON compliant"):
        journal.record({"step": 0, "loss": float("nan")})
    journal.close()
    assert json.loads("[" + journal.path.read_text() + "]") == []


def validation(version):
    return {"validation/version": version, "validation/score": version / 8}


def test_a_validation_that_is_made_up_is_in_the_last_row_and_that_of_an_earlier_version_before_it(tmp_path):
    journal = Journal(tmp_path)
    journal.record({"step": 0, "reward": 0.0})
    journal.record({"step": 1, "reward": 0.5, **validation(1)})
    journal.add_validation(validation(2))
    expected = [{"step": 0, "reward": 0.0, **validation(1)}, {"step": 1, "reward": 0.5, **validation(2)}]
    assert journal.rows() == expected
    assert scalars(tmp_path, "validation/score") == {0: 0.125, 1: 0.25}

    journal.record({"step": 2, "reward": 1.0})
    journal.close()
    cut_back_rows(journal.path, 2)  # a checkpoint of step 2 knows shorter lines
    assert journal.rows() == expected
    with pytest.raises(MistakeError, match=r"metrics\.jsonl holds 2 steps, the checkpoint recorded 3"):
        cut_back_rows(journal.path, 3)


def test_curves_are_drawn_from_the_rows_if_there_are_none(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 0, "reward": 0.25}\n{"step": 1, "reward": 0.5}\n')
    journal = Journal(tmp_path)
    journal.record({"step": 2, "reward": 1.0})
    journal.close()
    assert scalars(tmp_path, "reward") == {0: 0.25, 1: 0.5, 2: 1.0}
