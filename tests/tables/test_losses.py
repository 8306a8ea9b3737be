"""A source that loses most of its rows in one stage is a warning with the commonest reasons."""

import logging

import pyarrow as pa
import pytest
from flytekit.types.file import FlyteFile

from tasks.cleaning.spec import DuplicatesSpec
from tasks.cleaning.task import merge_sources
from tasks.config.loading import SpecError
from tasks.difficulty.grading import count_outside_bounds
from tasks.difficulty.stopping import Bounds
from tasks.inputs.files import DataFile
from tasks.mixing.choosing import check_some_left
from tasks.tables.losses import collect_warnings, count_losses, count_reasons, format_warnings, warn
from tasks.tables.parquet import build_table, write_table
from tasks.tables.schemas import PROMPTS, SET_ASIDE, set_aside_row
from tests.cleaning.prompts import source


def dropped(stage, source, *reasons):
    rows = [set_aside_row(stage, "unusable", source, row, reason, "x") for row, reason in enumerate(reasons)]
    return build_table(rows, SET_ASIDE, "dropped by hand")


ALIKE = [f"{80 + number}% like a prompt of source 's'" for number in range(9)]


def test_each_stage_counts_the_rows_that_reach_it():
    tables = [
        dropped("sourcing", "s", "'question' is null", "duplicate of row 3", "duplicate of row 4"),
        dropped("cleaning", "s", *ALIKE),
        dropped("cleaning", "other", "the same prompt as one of source 's'"),
    ]
    reasons = count_reasons(tables)
    rows = count_losses({"s": 1, "other": 5}, {"sourcing": reasons["sourcing"], "merging": reasons["cleaning"]})
    assert [(row["stage"], row["source"], row["rows"], row["lost"]) for row in rows] == [
        ("sourcing", "s", 13, 3), ("merging", "other", 6, 1), ("merging", "s", 10, 9),
    ]  # fmt: skip
    assert rows[0]["reasons"] == {"duplicate of row …": 2, "'question' is null": 1}


@pytest.mark.parametrize(("share", "warned"), [(0.05, True), (0.5, True), (0.89, True), (0.9, False), (1.0, False)])
def test_a_loss_above_the_share_is_a_sentence_with_the_three_commonest_reasons(share, warned):
    kinds = ["no text", "no text", "no answer", "no tests", "no source"]
    table = dropped("cleaning", "s", *kinds, *ALIKE[:4])
    rows = count_losses({"s": 1}, {"merging": count_reasons([table])["cleaning"]})
    sentences = list(format_warnings(rows, share))
    assert bool(sentences) == warned
    if warned:
        assert sentences[0].startswith("source 's': merging dropped 9 of 10 rows (4 …% like a prompt of source 's'; 2")
        assert sentences[0].count(";") == 3


def test_the_warning_is_logged(caplog):
    rows = count_losses({}, {"merging": count_reasons([dropped("cleaning", "s", *ALIKE)])["cleaning"]})
    with caplog.at_level(logging.WARNING):
        warn(rows, 0.5)
    assert "source 's': merging dropped 9 of 9 rows" in caplog.text
    assert collect_warnings([], 0.5) == []


@pytest.mark.parametrize(("share", "warned"), [(0.5, ["sourcing", "merging"]), (0.7, ["merging"]), (0.8, [])])
def test_merging_warns_of_its_own_losses_and_of_those_before(tmp_path, caplog, share, warned):
    texts = ["What is two?", "What is  two?", "What is two? ", "\tWhat is two?"]
    prompts = FlyteFile(str(write_table(tmp_path / "prompts.parquet", source("s", *texts), PROMPTS)))
    before = dropped("sourcing", "s", *["'question' is null"] * 6)
    with caplog.at_level(logging.WARNING):
        cleaned = merge_sources.task_function(  # without the cache: a cached stage logs nothing
            prompts=[prompts],
            set_aside=[FlyteFile(str(write_table(tmp_path / "before.parquet", before, SET_ASIDE)))],
            sources=["s"],
            spec=DuplicatesSpec(),
            control_tokens=[],
            warn_if_lost=share,
        )
    assert [name for name in ("sourcing", "merging") if f"{name} dropped" in caplog.text] == warned
    assert [row["lost"] for row in cleaned.summary.facts["losses"]] == [6, 3]


def test_a_mixture_of_no_prompts_says_by_which_rules_they_went():
    contaminated = dropped("cleaning", "s", *["75% of the words of a question of 'aime'"] * 20, "prompt of 3 words")
    with pytest.raises(SpecError) as told:
        check_some_left(PROMPTS.empty_table(), "prompts", [dropped("sourcing", "s", "no text"), contaminated])
    assert str(told.value) == (
        "mixture: there are no prompts to mix. sourcing dropped 1 rows: 1 no text. cleaning dropped 21 rows: 20 …% of "
        "the words of a question of 'aime'; 1 prompt of … words"
    )
    check_some_left(source("s", "A?"), "prompts", [])


def test_prompts_outside_of_the_bounds_are_lost_by_difficulty():
    graded = pa.table({"source": ["a", "a", "b"], "mean_score": [1.0, 0.0, 0.5]})
    reasons = count_outside_bounds(graded, Bounds(max_mean_score=0.9, min_mean_score=0.1))
    assert reasons == {"a": {"too easy": 1, "too hard": 1}}


def test_the_share_is_an_option_of_the_data_file():
    assert DataFile.model_fields["warn_if_lost"].default == 0.5
