"""Runs that exist are compared on the prompts that their policies share, with their options side by side."""

import json
import re

import pytest
from click.testing import CliRunner

from tasks.evaluation.__main__ import main
from tasks.evaluation.runs import compare_runs
from tasks.failures import MistakeError
from tasks.tables.parquet import table_from_rows, write_table
from tasks.tables.schemas import EVALUATION_PROMPTS, EVALUATION_ROLLOUTS
from tests.evaluation.test_policy_comparison import prompts, rollouts


@pytest.fixture
def written(tmp_path):
    """Writes a run's folder, whose policy `after` has these scores on held-out prompts."""

    def write(name, options=None, **scores):
        folder = tmp_path / name
        folder.mkdir()
        asked = [{"benchmark": "heldout", **row} for row in prompts(**dict.fromkeys(scores, "math")).to_pylist()]
        answers = [row | {"policy": "after"} for row in rollouts("after", **scores).to_pylist()]
        for table, rows, schema in (
            ("evaluation_prompts", asked, EVALUATION_PROMPTS),
            ("evaluation_rollouts", answers, EVALUATION_ROLLOUTS),
        ):
            write_table(folder / f"{table}.parquet", table_from_rows(rows, schema, table), schema)
        (folder / "summary.json").write_text(json.dumps({"options": {"training": options or {}}}))
        return folder

    return write


def test_runs_are_compared_with_the_first_on_the_prompts_that_they_share(written):
    first, second = written("first", a=[0, 0], b=[1, 0], c=[1, 1]), written("second", b=[1, 1], c=[1, 1], d=[0, 0])
    found = compare_runs([first, second]).comparisons["second", "first"]["all"]
    assert (found.baseline_rate, found.rate, found.gain, found.n) == (3 / 4, 1, 1 / 4, 2)


def test_the_command_prints_options_and_rates(written):
    runs = [written("first", {"steps": 4}, a=[0], b=[1]), written("second", {"steps": 8}, a=[1], b=[1])]
    done = CliRunner().invoke(main, ["compare", *map(str, runs)])
    assert done.exit_code == 0, done.output
    assert re.search(r"^first  training\.steps = 4$", done.output, re.MULTILINE)
    assert re.search(r"^second  training\.steps = 8$", done.output, re.MULTILINE)
    assert re.search(r"^all +first +50\.0% +2$", done.output, re.MULTILINE)
    assert re.search(r"^ +second +100\.0% +\+50\.0 \(", done.output, re.MULTILINE)
    assert "\nwarning     policy 'second': responses are cut off at max_tokens (held out 100.0%, " in done.output
    assert re.search(r"^benchmark .* p +detectable +prompts$", done.output, re.MULTILINE)


def test_what_cannot_be_compared_is_one_sentence(written, tmp_path):
    first, second = written("first", a=[0]), written("second", b=[0])
    for runs, sentence in (
        ([first, second], "no prompt was answered in all of first, second"),
        ([first, first], "must have different folders, got first, first"),
        ([first, tmp_path], r"contains no evaluation_rollouts\.parquet"),
    ):
        with pytest.raises(MistakeError, match=sentence):
            compare_runs(runs)
    with pytest.raises(MistakeError, match="no policy is called 'before'; there are: after"):
        compare_runs([first, second], "before")
    assert isinstance(CliRunner().invoke(main, ["compare", str(first)]).exception, MistakeError)
