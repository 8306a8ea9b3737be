"""Ensures with a heartbeat file that at most one process works on a run.

    free ──► held ──► released                      another attempt starts: refused while the file changes,
               └ killed: no more heartbeats ──► taken over after `seconds`, or at once if the process has ended

A holder that could not reach the storage for a while reads another holder's name in the file afterwards, and ends.
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

from tasks.failures import InfrastructureError, MistakeError
from tasks.storage.threads import PATIENCE_SECONDS

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

logger = logging.getLogger(__name__)

LEASE_SECONDS = 60.0
"""Seconds without a heartbeat after which a lease counts as abandoned."""
BEATS = 6
"""Number of heartbeats within `LEASE_SECONDS`."""


class RunInUseError(MistakeError):
    """Another process works on the same run, on this or another machine."""


class LeaseLostError(InfrastructureError):
    """Another attempt has taken over the run of this attempt."""


class Lease:
    """The right to work on a run, which is acquired by a `with` block and renewed by a thread.

    Entering reads the file and then writes it, because fsspec has no conditional write. If two attempts start within
    the same second, both may enter. The file then names the attempt that wrote last. The other attempt reads this name
    at its next heartbeat, at most `seconds / BEATS` later, and loses the lease (`check`, `held`). Until then both
    work on the run, but the loser deletes nothing, because `check` is called before every deletion.

    Args:
        filesystem: file system of the lease file, on storage that every attempt can access.
        path: path of the lease file.
        seconds: time without a heartbeat after which the lease counts as abandoned.

    Raises:
        RunInUseError: raised on entering if another process holds the lease.
    """

    def __init__(self, filesystem: AbstractFileSystem, path: str, seconds: float = LEASE_SECONDS) -> None:
        self._fs = filesystem
        self._path = path
        self._seconds = seconds
        # Random, because one process may make several attempts, and processes of two machines may have the same id.
        self._holder = {
            "id": uuid.uuid4().hex,
            "host": platform.node(),
            "machine": _read_machine_id(),
            "pid": os.getpid(),
            "started": _read_start_time(os.getpid()),
        }
        self._beats = 0
        self._lost = ""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="lease", daemon=True)
        self._on_lost: Callable[[], None] = lambda: None

    @classmethod
    def from_folder(cls, folder: Path, seconds: float = LEASE_SECONDS) -> Lease:
        """Return the lease of a run in `folder`, on this machine or on storage that several machines share."""
        from fsspec.implementations.local import LocalFileSystem

        return cls(LocalFileSystem(), str(folder / "lease.json"), seconds)

    def __enter__(self) -> Lease:
        before = self._read()
        if before and not _has_ended(before):
            self._wait_for_silence(before)
        self._write()  # in this thread, so that storage which cannot be written ends the attempt at once
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(PATIENCE_SECONDS)
        if self._thread.is_alive():  # storage hangs, and deletion would hang too; the lease expires
            logger.warning("%s: storage hangs; the lease is not released", self._path)
            return
        with contextlib.suppress(Exception):  # the lease expires
            if self._is_ours(self._read()):  # another attempt may have taken over, and needs its file
                self._fs.rm_file(self._path)

    def check(self) -> None:
        """Check that this process still has the lease. Call it before anything is deleted.

        If the storage does not answer, this is only logged: a lease is lost when another holder's name is read.

        Raises:
            LeaseLostError: another process has the lease.
        """
        try:
            holder = self._read()
        except Exception as error:  # fsspec's file systems have no common error type
            logger.warning("%s cannot be read: %s", self._path, error)
        else:
            if not self._lost and not self._is_ours(holder):
                self._lose(holder)
        if self._lost:
            raise LeaseLostError(self._lost)

    @contextlib.asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Run an async block that is cancelled as soon as the lease is lost.

        Raises:
            LeaseLostError: the lease was lost, before the block or within it.
        """
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def cancel() -> None:
            loop.call_soon_threadsafe(task.cancel)  # the heartbeat's thread calls this

        # Set before `_lost` is read: a loss between the two lines would otherwise be noticed by neither.
        self._on_lost = cancel
        if self._lost:  # it was lost before this task could be cancelled
            raise LeaseLostError(self._lost)
        try:
            yield
        except asyncio.CancelledError:
            if self._lost:
                raise LeaseLostError(self._lost) from None
            raise  # the caller cancelled the block, for example because of Ctrl-C
        finally:
            self._on_lost = lambda: None

    def _wait_for_silence(self, before: bytes) -> None:
        holder = _parse(before)
        # Only processes of this machine can be looked up. Others show below, by their heartbeats, that they work.
        if holder.get("machine") == self._holder["machine"] and _is_running(holder):
            raise RunInUseError(
                f"{self._path}: {_describe_holder(holder)} works on this run; stop it, or wait until it ends"
            )
        logger.warning(
            "%s: %s worked on this run; the run is taken over if its lease has no heartbeat for %g s",
            self._path,
            _describe_holder(holder),
            self._seconds,
        )
        deadline = time.monotonic() + self._seconds
        while time.monotonic() < deadline:
            time.sleep(self._seconds / BEATS / 2)  # half a heartbeat, to refuse soon after the holder's next one
            now = self._read()
            if not now:
                return
            if now != before:  # the contents and not times, because clocks of machines differ
                raise RunInUseError(
                    f"{self._path}: {_describe_holder(_parse(now))} works on this run; stop it, or wait until it ends"
                )

    def _beat(self) -> None:
        failures = 0
        while not self._ended.wait(self._seconds / BEATS):
            try:
                self.check()  # before writing, which would replace the name of an attempt that has taken over
                self._write()
                failures = 0
            except LeaseLostError:
                return
            except Exception as error:  # storage may be unavailable for a while
                failures += 1
                if failures > 1:  # if a disk is full, the run ends before the next heartbeat and logs the reason
                    logger.warning("%s cannot be written: %s", self._path, error)

    def _lose(self, holder: bytes | None) -> None:
        who = _describe_holder(_parse(holder)) if holder else "a process that deleted its lease"
        # Set before the task is cancelled, which then reads it.
        self._lost = f"{self._path}: {who} has taken over this run from {_describe_holder(self._holder)}"
        self._on_lost()

    def _is_ours(self, content: bytes | None) -> bool:
        return content is not None and _parse(content).get("id") == self._holder["id"]

    def _read(self) -> bytes | None:
        try:
            content: bytes = self._fs.cat_file(self._path)
        except FileNotFoundError:
            return None
        return content

    def _write(self) -> None:
        from fsspec.implementations.local import LocalFileSystem

        self._beats += 1  # so that each heartbeat changes the content, which waiting attempts compare
        content = json.dumps({**self._holder, "beats": self._beats}).encode()
        if isinstance(self._fs, LocalFileSystem):
            # Written atomically, as objects on blob storage are. `durable.whole` is not used because two holders would
            # write to the same partial file.
            partial = f"{self._path}.{self._holder['id']}"
            self._fs.pipe_file(partial, content)
            os.replace(partial, self._path)
        else:
            self._fs.pipe_file(self._path, content)


