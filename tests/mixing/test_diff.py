"""What changed from one mixture to another."""

import re

import pyarrow as pa
import pytest
from click.testing import CliRunner

from tasks.commands.group import rlvr
from tasks.mixing.diff import difference
from tasks.tables.parquet import TableError, write_table
from tasks.tables.schemas import MIXTURE
from tests.mixing.test_mix import SIZES, run


@pytest.fixture
def mixtures(tmp_path):
    before = run(SIZES, domains={"math": {"quota": 40}, "precise_if": {"quota": 20}})
    after = run(SIZES, domains={"math": {"quota": 30}, "precise_if": {"quota": 60, "max_repeats": 2}})
    return [
        write_table(tmp_path / f"{name}.parquet", mixed.train, MIXTURE)
        for name, mixed in (("before", before), ("after", after))
    ]


def test_places_are_counted_with_repetitions_and_prompts_without(mixtures):
    *sources, everything = difference(*mixtures)
    made = next(row for row in sources if row["source"] == "made")
    assert (made["places_before"], made["places_after"], made["came"], made["went"]) == (20, 60, 20, 0)
    assert (made["share_before"], made["share_after"]) == (20 / 60, 60 / 90)
    assert (everything["places_before"], everything["places_after"]) == (60, 90)
    assert (everything["came"], everything["went"]) == (20, 10)
    assert everything["pass_rate_after"] == 0.5


def test_a_mixture_differs_from_itself_in_nothing(mixtures):
    assert all(row["came"] == row["went"] == 0 for row in difference(mixtures[0], mixtures[0]))


def test_a_mixture_without_pass_rates_has_none(mixtures, tmp_path):
    table = run(SIZES).train
    field = table.schema.field("pass_rate")
    table = table.set_column(table.schema.get_field_index("pass_rate"), field, pa.nulls(table.num_rows, field.type))
    rows = difference(mixtures[0], write_table(tmp_path / "unmeasured.parquet", table, MIXTURE))
    assert {row["pass_rate_after"] for row in rows} == {None}
    assert rows[-1]["pass_rate_before"] == 0.5


def test_a_source_that_one_of_them_lacks_has_no_pass_rate_there(mixtures, tmp_path):
    only = write_table(tmp_path / "only.parquet", run({"code": {"mbpp": 5}}).train, MIXTURE)
    rows = {row["source"]: row for row in difference(mixtures[0], only)}
    assert (rows["mbpp"]["pass_rate_before"], rows["mbpp"]["came"]) == (None, 5)
    assert (rows["gsm"]["places_after"], rows["all"]["went"]) == (0, 60)


def test_the_command_prints_a_line_a_source_and_writes_a_page(mixtures, tmp_path):
    page = tmp_path / "page.html"
    done = CliRunner().invoke(rlvr, ["diff", *map(str, mixtures), "--page", str(page)])
    assert done.exit_code == 0, done.output
    assert "made" in done.output
    assert "20 -> 60" in done.output
    text = page.read_text()
    assert "The two mixtures" in text
    assert sorted(re.findall("[0-9.]+%", done.output)) == sorted(re.findall('<td class="n">([0-9.]+%)</td>', text))


def test_what_is_no_mixture_is_an_error_that_names_the_file(mixtures, tmp_path):
    (tmp_path / "text.parquet").write_text("no")
    with pytest.raises(TableError, match=r"text\.parquet"):
        difference(mixtures[0], tmp_path / "text.parquet")
