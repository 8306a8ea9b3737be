"""The prompts of all sources as one table, without those that stand in it already.

Tables are read twice, a batch at a time: once for what prompts are compared by, and once to write those that stay.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.cleaning.duplicates import Comparison, Positions
from tasks.cleaning.spec import DuplicatesSpec
from tasks.tables.parquet import columns_of, read_batches, table_from_rows, with_user_columns
from tasks.tables.schemas import CLUSTER, PROMPTS, SET_ASIDE, TEXT, Kind, set_aside_row

_NAMES = pa.schema([PROMPTS.field("source")])


class Merger:
    """Tables of several sources, compared.

    Attributes:
        columns: of the merged table: `PROMPTS`, and those that users have added to any of the tables.
    """

    def __init__(self, tables: Sequence[Path], sources: Sequence[str], spec: DuplicatesSpec) -> None:
        """Read the tables, and find who is like whom.

        Args:
            tables: of `PROMPTS`, each with the prompts of one source or of several.
            sources: the names of the sources, in the order of the merged table.
            spec: what counts as alike, and which source keeps it.

        Raises:
            TableError: a table that is none of `PROMPTS`, or two in which a user's column has different types.
        """
        self.columns = with_user_columns(PROMPTS, *map(columns_of, tables))
        held = {table: _sources_of(table) for table in tables}
        self._tables = [(table, source) for source in sources for table in tables if source in held[table]]
        self._spec = spec
        near = spec.near_duplicates
        self._comparison = Comparison(near, by_text=spec.duplicates == "text")
        ids: list[pa.Array] = []
        owners: list[Positions] = []
        for batch in self._batches():
            self._comparison.add(batch)
            ids += batch.column("prompt_id").chunks
            owners.append(np.full(batch.num_rows, sources.index(batch.column("source")[0].as_py())))
        self._sources = sources
        self._ids = pa.chunked_array(ids, pa.string())
        self._owners = np.concatenate([np.empty(0, np.int64), *owners])
        self._likeness = self._comparison.found(self._order())

    def parts(self) -> Iterator[tuple[pa.Table, pa.Table]]:
        """The merged table and the rows set aside, batch after batch: of `columns`, and of `SET_ASIDE`."""
        likeness, start = self._likeness, 0
        leads = np.zeros(len(likeness.leader), bool)
        leads[likeness.leader[likeness.leader != np.arange(len(leads))]] = True
        for batch in self._batches():
            places = np.arange(start, start + batch.num_rows)
            start += batch.num_rows
            stays = likeness.stays[places] == places
            goes = batch.filter(pa.array(~stays))
            aside = [
                self._set_aside(row, int(place)) for row, place in zip(goes.to_pylist(), places[~stays], strict=True)
            ]
            kept = batch.filter(pa.array(stays))
            if self._together:
                kept = self._with_clusters(kept, places[stays], leads)
            yield kept, table_from_rows(aside, SET_ASIDE, "set-aside prompts")

    @property
    def _together(self) -> bool:
        near = self._spec.near_duplicates
        return near is not None and near.action == "keep_together"

    def _batches(self) -> Iterator[pa.Table]:
        for table, source in self._tables:
            for batch in read_batches(table, self.columns):
                own = batch.filter(pc.equal(batch.column("source"), source))
                if own.num_rows:
                    yield own

    def _order(self) -> Positions:
        """The places of all prompts, those first that keep what several have."""
        priority = [name for name in self._spec.priority if name in self._sources]
        ranked = [*priority, *(name for name in self._sources if name not in priority)]
        ranks = np.array([ranked.index(name) for name in self._sources], np.int64)
        return np.argsort(ranks[self._owners], kind="stable")

    def _set_aside(self, row: dict, place: int) -> dict:
        other = int(self._likeness.stays[place])
        kind: Kind = "duplicate"
        how = "the same prompt as one"
        if not self._comparison.are_the_same(place, other):
            kind, how = "near_duplicate", f"{self._likeness.similarity[place]:.0%} like a prompt"
        return set_aside_row(
            "cleaning",
            kind,
            row["source"],
            json.loads(row["metadata"]).get("row", -1),
            f"{how} of source {self._sources[self._owners[other]]!r}",
            row["messages"][-1]["content"],
            prompt_id=row["prompt_id"],
            clashed_with=self._ids[other].as_py(),
        )

    def _with_clusters(self, kept: pa.Table, places: Positions, leads: np.ndarray) -> pa.Table:
        """The prompts, with what those that are alike have in common in the metadata."""
        leader = self._likeness.leader[places]
        clustered = np.flatnonzero((leader != places) | leads[places])
        if not len(clustered):
            return kept
        metadata = kept.column("metadata").to_pylist()
        for row in clustered.tolist():
            entries = json.loads(metadata[row]) | {CLUSTER: self._comparison.text_key(int(leader[row])).hex()}
            metadata[row] = json.dumps(entries, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        column = PROMPTS.get_field_index("metadata")
        return kept.set_column(column, PROMPTS.field("metadata"), pa.array(metadata, TEXT))


def _sources_of(table: Path) -> set[str]:
    return {name for batch in read_batches(table, _NAMES) for name in pc.unique(batch.column("source")).to_pylist()}
