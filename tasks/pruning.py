"""Remove what runs on this machine have left and nothing needs: the command `python -m workflows prune`.

    left by processes, damaged caches             go at once: folders of stages that no cached result names, and what
                                                  was being written when its process was killed
    cached results with their entries, sampled    go when nothing has used them for some days: a run computes them again
    responses, prepared models
    runs that have ended                          the same, unless a cached result that stays names their files
    results of runs                               the same, but for `latest`; experiments stay
    runs without a checkpoint, tracebacks         the same
    a run that was interrupted                    stays, unless it is named, and with it all that its resume may need:
                                                  cached results, responses, models, runs that have ended, results

A plan is made and carried out while no run works with the folders (`outputs.alone`). Machines may share run folders, so
that one is removed by the holder of its lease. A file that has more names frees nothing, and is no sign of use.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from enum import StrEnum
from pathlib import Path

from tasks.config import must_be_one_of
from tasks.failures import one_line
from tasks.flyte import patches
from tasks.flyte.local_cache import DAMAGED, CachedResult, cache_folder, cached_results, forget
from tasks.machine.error_report import FOLDER as TRACEBACKS
from tasks.storage.durable import PARTIAL
from tasks.storage.lease import Lease, RunInUseError, holder_of
from tasks.storage.locations import folder_of, outputs_folder
from tasks.storage.outputs import size_text
from tasks.training.records.checkpoint import Checkpoints
from tasks.training.records.ending import has_ended

OF_RUNS = {"lease.json", "model_check.json", "ledger.jsonl", "checkpoints"}
"""Names by which a run folder is known: it has one of them, and results have none."""
PUBLISHED = re.compile(r"\d{8}-\d{6}-.+")
"""Name of a folder of results."""
UNPUBLISHED = re.compile(rf"\.(latest|{PUBLISHED.pattern})-\d+")
"""Name of results that were being published (`reporting.publication`)."""
READ_BY_ALL = "summary.json"
"""Name of the file of results that each run reads, for the page of all runs."""


class Kind(StrEnum):
    """A kind of what may go, as the table names it."""

    LEFT = "left by processes that have ended"
    CACHE = "damaged caches"
    STAGE = "cached results"
    ROLLOUTS = "caches of responses"
    MODEL = "prepared models"
    ENDED = "runs that have ended"
    BEGUN = "runs without a checkpoint"
    INTERRUPTED = "runs that were interrupted"
    RESULTS = "results of runs"
    TRACEBACK = "tracebacks"


class Plan:
    """A plan of what goes, which is made and carried out within `outputs.alone`.

    Args:
        unused_since: time in seconds since 1970; what was used since then stays.
        named: names of runs that go in any case.

    Attributes:
        going: the kinds of what goes, by path.
        sentences: on what stays, and on what is lost with a run that was named.

    Raises:
        SpecError: there is no run of this name.
        RunInUseError: another machine works on a run that was named.
        CacheError: the cache of this machine cannot be read.
    """

    def __init__(self, unused_since: float, named: Iterable[str] = ()) -> None:
        patches.install()  # names the cache of this project
        self.going: dict[Path, Kind] = {}
        self.sentences: list[str] = []
        self._files: dict[Path, list[os.stat_result]] = {}
        self._runs, self._named, self._unused_since = folder_of("").resolve(), set(named), unused_since
        runs = {path: kind for path in self._entries(self._runs) if (kind := _kind_of_run(path))}
        for name in sorted(self._named):
            must_be_one_of(name, (path.name for path in runs), str(self._runs), "run")
        resumable = [path for path, kind in runs.items() if kind == Kind.INTERRUPTED and path.name not in self._named]
        self._unneeded_since = -math.inf if resumable else unused_since
        if resumable:
            names = ", ".join(f"{path.name} ({_newest(path)})" for path in resumable)
            self.sentences.append(
                f"interrupted runs stay, and all that their resume may need: {names}; --run NAME removes one"
            )
        results = cached_results()
        staying = [path for result in results if self._stays(result) for path in result.paths or ()]
        expired = [path for result in results if not self._stays(result) for path in result.paths or ()]
        self._staying, self._needed, self._expired = set(staying), _with_parents(staying), _with_parents(expired)
        self._add_stages(cache_folder().parent.resolve())
        self._add_runs(runs)
        self._add_results(outputs_folder().resolve())
        gone = self.going.keys()
        self._keys = [result.key for result in results if gone & _with_parents(result.paths or ())]
        if unreadable := [result.key for result in results if result.paths is None]:
            self.sentences.append(f"entries of the cache that cannot be read, and stay: {', '.join(unreadable)}")

    def lines(self) -> Iterator[str]:
        """Yield the table of what goes: its kind, the number, and the size of what removing it frees."""
        if not self.going:
            yield "nothing can go"
            return
        paths: list[Path] = []
        yield f"{'':36}{'how many':>8}{'size':>10}"
        for kind in Kind:
            if of_kind := [path for path in self.going if self.going[path] == kind]:
                before = self._freed_by(paths)
                paths += of_kind
                yield f"{kind:36}{len(of_kind):>8,}{size_text(self._freed_by(paths) - before):>10}"
        yield f"{'in all':36}{len(paths):>8,}{size_text(self._freed_by(paths)):>10}"

    def remove(self) -> int:
        """Remove what goes, with its entries in the cache; return the bytes that this frees.

        What cannot be removed stays, and has a sentence.

        Raises:
            CacheError: the cache of this machine cannot be written; nothing was removed.
        """
        if self._keys:
            forget(self._keys)
        removed = []
        for path in self.going:
            try:
                self._remove(path)
            except (OSError, RunInUseError) as error:
                self.sentences.append(f"{path} cannot be removed: {one_line(error)}")
            else:
                removed.append(path)
        return self._freed_by(removed)

    def _stays(self, result: CachedResult) -> bool:
        going = {self._runs / name for name in self._named}
        is_lost = bool(going & _with_parents(result.paths or ()))
        return result.used > 0 and result.used >= self._unneeded_since and not is_lost

    def _entries(self, folder: Path) -> list[Path]:
        """Return what lies in a folder; nothing if it is none, or a link."""
        try:
            return sorted(folder.iterdir()) if folder.is_dir() and not folder.is_symlink() else []
        except OSError as error:
            self.sentences.append(f"{folder} cannot be read, and stays: {error.strerror}")
            return []

    def _add(self, kind: Kind, path: Path, unused_since: float = math.inf) -> None:
        """Add a path to what goes, if nothing has used it since a time and no cached result that stays needs it.

        What was being written, or removed, when its process was killed goes at once.
        """
        if path.name.endswith(PARTIAL):
            kind, unused_since = Kind.LEFT, math.inf
        try:
            files = list(_files_in(path))
        except OSError as error:
            self.sentences.append(f"{path} cannot be read, and stays: {error.strerror}")
            return
        if path not in self._needed and _last_use(path, files) < unused_since:
            self.going[path] = kind
            self._files[path] = [state for _, state in files]

    def _add_stages(self, sandbox: Path) -> None:
        for path in self._entries(sandbox):
            if path.name == "user_space":  # of the process, made when flytekit is imported
                for inner in self._entries(path):
                    self._add_unneeded(inner)
            elif path.name.startswith("user_space"):
                self._add_unneeded(path)
            elif path.name.startswith(f"cache{DAMAGED}") or path.name.endswith(PARTIAL):
                self._add(Kind.CACHE, path)

    def _add_unneeded(self, path: Path) -> None:
        """Add a path of a stage, or of its parts those that no cached result needs."""
        if path not in self._needed:
            self._add(Kind.STAGE if path in self._expired else Kind.LEFT, path)
        elif path not in self._staying:
            for inner in self._entries(path):
                self._add_unneeded(inner)

    def _add_runs(self, runs: dict[Path, Kind]) -> None:
        """Add what may go of the folder of runs, in which these are run folders."""
        for path in self._entries(self._runs):
            if path in runs:
                self._add_run(path, runs[path])
            elif path.name == "rollouts":
                for inner in self._entries(path):
                    self._add(Kind.ROLLOUTS, inner, self._unneeded_since)
            elif not path.is_symlink() and (path.name.startswith("model-") or path.name.endswith(PARTIAL)):
                self._add(Kind.MODEL, path, self._unneeded_since)
            elif path.is_dir() and not path.is_symlink() and not self._entries(path):
                self._add(Kind.LEFT, path)
            else:
                self.sentences.append(f"{path} is no run folder, and stays")

    def _add_run(self, path: Path, kind: Kind) -> None:
        is_named = path.name in self._named
        if holder := holder_of(path):
            if is_named:
                raise RunInUseError(f"{path}: {holder} works on this run; end it, or let it go on")
            self.sentences.append(f"{path} stays: {holder} works on it")
        elif is_named:
            if kind == Kind.INTERRUPTED:
                self.sentences.append(f"{path.name} was interrupted: without its {_newest(path)} it begins anew")
            self._add(kind, path)
        else:
            if kind != Kind.INTERRUPTED:
                self._add(kind, path, self._unused_since if kind == Kind.BEGUN else self._unneeded_since)
            for inner in _partials_in(path) if path not in self.going else ():
                self._add(Kind.LEFT, inner)

    def _add_results(self, outputs: Path) -> None:
        latest = (outputs / "latest").resolve()
        for path in (*self._entries(outputs), *self._entries(outputs / "experiments")):
            if UNPUBLISHED.fullmatch(path.name) or path.name.endswith(PARTIAL):
                self._add(Kind.LEFT, path)
            elif path.parent == outputs and PUBLISHED.fullmatch(path.name) and path != latest:
                if path.is_symlink():
                    self.sentences.append(f"{path} is a link, and stays")
                else:
                    self._add(Kind.RESULTS, path, self._unneeded_since)
        for path in self._entries(Path(TRACEBACKS).absolute()):
            self._add(Kind.TRACEBACK, path, self._unused_since)

    def _freed_by(self, paths: Iterable[Path]) -> int:
        """Return the bytes that removing paths frees: those of the files of which it removes all names."""
        states = [state for path in paths for state in self._files[path]]
        names = Counter((state.st_dev, state.st_ino) for state in states)
        sizes = {(state.st_dev, state.st_ino): state for state in states}
        return sum(state.st_size for inode, state in sizes.items() if names[inode] >= state.st_nlink)

    def _remove(self, path: Path) -> None:
        """Remove a file or folder; a folder is renamed first, so that a kill leaves none that looks whole.

        Raises:
            OSError: it cannot be removed.
            RunInUseError: it is a run, or a part of one, that another machine works on, or has worked on meanwhile.
        """
        run = next((each for each in (path, *path.parents) if each.parent == self._runs and _kind_of_run(each)), None)
        with Lease.of_folder(run) if run else contextlib.nullcontext():
            if run == path and _kind_of_run(path) != self.going[path]:
                raise RunInUseError(f"{path}: another process has worked on it meanwhile")
            if path.is_symlink() or not path.is_dir():
                path.unlink()
                return
            doomed = path if path.name.endswith(PARTIAL) else path.with_name(f".{path.name}{PARTIAL}")
            path.rename(doomed)
            shutil.rmtree(doomed)


def _kind_of_run(path: Path) -> Kind | None:
    """Return the kind of a run folder; None: it is none, or a link to one."""
    try:
        is_run = not path.is_symlink() and any((path / name).exists() for name in OF_RUNS)
    except OSError:  # it cannot be read
        is_run = False
    if not is_run or path.name.endswith(PARTIAL):
        return None
    if has_ended(path):
        return Kind.ENDED
    return Kind.INTERRUPTED if _newest(path) else Kind.BEGUN


def _newest(run: Path) -> str:
    newest = Checkpoints.newest_in(run / "checkpoints")
    return newest.name if newest else ""


def _with_parents(paths: Iterable[Path]) -> set[Path]:
    return {parent for path in paths for parent in (path, *path.parents)}


def _files_in(path: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Yield name and state of each file in a folder, or of a file; links are not followed.

    Raises:
        OSError: a folder cannot be read.
    """

    def fail(error: OSError) -> None:
        raise error

    if path.is_symlink() or not path.is_dir():
        yield path.name, path.lstat()
        return
    for parent, _, names in os.walk(path, onerror=fail):
        for name in names:
            yield name, os.lstat(f"{parent}/{name}")


def _last_use(path: Path, files: list[tuple[str, os.stat_result]]) -> float:
    """Return when a file of a path was last read or written, in seconds since 1970, as far as it tells of the path."""
    own = [state for name, state in files if state.st_nlink == 1 and name != READ_BY_ALL]
    states = own or [state for _, state in files] or [path.lstat()]
    return max(max(state.st_atime, state.st_mtime) for state in states)


def _partials_in(folder: Path) -> Iterator[Path]:
    for parent, folders, names in os.walk(folder):
        yield from (Path(parent, name) for name in (*folders, *names) if name.endswith(PARTIAL))
        folders[:] = [name for name in folders if not name.endswith(PARTIAL)]