def find_holder(folder: Path) -> str | None:
    """Return the process with a recent heartbeat that may work on the run in `folder`, or None if there is none."""
    path = folder / "lease.json"
    try:
        # Nothing waits for a heartbeat here: who removes a run acquires its lease first, which does.
        holder, age = _parse(path.read_bytes()), time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return None
    except OSError:  # the file of another user
        return _describe_holder({})
    works = _is_running(holder) if holder.get("machine") == _read_machine_id() else age < LEASE_SECONDS
    return _describe_holder(holder) if works else None


def _read_start_time(pid: int) -> float:
    """Return when a process started, in clock ticks since the boot, because the time of day may be changed.

    Raises:
        ProcessLookupError: there is no such process.
    """
    try:
        # The name of the program, in parentheses, may contain spaces.
        return float(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])  # proc(5), `starttime`
    except OSError:
        import psutil  # only used without /proc; not installed on machines that only plan a recipe

        try:
            return psutil.Process(pid).create_time()
        except psutil.Error:
            raise ProcessLookupError(f"no process {pid}") from None


def _read_machine_id() -> str:
    """Return an id of this boot of the machine and of its process namespace, within which process ids are unique."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return f"{boot.read_text().strip()} {os.readlink('/proc/self/ns/pid')}" if boot.exists() else platform.node()


def _parse(content: bytes) -> dict[str, Any]:
    try:
        holder = json.loads(content)
    except ValueError:
        return {}
    return holder if isinstance(holder, dict) else {}


def _has_ended(content: bytes) -> bool:
    holder = _parse(content)
    return holder.get("machine") == _read_machine_id() and not _is_running(holder)


def _is_running(holder: dict[str, Any]) -> bool:
    try:  # the time, too, because the id may have been given to another process since
        return bool(_read_start_time(holder["pid"]) == holder["started"])
    except (ProcessLookupError, KeyError):
        return False


def _describe_holder(holder: dict[str, Any]) -> str:
    return f"process {holder.get('pid', '?')} on {holder.get('host', '?')}"
