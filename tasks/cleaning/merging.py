"""Merges the prompts of all sources into one table without duplicates.

Tables are read one batch at a time: first to find the frames of the prompts (`tasks.cleaning.frames`), then to compare
them, and then to write the prompts that are kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.cleaning.answers import Truth, find_contradiction
from tasks.cleaning.duplicates import COMPARED, Comparison, Indices
from tasks.cleaning.frames import FRAMED, find_frames
from tasks.cleaning.spec import DuplicatesSpec
from tasks.tables.parquet import add_user_columns, build_table, read_batches, read_columns
from tasks.tables.schemas import PROMPTS, SET_ASIDE, Kind, set_aside_prompt

_TRUTHS = pa.schema([PROMPTS.field(name) for name in ("source", "verifier", "ground_truth")])
_NAMES = pa.schema([PROMPTS.field("source")])
_COMPARED = pa.schema([PROMPTS.field(name) for name in ("source", *COMPARED)])


class Merger:
    """Compares the tables of several sources and merges them.

    Attributes:
        columns: the columns of the merged table: `PROMPTS`, and columns that users have added to any of the tables.
    """

    def __init__(self, tables: Sequence[Path], sources: Sequence[str], spec: DuplicatesSpec) -> None:
        """Read the tables and find duplicates.

        Args:
            tables: files of `PROMPTS`, each with the prompts of one or more sources.
            sources: the names of the sources, in the order of the merged table.
            spec: the rule for duplicates, and the priority of sources.

        Raises:
            TableError: a file is not a table of `PROMPTS`, or a user's column has different types in two of them.
        """
        self.columns = add_user_columns(PROMPTS, *map(read_columns, tables))
        sources_of = {table: _read_sources(table) for table in tables}
        self._tables = [(table, source) for source in sources for table in tables if source in sources_of[table]]
        self._spec = spec
        near = spec.near_duplicates
        frames = None if near is None else find_frames(self._read_batches(FRAMED), spec.templates)
        self._comparison = Comparison(near, by_text=spec.duplicates == "text", frames=frames)
        ids: list[pa.Array] = []
        owners: list[Indices] = []
        for batch in self._read_batches(_COMPARED):
            self._comparison.add(batch)
            ids += batch.column("prompt_id").chunks
            owners.append(np.full(batch.num_rows, sources.index(batch.column("source")[0].as_py())))
        self._sources = sources
        self._ids = pa.chunked_array(ids, pa.string())
        self._owners = np.concatenate([np.empty(0, np.int64), *owners])
        self._likeness = self._comparison.find_duplicates(self._order())
        self._truths = self._read_kept_truths()

    def parts(self) -> Iterator[tuple[pa.Table, pa.Table]]:
        """Yield, batch by batch, the merged table (of `columns`) and the dropped rows (of `SET_ASIDE`)."""
        likeness, start = self._likeness, 0
        leads = np.zeros(len(likeness.leader), bool)
        leads[likeness.leader[likeness.leader != np.arange(len(leads))]] = True
        for batch in self._read_batches(self.columns):
            indices = np.arange(start, start + batch.num_rows)
            start += batch.num_rows
            stays = likeness.stays[indices] == indices
            leaving = batch.filter(pa.array(~stays)).to_pylist()
            aside = [self._set_aside(row, int(index)) for row, index in zip(leaving, indices[~stays], strict=True)]
            staying = batch.filter(pa.array(stays))
            if self._together:
                staying = self._fill_clusters(staying, indices[stays], leads)
            yield staying, build_table(aside, SET_ASIDE, "set-aside prompts")

    @property
    def _together(self) -> bool:
        near = self._spec.near_duplicates
        return near is not None and near.action == "keep_together"

    def _read_batches(self, columns: pa.Schema) -> Iterator[pa.Table]:
        for table, source in self._tables:
            for batch in read_batches(table, columns):
                own = batch.filter(pc.equal(batch.column("source"), source))
                if own.num_rows:
                    yield own

    def _order(self) -> Indices:
        """Return the indices of all prompts, with the sources that have priority first."""
        priority = [name for name in self._spec.priority if name in self._sources]
        ranked = [*priority, *(name for name in self._sources if name not in priority)]
        ranks = np.array([ranked.index(name) for name in self._sources], np.int64)
        return np.argsort(ranks[self._owners], kind="stable")

    def _read_kept_truths(self) -> dict[int, Truth]:
        """Return the verifier and the ground truth of each prompt that has duplicates, by its index."""
        stays, start = self._likeness.stays, 0
        has_duplicates = np.unique(stays[stays != np.arange(len(stays))])
        truths: dict[int, Truth] = {}
        for batch in self._read_batches(_TRUTHS) if len(has_duplicates) else ():
            low, high = np.searchsorted(has_duplicates, [start, start + batch.num_rows])
            for index in has_duplicates[low:high].tolist():
                verifier, truth = (batch.column(name)[index - start].as_py() for name in ("verifier", "ground_truth"))
                truths[index] = Truth(verifier, truth)
            start += batch.num_rows
        return truths

    def _set_aside(self, row: dict[str, Any], index: int) -> dict[str, Any]:
        other = int(self._likeness.stays[index])
        kind: Kind = "duplicate"
        how, truths = "the same prompt as one", ""
        if shown := find_contradiction(Truth(row["verifier"], row["ground_truth"]), self._truths[other]):
            kind, truths = "contradicting_duplicate", f", with another ground truth: {shown[0]!r}, not {shown[1]!r}"
        if not self._comparison.is_exact_duplicate(index, other):
            kind, how = "near_duplicate", f"{self._likeness.similarity[index]:.0%} like a prompt"
        reason = f"{how} of source {self._sources[self._owners[other]]!r}{truths}"
        return set_aside_prompt("cleaning", kind, row, reason, clashed_with=self._ids[other].as_py())

    def _fill_clusters(self, prompts: pa.Table, indices: Indices, leads: np.ndarray) -> pa.Table:
        """Return the prompts, with the column `cluster` filled for near duplicates."""
        leader = self._likeness.leader[indices]
        clustered = np.flatnonzero((leader != indices) | leads[indices])
        if not len(clustered):
            return prompts
        clusters = prompts.column("cluster").to_pylist()
        for row in clustered.tolist():
            clusters[row] = self._comparison.get_text_key(int(leader[row])).hex()
        column = prompts.schema.get_field_index("cluster")
        return prompts.set_column(column, PROMPTS.field("cluster"), pa.array(clusters, pa.string()))


def _read_sources(table: Path) -> set[str]:
    return {name for batch in read_batches(table, _NAMES) for name in pc.unique(batch.column("source")).to_pylist()}
