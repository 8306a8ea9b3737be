"""One process at a time works on a run: whoever does says so every few seconds, in a file that all would see.

    free ──► held ──► released                      another one starts: refused while the file changes,
               └ killed: the file changes no more ──► taken over after `seconds`, or at once where the process is gone

An attempt that lost its lease unseen, as its network was away for a while, finds another's name in the file, and ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import platform
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from tasks.failures import InfrastructureError, MistakeError
from tasks.storage.threads import PATIENCE_SECONDS

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

logger = logging.getLogger(__name__)

LEASE_SECONDS = 60.0
"""A file that has not changed for so long is held by nobody."""
BEATS = 6
"""How often it is written within that time."""


class RunInUseError(MistakeError):
    """Another process works on the same run."""


class LeaseLostError(InfrastructureError):
    """Another attempt has taken the run over from this one."""


class Lease:
    """The right to work on a run. Used as a context.

    Args:
        filesystem, path: of the file, on storage that every attempt sees.
        seconds: see `LEASE_SECONDS`.

    Raises:
        RunInUseError: entering; another process holds it.
    """

    def __init__(self, filesystem: AbstractFileSystem, path: str, seconds: float = LEASE_SECONDS) -> None:
        self._fs = filesystem
        self._path = path
        self._seconds = seconds
        self._holder = {"id": uuid.uuid4().hex, **_this_process()}
        self._beats = 0
        self._lost = ""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="lease", daemon=True)
        self._on_lost: Callable[[], None] = lambda: None

    @classmethod
    def of_folder(cls, folder: Path, seconds: float = LEASE_SECONDS) -> Lease:
        """Of a run in a folder of this machine, or that many machines see."""
        from fsspec.implementations.local import LocalFileSystem

        return cls(LocalFileSystem(), str(folder / "lease.json"), seconds)

    def __enter__(self) -> Lease:
        before = self._read()
        if before and not _has_ended(before):
            self._wait_for_silence(before)
        self._write()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(PATIENCE_SECONDS)
        if self._thread.is_alive():  # so does reading it; it is released all the same once it is old
            logger.warning("%s hangs: the lease is left there", self._path)
            return
        with contextlib.suppress(Exception):  # as above
            if self._is_ours(self._read()):
                self._fs.rm_file(self._path)

    def check(self) -> None:
        """Raise `LeaseLostError` where another one holds it by now: before anything is deleted.

        Of storage that does not answer nothing is known: a lease is lost when another's name is read.
        """
        try:
            holder = self._read()
        except Exception as error:  # fsspec's file systems share no kind of error
            logger.warning("%s cannot be read: %s", self._path, error)
        else:
            if not self._lost and not self._is_ours(holder):
                self._lose(holder)
        if self._lost:
            raise LeaseLostError(self._lost)

    @contextlib.asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """A block that is cancelled when the lease is lost.

        Raises:
            LeaseLostError: that has happened.
        """
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def cancel() -> None:
            loop.call_soon_threadsafe(task.cancel)

        self._on_lost = cancel
        if self._lost:  # before there was anybody to cancel
            raise LeaseLostError(self._lost)
        try:
            yield
        except asyncio.CancelledError:
            if self._lost:
                raise LeaseLostError(self._lost) from None
            raise
        finally:
            self._on_lost = lambda: None

    def _wait_for_silence(self, before: bytes) -> None:
        holder = _told(before)
        if holder.get("machine") == self._holder["machine"] and _runs(holder):
            raise RunInUseError(f"{self._path}: {_name(holder)} works on this run; end it, or let it go on")
        logger.warning(
            "%s: %s worked on this run; it is taken over if nothing is heard of it for %g s",
            self._path,
            _name(holder),
            self._seconds,
        )
        deadline = time.monotonic() + self._seconds
        while time.monotonic() < deadline:
            time.sleep(self._seconds / BEATS / 2)
            now = self._read()
            if not now:
                return
            if now != before:
                raise RunInUseError(f"{self._path}: {_name(_told(now))} works on this run; end it, or let it go on")

    def _beat(self) -> None:
        while not self._ended.wait(self._seconds / BEATS):
            try:
                self.check()
                self._write()
            except LeaseLostError:
                return
            except Exception as error:  # storage that is away for a while
                logger.warning("%s cannot be written: %s", self._path, error)

    def _lose(self, holder: bytes | None) -> None:
        who = _name(_told(holder)) if holder else "somebody who deleted its lease"
        self._lost = f"{self._path}: {who} has taken over this run from {_name(self._holder)}"
        self._on_lost()

    def _is_ours(self, content: bytes | None) -> bool:
        return content is not None and _told(content).get("id") == self._holder["id"]

    def _read(self) -> bytes | None:
        try:
            content: bytes = self._fs.cat_file(self._path)
        except FileNotFoundError:
            return None
        return content

    def _write(self) -> None:
        from fsspec.implementations.local import LocalFileSystem

        self._beats += 1
        content = json.dumps({**self._holder, "beats": self._beats}).encode()
        if isinstance(self._fs, LocalFileSystem):  # whole at any moment, as objects on blob storage are
            partial = f"{self._path}.{self._holder['id']}"
            self._fs.pipe_file(partial, content)
            os.replace(partial, self._path)
        else:
            self._fs.pipe_file(self._path, content)


def _this_process() -> dict[str, Any]:
    return {
        "host": platform.node(),
        "machine": _machine(),
        "pid": os.getpid(),
        "started": _started(os.getpid()),
    }


def _started(pid: int) -> float:
    """When a process started, since the machine did: the time of day may be set while it runs.

    Raises:
        psutil.Error: there is no such process.
    """
    try:
        return float(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])  # proc(5), `starttime`
    except OSError:
        return psutil.Process(pid).create_time()


def _machine() -> str:
    """Of the kernel that runs this, and of the processes that can see each other."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return f"{boot.read_text().strip()} {os.readlink('/proc/self/ns/pid')}" if boot.exists() else platform.node()


def _told(content: bytes) -> dict[str, Any]:
    try:
        holder = json.loads(content)
    except ValueError:
        return {}
    return holder if isinstance(holder, dict) else {}


def _has_ended(content: bytes) -> bool:
    holder = _told(content)
    return holder.get("machine") == _machine() and not _runs(holder)


def _runs(holder: dict[str, Any]) -> bool:
    try:
        return bool(_started(holder["pid"]) == holder["started"])
    except (psutil.Error, KeyError):
        return False


def _name(holder: dict[str, Any]) -> str:
    return f"process {holder.get('pid', '?')} on {holder.get('host', '?')}"
