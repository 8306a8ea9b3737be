"""Which logs a view has, which responses are in them, what is left out, and errors in one sentence."""

from collections import Counter

import pyarrow.parquet as pq
import pytest

from tasks.tables.schemas import EVALUATION_ROLLOUTS
from tasks.training.records.response_files import TRAINING_ROLLOUTS
from tasks.view import selection
from tasks.view.responses import ViewError, find_responses, read_rows
from tasks.view.selection import select
from tests.view.synthetic import evaluated, trained, write, write_run, write_training


@pytest.fixture
def run(tmp_path):
    return write_run(tmp_path / "results", write_training(tmp_path / "runs" / "abc" / "rollouts"))


def rows_of(log):
    return [row for part in log.rows for row in read_rows(part, {})]


def test_every_response_is_in_one_log_of_its_policy_benchmark_step_and_outcome(run):
    chosen = select(find_responses(run))
    assert chosen.left_out == []
    by_kind = Counter()
    for log in chosen.logs:
        by_kind[log.kind] += log.count
        for row in rows_of(log):
            if log.kind == "training":
                assert log.metadata["outcome"] == row["fate"]
                assert log.metadata["step"] == (row["last_version"] if row["step"] is None else row["step"])
            elif log.kind == "evaluation":
                assert (log.task, log.model) == (row["benchmark"], row["policy"])
    assert by_kind == {"evaluation": 18, "flipped": 8, "training": 36, "difficulty": 1}
    assert {log.path for log in chosen.logs if log.kind == "training"} == {
        f"training/step-{step:05d}-{fate}.eval" for step in range(4) for fate in ("trained", "zero_variance")
    }


def test_flipped_questions_are_a_log_for_each_direction(run):
    logs = {log.path: log for log in select(find_responses(run)).logs if log.kind == "flipped"}
    found = {path: {row["prompt_id"] for row in rows_of(log)} for path, log in logs.items()}
    assert found == {
        "flipped/heldout-better-after-vs-before.eval": {"p0"},
        "flipped/heldout-worse-after-vs-before.eval": {"p1"},
    }
    assert all(log.sides == ("before", "after") for log in logs.values())


def test_a_log_of_an_evaluation_has_its_interval(run):
    [log] = [log for log in select(find_responses(run)).logs if log.path == "evaluation/heldout-after.eval"]
    assert {"value": 0.5, "low": 0.1, "high": 0.9}.items() <= log.metadata["results"][0].items()


def test_steps_outcomes_and_benchmarks_select(run):
    found = find_responses(run)
    assert {log.metadata["step"] for log in select(found, steps=(1, 2)).logs} == {1, 2}
    assert {log.metadata["outcome"] for log in select(found, outcome="zero_variance").logs} == {"zero_variance"}
    assert {log.task for log in select(found, benchmark="sums").logs} == {"sums"}
    [log] = select(found, steps=(3, 3), outcome="trained").logs
    assert log.path == "training/step-00003-trained.eval"


def test_groups_that_were_sampled_after_the_last_step_are_no_further_step(tmp_path):
    rows = [trained(0, 0, 0), trained(1, 0, 1), trained(2, 0, None, "unused", 2)]
    write(tmp_path / "rollouts" / "0.parquet", rows, TRAINING_ROLLOUTS)
    with pytest.raises(ViewError) as raised:
        select(find_responses(tmp_path), steps=(99, 99))
    assert "of the steps 0 to 1; the nearest is 1; --step 2 shows groups that were sampled after step 1" in str(
        raised.value
    )


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"steps": (9, 12)}, "--step 9:12: this run has no responses of it, but of the steps 0 to 3; the nearest is 3"),
        ({"outcome": "trainde"}, "--outcome trainde: no group of this run has it (did you mean 'trained'?)"),
        ({"benchmark": "summs"}, "--benchmark summs: this run has none of this name (did you mean 'sums'?)"),
        ({"outcome": "lost"}, "--outcome lost: no group of this run has it; there are: trained, zero_variance"),
    ],
)
def test_what_is_not_there_is_one_sentence_with_the_nearest(run, given, sentence):
    with pytest.raises(ViewError) as raised:
        select(find_responses(run), **given)
    assert str(raised.value) == sentence


def test_a_view_without_a_selection_is_bounded_and_says_what_is_left_out(run):
    chosen = select(find_responses(run), most=18)
    steps = {log.metadata["step"] for log in chosen.logs if log.kind == "training"}
    assert steps == {0, 3}
    assert chosen.left_out == ["2 of 4 steps (0, 3 are shown; --step A:B shows others)"]
    few = select(find_responses(run), most=8)
    assert sum(log.count for log in few.logs if log.kind == "evaluation") <= 8
    assert [sentence for sentence in few.left_out if "--benchmark heldout shows all" in sentence]
    assert sum(log.count for log in select(find_responses(run), benchmark="heldout", most=8).logs) == 24


def test_a_large_log_is_divided_between_groups(tmp_path, monkeypatch):
    monkeypatch.setattr(selection, "PART_RESPONSES", 7)
    rows = [trained(group, sample, 0) for group in range(5) for sample in range(3)]
    write(tmp_path / "rollouts" / "00000000.parquet", rows, TRAINING_ROLLOUTS)
    logs = select(find_responses(tmp_path)).logs
    assert [log.path[-7:] for log in logs] == ["01.eval", "02.eval", "03.eval"]
    assert [log.count for log in logs] == [6, 6, 3]
    groups = [{row["group"] for row in rows_of(log)} for log in logs]
    assert sum(map(len, groups)) == len(set.union(*groups))
    monkeypatch.setattr(selection, "PART_TOKENS", 21)
    assert [log.count for log in select(find_responses(tmp_path)).logs] == [3] * 5


def test_names_that_no_file_can_have_get_files_of_their_own(tmp_path):
    rows = [evaluated(policy, "p0", True, benchmark="../a b") for policy in ("x/y", "x:y", "..")]
    write(tmp_path / "evaluation_rollouts.parquet", rows, EVALUATION_ROLLOUTS)
    logs = select(find_responses(tmp_path)).logs
    assert len({log.path for log in logs}) == 3
    assert all(log.path.count("/") == 1 and "/." not in log.path for log in logs)
    assert {log.model for log in logs} == {"x/y", "x:y", ".."}


def test_tokens_of_turns_are_not_read(run):
    [log] = select(find_responses(run), steps=(0, 0), outcome="trained").logs
    cache = {}
    read_rows(log.rows[0], cache)
    [table] = cache.values()
    assert "token_ids" not in str(table.schema)
    assert "token_ids" in str(pq.read_schema(log.rows[0].file))


def test_responses_that_fetch_brought_come_before_the_address(tmp_path):
    run = write_run(tmp_path / "results", "s3://bucket/rlvr-runs/abc/rollouts")
    found = find_responses(run)
    assert (found.training, found.elsewhere) == ([], "s3://bucket/rlvr-runs/abc/rollouts")
    assert [sentence for sentence in select(found).left_out if "s3://bucket" in sentence]
    with pytest.raises(ViewError, match="s3://bucket"):
        select(found, steps=(0, 0))
    write_training(run / "responses")
    assert len(find_responses(run).training) == 2


def test_a_folder_without_responses_is_one_sentence(tmp_path):
    with pytest.raises(ViewError, match="outputs/latest"):
        find_responses(tmp_path)
    (tmp_path / "rollouts.parquet").write_text("no table")
    with pytest.raises(ViewError, match=r"rollouts\.parquet cannot be read"):
        select(find_responses(tmp_path))
