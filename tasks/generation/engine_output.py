"""Captures the output of an engine's processes in a file, and reads from it why they ended.

vLLM's engine runs in a separate process. If that process fails, its parent only learns that it has ended. The reason
is the signal that killed it, or the last error that it printed.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path

from tasks.failures import LONGEST, one_line
from tasks.machine.engine_errors import WITHOUT_REASON, find_last_error

TAIL = 100_000
"""Bytes at the end of the output that are searched for the last error."""

EXIT_BY_SIGNAL = re.compile(r"Failed core proc\(s\): \{[^}]*: -(\d+)")
"""Matches vLLM's error if a signal killed the engine while it started; group 1 is the signal's number."""

REASON_SECONDS = 5.0
"""Seconds to wait for the error message of a process that ended unexpectedly.

Its parent can see that the process ended before the message is printed.
"""

MISTAKES = frozenset({"ValueError", "ValidationError", "NotImplementedError", "OSError", "FileNotFoundError"})
"""Types of errors that vLLM raises when it refuses a model or an option."""


REFUSALS = MISTAKES | {"AssertionError", "RuntimeError"}
"""Types of errors that vLLM raises at an engine's first request if its kernels do not support the model."""

OF_DEVICE = re.compile("CUDA|NCCL|allocate memory")
"""Matches error messages that can be caused by the machine instead of the model."""


class EngineOutput:
    """The output of an engine's processes, in a file.

    Attributes:
        processes: the engine's child processes. Empty until the engine runs.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.processes: list[BaseProcess] = []

    @contextlib.contextmanager
    def capture(self) -> Iterator[None]:
        """Redirect the output of processes that start in the block to the file, for as long as they live.

        They inherit this process's standard error, which is the file during the block. `sys.stderr` of this process
        still writes to the terminal. With `RLVR_VERBOSE=1` nothing is captured.
        """
        others = set(multiprocessing.active_children())
        with contextlib.nullcontext() if os.environ.get("RLVR_VERBOSE") == "1" else self._write_to_file():
            yield
        self.processes = [child for child in multiprocessing.active_children() if child not in others]

    @contextlib.contextmanager
    def _write_to_file(self) -> Iterator[None]:
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

    def find_reason(self, error: Exception) -> str:
        """Return in one line why the engine failed: the signal that killed it, the last printed error, or `error`."""
        if ended := self._describe_signal(error):
            return ended
        named = self._find_last_error()
        return one_line(f"{named[0]}: {named[1]}" if named else error, LONGEST)

    async def wait_for_reason(self, error: Exception) -> str:
        """Return `find_reason(error)`. If it only refers to another error, wait until the processes have printed it."""
        deadline = time.monotonic() + REASON_SECONDS
        while (
            re.search(WITHOUT_REASON, self.find_reason(error)) and self._path.exists() and time.monotonic() < deadline
        ):
            await asyncio.sleep(0.1)
        return self.find_reason(error)

    @property
    def names_refusal(self) -> bool:
        """True if the last error means that vLLM's kernels do not support the model (`REFUSALS`)."""
        named = None if self._describe_signal() else self._find_last_error()
        return named is not None and named[0] in REFUSALS and not OF_DEVICE.search(named[1])

    def has_mistake(self, error: Exception) -> bool:
        """Return whether vLLM printed an error that means that it refuses the model or an option (`MISTAKES`).

        Args:
            error: the error that vLLM raised in this process. If the error or an exit code says that a signal killed
                the engine, the result is False.
        """
        named = None if self._describe_signal(error) else self._find_last_error()
        return named is not None and named[0] in MISTAKES

    def _describe_signal(self, error: Exception | None = None) -> str | None:
        """Return a message about the signal that killed the engine, or None if no signal did."""
        codes = [-code for process in self.processes if (code := process.exitcode) is not None and code < 0]
        if error is not None and (match := EXIT_BY_SIGNAL.search(str(error))):
            codes.append(int(match[1]))
        if not codes:
            return None
        return f"killed by {signal.Signals(codes[0]).name} ({signal.strsignal(codes[0])})"

    def _find_last_error(self) -> tuple[str, str] | None:
        if not self._path.exists():
            return None
        with self._path.open("rb") as file:
            file.seek(max(self._path.stat().st_size - TAIL, 0))
            return find_last_error(file.read().decode(errors="replace"))
