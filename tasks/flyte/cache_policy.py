"""Flytekit's cache policy for the stages of this project."""

from __future__ import annotations

import hashlib
from typing import Any

from flytekit.core.cache import VersionParameters

from tasks.lineage.code_digest import code_digest

BACKENDS_ALONE = "backends-alone-"
"""The beginning of the version of a task that is cached by backends, and never on this machine."""


class CodeDigest:
    """A cache policy by which the version of a task is the `code_digest` of the module that defines it."""

    def __init__(self, ignored_code: tuple[str, ...] = ()) -> None:
        """Leave `ignored_code` out of the digest; see `code_digest`."""
        self._ignored_code = ignored_code

    def get_version(self, salt: str, params: VersionParameters[Any, Any]) -> str:
        """Return the version of a task; flytekit calls it when the task is declared."""
        assert params.func is not None
        return hashlib.sha256(f"{salt}{code_digest(params.func.__module__, self._ignored_code)}".encode()).hexdigest()
