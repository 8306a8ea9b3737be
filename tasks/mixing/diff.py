"""Compares two mixtures: the entries of each source, and the prompts that were added and removed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tasks.tables.parquet import read_batches
from tasks.tables.schemas import MIXTURE

_COLUMNS = pa.schema([MIXTURE.field(name) for name in ("prompt_id", "domain", "source", "pass_rate", "repeat")])


def difference(before: Path, after: Path) -> list[dict[str, Any]]:
    """Return the changes from one mixture to another: a row for each domain and source, and a last row for the total.

    A row contains the number of entries in both mixtures (`places_before`, `places_after`; an up-sampled prompt has
    several) and their share, the number of prompts added (`came`) and removed (`went`), each counted once, and the mean
    pass rate of the entries, which is None for a mixture without pass rates.

    Args:
        before: Parquet file of the first mixture.
        after: Parquet file of the second mixture.

    Raises:
        TableError: a file does not contain a mixture.
    """
    joined = _count_entries(before).join(
        _count_entries(after),
        ["domain", "source", "prompt_id"],
        join_type="full outer",
        left_suffix="_before",
        right_suffix="_after",
    )
    has_before, has_after = (pc.is_valid(joined.column(f"places_{side}")) for side in ("before", "after"))
    joined = joined.append_column("came", pc.and_not(has_after, has_before).cast(pa.int64()))
    joined = joined.append_column("went", pc.and_not(has_before, has_after).cast(pa.int64()))
    for side in ("before", "after"):
        places = pc.fill_null(joined.column(f"places_{side}"), 0)
        passes = pc.multiply(places, joined.column(f"pass_rate_{side}"))
        joined = joined.set_column(joined.column_names.index(f"places_{side}"), f"places_{side}", places)
        joined = joined.append_column(f"passes_{side}", passes)
    summed = ["places_before", "places_after", "came", "went", "passes_before", "passes_after"]
    sources = (
        joined.group_by(["domain", "source"])
        .aggregate([(name, "sum") for name in summed])
        .sort_by([("domain", "ascending"), ("source", "ascending")])
        .rename_columns({f"{name}_sum": name for name in summed})
    )
    rows = sources.to_pylist()
    everything = {name: _add_known([row[name] for row in rows]) for name in summed}
    return [_compute_shares(row, everything) for row in [*rows, {"domain": "all", "source": "all", **everything}]]


def _add_known(values: list[float | None]) -> float | None:
    """Return the sum of the values that are not None, or None if all are None (pass rates that were not measured)."""
    given = [value for value in values if value is not None]
    return sum(given) if given or not values else None


def _count_entries(mixture: Path) -> pa.Table:
    """Return each prompt once, with the number of its entries in the mixture."""
    entries = pa.concat_tables([_COLUMNS.empty_table(), *read_batches(mixture, _COLUMNS)])
    counted = entries.group_by(["domain", "source", "prompt_id"]).aggregate(
        [("repeat", "count"), ("pass_rate", "mean")]
    )
    return counted.rename_columns({"repeat_count": "places", "pass_rate_mean": "pass_rate"})


def _compute_shares(row: dict[str, Any], everything: dict[str, Any]) -> dict[str, Any]:
    """Return the row with shares of the total and mean pass rates instead of sums."""
    shares: dict[str, Any] = {"domain": row["domain"], "source": row["source"]}
    for side in ("before", "after"):
        places = row[f"places_{side}"]
        shares[f"places_{side}"] = places
        shares[f"share_{side}"] = places / (everything[f"places_{side}"] or 1)
        passes = row[f"passes_{side}"]
        shares[f"pass_rate_{side}"] = passes / places if places and passes is not None else None
    return shares | {"came": row["came"], "went": row["went"]}
