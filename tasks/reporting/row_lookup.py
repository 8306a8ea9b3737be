"""Explains the rows of a source that a run's tables do not contain, and names the files of rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq

from tasks.config.loading import close_match
from tasks.failures import MistakeError
from tasks.tables.parquet import read_metadata
from tasks.tables.schemas import READ, row_rank


class TraceError(MistakeError):
    """Raised if a prompt or a run cannot be found, or if several prompts match."""


def read_counts(run: Path) -> dict[str, dict[str, Any]]:
    """Return what was read of each source (`tasks.sourcing.reading`). It is empty for a run of an older version."""
    path = run / "set_aside.parquet"
    counts: dict[str, dict[str, Any]] = read_metadata(path).get(READ, {}) if path.is_file() else {}
    return counts


def describe_place(run: Path, source: str, row: int) -> str:
    """Return the file of a row and its number in that file, such as `, row 3 of b.jsonl`, or nothing without files."""
    first = 0
    for name, rows in read_counts(run).get(source, {}).get("files", ()):
        if row < first + rows:
            return f", row {row - first} of {name}"
        first += rows
    return ""


def why_unknown(run: Path, source: str, row: int) -> str:
    """Return why no table of the run contains a row of a source that exists.

    Raises:
        TraceError: the run has no such source, the source has no such row, or it is not known why.
    """
    counts = read_counts(run)
    known = sorted(counts.keys() | _list_sources(run))
    if source not in known:
        raise TraceError(
            f"{run}: there is no source {source!r}{close_match(source, known)}; it has {', '.join(known) or 'none'}"
        )
    if source not in counts:
        raise TraceError(f"{run}: nothing is known of row {row} of source {source!r}")
    read = counts[source]
    if row >= read["rows"]:
        raise TraceError(f"{run}: source {source!r} has no row {row}; it has rows 0 to {read['rows'] - 1}")
    return f"row {row} of {source}{describe_place(run, source, row)}: {_why_left_out(read, row)}"


def _why_left_out(read: dict[str, Any], row: int) -> str:
    in_sample = read["last_rank"] is None or row_rank(read["seed"], row).hex() <= read["last_rank"]
    where = ", ".join(f"{path}: {accepted}" for path, accepted in read["where"].items())
    rejected = read["rows"] - read["blank"] - read["named"]
    if in_sample:
        reasons = [f"`where` ({where}) does not accept it"] if rejected else []
        return " or ".join([*reasons, *(["it is a blank line"] if read["blank"] else [])]) or "it was not read"
    among = f"{read['rows']} rows"
    if rejected:
        among = f"{read['named']} that `where` ({where}) accepts of {among}, or `where` does not accept it"
    return f"it is not among the {read['sampled']} that `limit` drew of the {among}"


def _list_sources(run: Path) -> set[str]:
    paths = (run / f"{name}.parquet" for name in ("prompts", "set_aside"))
    tables = (pq.read_table(path, columns=["source"]) for path in paths if path.is_file())
    return {name for table in tables for name in pc.unique(table.column("source")).to_pylist()}
