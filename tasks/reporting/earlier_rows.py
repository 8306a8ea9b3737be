"""Keeps the rows that earlier stages dropped in the folder of a part of the pipeline that ran alone.

A part such as `mix_prompts` makes a table of the rows that it drops itself. Why other rows never reached it is in the
table of the run that its inputs come from.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from tasks.tables.parquet import read_metadata, read_table, write_table
from tasks.tables.schemas import READ, SET_ASIDE

STAGES_OF = {
    "prompts": ("sourcing", "cleaning"),
    "rollouts": ("sourcing", "cleaning"),
    "graded": ("sourcing", "cleaning", "difficulty"),
    "selected": ("sourcing", "cleaning", "difficulty"),
}
"""The stages whose dropped rows precede a table that a part is given."""

_IDENTITY = ("stage", "kind", "source", "row")


def write_with_earlier(made: str | Path, given: Iterable[Path], target: Path) -> None:
    """Write the rows that a part dropped, after the rows that earlier parts dropped while they made its inputs.

    Args:
        made: the table of `SET_ASIDE` that the part made.
        given: its inputs in the folders of runs.
        target: path of the table to write.
    """
    table, metadata = read_table(made, SET_ASIDE), read_metadata(made)
    present = {tuple(row.values()) for row in table.select(_IDENTITY).to_pylist()}
    counts = metadata.get(READ, {})
    for path in given:
        earlier = path.resolve().parent / "set_aside.parquet"
        if path.stem in STAGES_OF and earlier.is_file():
            rows = _select_stages(read_table(earlier, SET_ASIDE), STAGES_OF[path.stem])
            new = [tuple(row.values()) not in present for row in rows.select(_IDENTITY).to_pylist()]
            added = rows.filter(pa.array(new, pa.bool_()))
            present |= {tuple(row.values()) for row in added.select(_IDENTITY).to_pylist()}
            table = pa.concat_tables([added.replace_schema_metadata(), table.replace_schema_metadata()])
            counts = read_metadata(earlier).get(READ, {}) | counts
    write_table(target, table, SET_ASIDE, metadata | {READ: counts})


def _select_stages(table: pa.Table, stages: Collection[str]) -> pa.Table:
    return table.filter(pc.is_in(table.column("stage"), pa.array(list(stages))))
