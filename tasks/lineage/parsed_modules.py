"""Keeps what was read from modules of this project in a file, as Python keeps their bytecode, and in the same folder.

Without it, every command would parse about 200 modules again before it starts.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
from pathlib import Path
from typing import Any

MOST = 1024
"""Largest number of entries. A checkout has about 300, and each change of a module adds one. With more, only the new
ones are written."""


class ParsedModules:
    """JSON values by key, in a file that belongs to the code of the module that made them.

    An entry never changes: a key contains a digest of the source. The file is not used if the code of the module that
    made it has changed, if it is damaged, or if it cannot be written.
    """

    def __init__(self, made_by: Path) -> None:
        """Read nothing yet.

        Args:
            made_by: file of the module whose results are kept.
        """
        self._made_by = made_by
        self._path = Path(importlib.util.cache_from_source(str(made_by))).with_suffix(".json")
        self._entries: dict[str, Any] | None = None
        self._added: dict[str, Any] = {}

    def get(self, key: str) -> Any | None:
        """Return the value of a key, or None if there is none."""
        if self._entries is None:
            self._entries = self._read()
        return self._entries.get(key, self._added.get(key))

    def add(self, key: str, value: Any) -> None:
        """Add a value, which `save` writes."""
        self._added[key] = value

    def save(self) -> None:
        """Write the file if values were added since the last time."""
        if not self._added:
            return
        entries = self._read() | self._added
        self._entries = entries if len(entries) <= MOST else self._added
        self._added = {}
        part = self._path.with_suffix(f".{os.getpid()}.part")
        with contextlib.suppress(OSError):  # an installation may be read-only
            self._path.parent.mkdir(exist_ok=True)
            part.write_text(json.dumps({"code": self._code(), "modules": self._entries}))
            part.replace(self._path)

    def _read(self) -> dict[str, Any]:
        try:
            stored = json.loads(self._path.read_bytes())
            return dict(stored["modules"]) if stored["code"] == self._code() else {}
        except (OSError, ValueError, KeyError, TypeError):
            return {}

    def _code(self) -> str:
        return hashlib.sha256(self._made_by.read_bytes()).hexdigest()
