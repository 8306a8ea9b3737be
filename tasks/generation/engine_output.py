"""Keeps what an engine's processes print in a file, and reads from it why they ended.

vLLM's engine runs in a process of its own. Where that process fails, its parent learns no more than that it has ended:
the reason is the last error which the process printed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

TAIL = 100_000
"""Bytes at the end of the output in which the last error is looked for."""

ERROR = re.compile(r"(?:^|\s)((?:[\w.]+\.)?(\w*(?:Error|Exception|Interrupt))): (\S.*)")
"""A line that names an error, with or without what vLLM's logger puts before it."""

WITHOUT_REASON = "EngineCore|EngineDead|Engine core|root cause"
"""Texts of errors that point at another error."""

REASON_SECONDS = 5.0
"""Seconds within which a process that has ended unexpectedly prints why; its parent can see the end before that."""

MISTAKES = frozenset({"ValueError", "ValidationError", "NotImplementedError", "OSError", "FileNotFoundError"})
"""Kinds of errors by which vLLM refuses a model or an option."""


REFUSALS = MISTAKES | {"AssertionError", "RuntimeError"}
"""Kinds of errors by which vLLM's kernels refuse a model at an engine's first request."""

OF_DEVICE = re.compile("CUDA|NCCL")
"""Texts of errors that can be a fault of the machine."""


class EngineOutput:
    """The output of an engine's processes, in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @contextlib.contextmanager
    def captured(self) -> Iterator[None]:
        """Let processes that start in the block print into the file for as long as they live.

        They inherit this process's standard error, which is the file meanwhile; Python's own writers in this process
        still reach the terminal. With `RLVR_VERBOSE=1` nothing is captured.
        """
        if os.environ.get("RLVR_VERBOSE") == "1":
            yield
            return
        sys.stderr.flush()
        terminal, before = os.dup(2), sys.stderr
        with self._path.open("wb") as file, open(os.dup(terminal), "w", buffering=1) as writer:
            os.dup2(file.fileno(), 2)
            sys.stderr = writer
            try:
                yield
            finally:
                sys.stderr = before
                os.dup2(terminal, 2)
                os.close(terminal)

    def reason_or(self, error: Exception) -> str:
        """Return the last error that the processes printed, in one line; that of `error` where they printed none."""
        named = self._last_error()
        return f"{named[0]}: {named[1]}" if named else " ".join(str(error).split())

    async def awaited_reason_or(self, error: Exception) -> str:
        """Return `reason_or` of an error; where that points at another, once the processes have printed the other."""
        deadline = time.monotonic() + REASON_SECONDS
        while re.search(WITHOUT_REASON, self.reason_or(error)) and self._path.exists() and time.monotonic() < deadline:
            await asyncio.sleep(0.1)
        return self.reason_or(error)

    @property
    def names_refusal(self) -> bool:
        """True where the last error is of a kind by which vLLM refuses a model at an engine's first request."""
        named = self._last_error()
        return named is not None and named[0] in REFUSALS and not OF_DEVICE.search(named[1])

    @property
    def names_mistake(self) -> bool:
        """True where the last error is of a kind by which vLLM refuses the model or an option."""
        named = self._last_error()
        return named is not None and named[0] in MISTAKES

    def _last_error(self) -> tuple[str, str] | None:
        if not self._path.exists():
            return None
        with self._path.open("rb") as file:
            file.seek(max(self._path.stat().st_size - TAIL, 0))
            lines = file.read().decode(errors="replace").splitlines()
        errors = [match for line in lines if (match := ERROR.search(line)) and not re.search(WITHOUT_REASON, line)]
        return (errors[-1][2], errors[-1][3].strip()) if errors else None
