"""Lists the files of a run's responses and their steps, for programs that cannot list a bucket: `responses.json`.

{"00000000.parquet": [0, 11], "00000001.parquet": [11, 23]}     first and last step, or the version of the weights
                                                                for groups that no step took
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.compute as pc
import pyarrow.parquet as pq

from tasks.storage.locations import RESPONSE_LIST

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem


def read_step_range(path: Path) -> list[int]:
    """Return the first and the last step in a file of responses. A group that no step took counts by its weights."""
    table = pq.read_table(path, columns=["step", "last_version"])
    ends = pc.min_max(pc.coalesce(table["step"], table["last_version"])).as_py()
    return [ends["min"] or 0, ends["max"] or 0]


def add_to_list(filesystem: AbstractFileSystem, address: str, paths: list[Path]) -> None:
    """Add files of responses to the list at the address of a run. Files of an earlier attempt stay in the list."""
    location = f"{address}/{RESPONSE_LIST}"
    try:
        listed = json.loads(filesystem.cat_file(location))
    except FileNotFoundError:
        listed = {}
    listed |= {path.name: read_step_range(path) for path in paths}
    filesystem.pipe_file(location, json.dumps(listed, sort_keys=True).encode())
