"""Two mixtures side by side: what each source gives to them, and which prompts came and went."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tasks.tables.parquet import read_batches
from tasks.tables.schemas import MIXTURE

_COLUMNS = pa.schema([MIXTURE.field(name) for name in ("prompt_id", "domain", "source", "pass_rate", "repeat")])


def difference(before: Path, after: Path) -> list[dict[str, Any]]:
    """What changed from one mixture to another: a row for each domain and source, then one for all of it.

    A row has its places in both mixtures (a prompt that is up-sampled has several) and their share, the prompts that
    came and went, each counted once, and the mean pass rate of the places, which is None where there are none.

    Raises:
        TableError: a file is no mixture.
    """
    joined = _prompts(before).join(
        _prompts(after),
        ["domain", "source", "prompt_id"],
        join_type="full outer",
        left_suffix="_before",
        right_suffix="_after",
    )
    is_here = {side: pc.is_valid(joined.column(f"places_{side}")) for side in ("before", "after")}
    columns = {
        "came": pc.and_(is_here["after"], pc.invert(is_here["before"])),
        "went": pc.and_(is_here["before"], pc.invert(is_here["after"])),
    }
    for name, flags in columns.items():
        joined = joined.append_column(name, pc.cast(flags, pa.int64()))
    for side in ("before", "after"):
        places = pc.fill_null(joined.column(f"places_{side}"), 0)
        passes = pc.multiply(places, pc.fill_null(joined.column(f"pass_rate_{side}"), 0.0))
        joined = joined.set_column(joined.column_names.index(f"places_{side}"), f"places_{side}", places)
        joined = joined.append_column(f"passes_{side}", passes)
    summed = ["places_before", "places_after", "came", "went", "passes_before", "passes_after"]
    sources = (
        joined.group_by(["domain", "source"])
        .aggregate([(name, "sum") for name in summed])
        .sort_by([("domain", "ascending"), ("source", "ascending")])
        .to_pylist()
    )
    everything = {name: sum(row[f"{name}_sum"] for row in sources) for name in summed}
    rows = [
        {"domain": row["domain"], "source": row["source"], **{name: row[f"{name}_sum"] for name in summed}}
        for row in sources
    ]
    return [_told(row, everything) for row in [*rows, {"domain": "all", "source": "all", **everything}]]


def _prompts(mixture: Path) -> pa.Table:
    """Each prompt once, with its places in the mixture."""
    places = pa.concat_tables([_COLUMNS.empty_table(), *read_batches(mixture, _COLUMNS)])
    counted = places.group_by(["domain", "source", "prompt_id"]).aggregate([("repeat", "count"), ("pass_rate", "mean")])
    return counted.rename_columns({"repeat_count": "places", "pass_rate_mean": "pass_rate"})


def _told(row: dict[str, Any], everything: dict[str, Any]) -> dict[str, Any]:
    told: dict[str, Any] = {"domain": row["domain"], "source": row["source"]}
    for side in ("before", "after"):
        places = row[f"places_{side}"]
        told[f"places_{side}"] = places
        told[f"share_{side}"] = places / (everything[f"places_{side}"] or 1)
        told[f"pass_rate_{side}"] = row[f"passes_{side}"] / places if places else None
    return told | {"came": row["came"], "went": row["went"]}
