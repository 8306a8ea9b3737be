"""Reads JSON-lines files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a JSON-lines file, in the order of the file."""
    with path.open("rb") as file:  # splitting text also splits at U+2028, which may be unescaped in JSON strings
        return [json.loads(line) for line in file]
