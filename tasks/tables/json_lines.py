"""Reading of JSON-lines files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a JSON-lines file, in its order."""
    with path.open("rb") as file:  # a text's line ends include U+2028, which stands unescaped in JSON strings
        return [json.loads(line) for line in file]
