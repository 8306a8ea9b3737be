"""A column that a user adds to a table of prompts stays, through cleaning, grading and mixing."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from flytekit.types.file import FlyteFile

from tasks.cleaning.spec import CleaningSpec, DuplicatesSpec
from tasks.cleaning.task import merge_sources, screen_prompts
from tasks.difficulty.stopping import Bounds
from tasks.difficulty.task import select_prompts
from tasks.mixing.spec import MixtureSpec
from tasks.mixing.task import mix_prompts
from tasks.tables.parquet import TableError, add_user_columns, build_table, write_table
from tasks.tables.schemas import MIXTURE, PROMPTS, ROLLOUTS, SET_ASIDE
from tests.cleaning.prompts import prompt, table

WORDS = ("river", "harbour", "mountain", "forest")


def with_topic(prompts, kind="string"):
    return prompts.append_column("topic", pa.array(range(prompts.num_rows)).cast(kind))


def written(path, prompts):
    pq.write_table(prompts, path)
    return FlyteFile(str(path))


def rollouts(path, ids):
    judged = {"response": "4", "num_tokens": 1, "finish_reason": "stop", "detail": ""}
    rows = [
        {
            **dict.fromkeys(ROLLOUTS.names),
            **judged,
            "prompt_id": each,
            "policy": "initial",
            "sample": i,
            "score": i / 2,
            "passed": False,
        }
        for each in ids
        for i in range(2)
    ]
    return FlyteFile(str(write_table(path, build_table(rows, ROLLOUTS, "rollouts"), ROLLOUTS)))


def test_a_users_column_stays_through_every_stage(tmp_path):
    mine = with_topic(table(*(prompt(f"How far is the {word}?", source="mine") for word in WORDS)))
    other = table(prompt("How old is the bridge?", source="other"))
    sources = [written(tmp_path / "mine.parquet", mine), written(tmp_path / "other.parquet", other)]
    cleaned = merge_sources(
        prompts=sources, set_aside=[], sources=["mine", "other"], spec=DuplicatesSpec(), control_tokens=["<|end|>"]
    )
    screened = screen_prompts(
        prompts=cleaned.prompts,
        evaluation_sets=[],
        spec=CleaningSpec().screening(evaluated=True),
        control_tokens=["<|end|>"],
    )
    none = FlyteFile(str(write_table(tmp_path / "none.parquet", SET_ASIDE.empty_table(), SET_ASIDE)))
    sampled = rollouts(tmp_path / "rollouts.parquet", [*mine["prompt_id"].to_pylist(), *other["prompt_id"].to_pylist()])
    graded = select_prompts(prompts=screened.prompts, rollouts=sampled, set_aside=none, bounds=Bounds())
    mixed = mix_prompts(graded=graded.selected, spec=MixtureSpec())
    mixture = pq.read_table(str(mixed.mixture))
    assert mixture.column_names == [*MIXTURE.names, "topic"]
    expected = dict(zip(mine["prompt_id"].to_pylist(), map(str, range(4)), strict=True))
    found = dict(zip(mixture["prompt_id"].to_pylist(), mixture["topic"].to_pylist(), strict=True))
    assert found == {**expected, other["prompt_id"][0].as_py(): None}


def test_a_mixture_is_mixed_again_without_its_own_order_and_with_the_users_columns():
    again = add_user_columns(PROMPTS, pa.schema([*MIXTURE, pa.field("topic", pa.int8())]))
    assert again.names == [*PROMPTS.names, "topic"]


def test_a_column_of_two_types_is_an_error_that_names_both(tmp_path):
    numbers, texts = (
        with_topic(table(prompt(text, source="mine")), kind) for text, kind in (("a", "int64"), ("b", "string"))
    )
    with pytest.raises(TableError, match="column 'topic' is int64 in one table, string in another"):
        add_user_columns(PROMPTS, numbers.schema, texts.schema)
