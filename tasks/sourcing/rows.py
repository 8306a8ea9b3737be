"""How many rows a source has, where that is cheap to know before it is read."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq

from tasks.sourcing.files import File
from tasks.sourcing.loader_specs import HuggingFaceLoader, JsonlLoader, ParquetLoader
from tasks.sourcing.loaders import files_of
from tasks.sourcing.spec import SourceSpec

COUNTED_BYTES = 2**30
"""Files of lines are read to count them up to this size."""


def count(source: SourceSpec) -> int | None:
    """Rows of `source`, unusable ones and duplicates among them.

    None where that takes a download, a look into each row (`where`) or a long time.

    Raises:
        SpecError: a path without files.
    """
    if source.where:
        return None
    loader = source.loader
    if isinstance(loader, JsonlLoader | ParquetLoader | HuggingFaceLoader):
        found = _rows_of_files(loader.kind, files_of(source))
        return source.limit if found is None else min(found, source.limit or found)
    return min(loader.size, source.limit or loader.size)


def _rows_of_files(kind: str, files: list[File]) -> int | None:
    if kind == "huggingface" or not all(file.is_local for file in files):
        return None
    if kind == "parquet":
        return sum(pq.read_metadata(file.path).num_rows for file in files)
    if sum(Path(file.path).stat().st_size for file in files) > COUNTED_BYTES:
        return None
    return sum(_lines(Path(file.path)) for file in files)


def _lines(file: Path) -> int:
    with file.open("rb") as lines:
        return sum(1 for line in lines if line.strip())
