"""Defines flytekit's cache policy for the stages of this project."""

from __future__ import annotations

import hashlib
from typing import Any

from flytekit.core.cache import VersionParameters

from tasks.lineage.code_digest import code_digest

BACKENDS_ALONE = "backends-alone-"
"""Prefix of the version of a task that is cached by backends, but never on this machine."""


class CodeDigest:
    """A cache policy that uses the `code_digest` of a task's module as the task's version."""

    def __init__(self, ignored_code: tuple[str, ...] = ()) -> None:
        """Exclude `ignored_code` from the digest (see `code_digest`)."""
        self._ignored_code = ignored_code

    def get_version(self, salt: str, params: VersionParameters[Any, Any]) -> str:
        """Return the version of a task. Flytekit calls it when the task is declared."""
        assert params.func is not None
        return hashlib.sha256(f"{salt}{code_digest(params.func.__module__, self._ignored_code)}".encode()).hexdigest()
