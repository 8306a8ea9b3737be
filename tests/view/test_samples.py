"""Samples of a log out of its tables: groups and epochs, prompts of any table, and the ledger's advantages."""

import pyarrow as pa

from tasks.tables.schemas import PROMPTS
from tasks.training.records.response_files import TRAINING_ROLLOUTS
from tasks.view.child import PromptTables, make_samples
from tasks.view.responses import find_responses
from tasks.view.selection import select
from tests.view.synthetic import prompt, trained, write, write_run


def samples(run, spreads=None):
    found = find_responses(run)
    names = [f"p{number}" for number in range(5)]
    prompts = PromptTables([str(path) for path in found.prompts], pa.array(names))
    return {log.path: list(make_samples(log.to_json(), prompts, spreads or {}, {})) for log in select(found).logs}


def test_two_groups_of_a_prompt_are_two_samples_with_the_epochs_of_their_responses(tmp_path):
    rows = [trained(group, sample, 0, prompt_id="p0") for group in (4, 9) for sample in (2, 0, 1)]
    write(tmp_path / "rollouts" / "00000000.parquet", rows, TRAINING_ROLLOUTS)
    write(tmp_path / "prompts.parquet", [prompt("p0")], PROMPTS)
    [of_log] = samples(tmp_path, {9: 0.5}).values()
    assert [(one["id"], one["epoch"]) for one in of_log] == [
        *(("p0", epoch) for epoch in (1, 2, 3)),
        *(("p0-9", epoch) for epoch in (1, 2, 3)),
    ]
    assert [one["metadata"]["sample"] for one in of_log] == [0, 1, 2] * 2
    assert {one["input"][0]["content"] for one in of_log} == {"What is p0?"}
    assert [one["metadata"].get("advantage_spread") for one in of_log] == [None] * 3 + [0.5] * 3


def test_a_flipped_question_pairs_the_responses_of_both_policies(tmp_path):
    [first, second] = samples(write_run(tmp_path))["flipped/heldout-better-after-vs-before.eval"]
    assert [(one["id"], one["epoch"]) for one in (first, second)] == [("p0", 1), ("p0", 2)]
    assert [message.get("policy") for message in first["messages"]] == [None, "before", "after"]
