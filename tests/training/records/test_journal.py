"""The journal: one JSON line per step, and the same numbers in TensorBoard."""

import json
import time

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tasks.training.records.journal import Journal
from tasks.training.records.ledger import cut_back


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
    known = before.sync()
    before.record({"step": 1, "reward": 0.125})
    before.record({"step": 2, "reward": 0.125})
    before.close()
    cut_back(tmp_path / "metrics.jsonl", known)
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
