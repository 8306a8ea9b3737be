"""Every finished response is kept with what became of it, once, whatever happens to the run."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from tasks.generation.interface import EpisodeTurn
from tasks.storage.lease import LeaseLostError
from tasks.tables.parquet import storable
from tasks.training.records import response_files
from tasks.training.records.response_files import RolloutFiles
from tests.training.control.test_controller_resume import crashed_at_the_fourth_step
from tests.training.records.test_ledger import group
from tests.training.stand_ins import SCORES, Run, config, prompts


def test_the_responses_of_a_group_say_what_they_were_and_what_became_of_them(tmp_path):
    async def answers(_actor, prompt):
        return {1: ["right", "wrong"], 2: ["right", "right"]}.get(prompt, ["half", "?"])

    run = Run(tmp_path, config(steps=1, groups_per_step=1), prompts(4), answers).play()
    first, second = (row for row in run.rollouts() if row["group"] == 0)
    assert first["prompt_id"] == second["prompt_id"] == "p1"
    assert (first["response"], second["response"]) == ("right", "wrong")
    assert (first["score"], first["passed"], first["fate"], first["step"]) == (1.0, True, "trained", 0)
    assert (first["group"], first["sample"], second["sample"], second["passed"]) == (0, 0, 1, False)
    assert {row["fate"] for row in run.rollouts() if row["prompt_id"] == "p2"} <= {"zero_variance", "unused"}
    for row in run.rollouts():
        if row["response"] == "?":
            assert (row["score"], row["detail"]) == (None, "no verdict on '?'")


def test_after_a_crash_the_files_hold_what_the_ledger_holds(tmp_path):
    before = crashed_at_the_fourth_step(tmp_path)
    (tmp_path / "rollouts" / "00000099.parquet").write_bytes(b"half a file")
    (tmp_path / "rollouts" / "00000004.partial").write_bytes(b"another half")
    after = Run(tmp_path, before.config, before.prompts).play()
    ledger = {row["group"]: len(row["num_tokens"]) for row in after.rows() if row["num_tokens"]}
    found = [row["group"] for row in after.rollouts()]
    assert {group: found.count(group) for group in ledger} == ledger
    assert len(found) == sum(ledger.values())


def test_files_are_written_before_a_checkpoint_where_much_waits(tmp_path, monkeypatch):
    monkeypatch.setattr(response_files, "FLUSH_BYTES", 1)
    run = Run(tmp_path, config(steps=3, checkpoint_every=100), prompts(50)).play()
    assert len(list((tmp_path / "rollouts").glob("*.parquet"))) >= 3
    assert {row["step"] for row in run.rollouts() if row["fate"] == "trained"} == {0, 1, 2}


def test_turns_of_episodes_count_as_what_waits(tmp_path, monkeypatch):
    """A last turn of two letters may follow a thousand tokens."""
    monkeypatch.setattr(response_files, "FLUSH_BYTES", 36_000)
    files = RolloutFiles(tmp_path / "rollouts")
    single = group(0, (4, 3)).sampled
    files.add(single, "trained", step=0)
    assert not files.is_due
    for sample in single.samples:
        ids = np.zeros(1000, np.int32)
        sample.completion = replace(sample.completion, token_ids=ids, turns=(EpisodeTurn(0, 1000, "ok"),))
    files.add(single, "trained", step=0)
    assert files.is_due


def test_a_run_may_keep_none(tmp_path):
    files = RolloutFiles(tmp_path / "rollouts", keep=False)
    assert asyncio.run(files.flush()) == 0
    assert not (tmp_path / "rollouts").exists()


@pytest.mark.parametrize("count", [0, 1])
def test_some_responses_are_printed_while_training(tmp_path, capsys, count):
    Run(tmp_path, config(steps=2, log_completions=count), prompts(50)).play()
    printed = capsys.readouterr().err
    assert printed.count("── step ") == 2 * count
    if count:
        assert "reward" in printed
        assert "question 1\n▸ right" in printed


@pytest.mark.parametrize("text", ["half \ud83d", "a\0b", "\x1b[2J", "x" * 1_000_000])
def test_a_run_on_hostile_responses_trains_prints_and_stores_them(tmp_path, capsys, monkeypatch, text):
    monkeypatch.setitem(SCORES, text, 0.5)

    async def answers(_actor, _prompt):
        return [text, "right"]

    run = Run(tmp_path, config(steps=1, groups_per_step=1, log_completions=1), prompts(4), answers).play()
    assert storable(text) in {row["response"] for row in run.rollouts()}
    printed = capsys.readouterr().err
    assert "── step " in printed
    assert "\x1b" not in printed
    assert "\0" not in printed
    assert len(printed) < 5000


def test_an_attempt_that_was_taken_over_from_writes_over_no_responses_of_the_next(tmp_path):
    def may_write():
        raise LeaseLostError("process 12 on node-7 has taken this run over")

    files = RolloutFiles(tmp_path / "rollouts", may_write=may_write)
    files.add(group(0, (4, 3)).sampled, "trained", step=0)
    with pytest.raises(LeaseLostError):
        asyncio.run(files.flush())
    assert not (tmp_path / "rollouts").exists()
