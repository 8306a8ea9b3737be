"""Implements `rlvr prune`, which removes files of local runs that are no longer needed.

    leftovers of processes, damaged caches        removed regardless of age: folders of stages that no cached result
                                                  refers to, and partial files of killed processes
    cached results with their entries, sampled    removed if unused for some days; a run computes them again if needed
    responses, prepared models
    runs that have ended                          the same, unless a cached result that is kept refers to their files
    results of runs                               the same, except `latest`; experiments are kept
    runs without a checkpoint, tracebacks         the same
    an interrupted run                            kept unless it is named, with everything it may need to resume:
                                                  cached results, responses, models, runs that have ended, results

A plan is made and executed while no run uses the folders (`outputs.alone`). Machines may share run folders, so a run
folder is only removed while holding its lease. A file with more hard links frees no space, and its access time does not
count as use.
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

from tasks.config.loading import check_choice
from tasks.failures import one_line
from tasks.flyte import patches
from tasks.flyte.local_cache import DAMAGED, CachedResult, cache_folder, forget, list_cached_results
from tasks.machine.error_report import FOLDER as TRACEBACKS
from tasks.storage.durable import PARTIAL
from tasks.storage.lease import Lease, RunInUseError, find_holder
from tasks.storage.locations import outputs_folder, resolve_folder
from tasks.storage.outputs import USER_SPACE, format_size
from tasks.storage.run_folders import PUBLISHED
from tasks.training.records.checkpoint import Checkpoints
from tasks.training.records.ending import has_ended

OF_RUNS = {"lease.json", "model_check.json", "ledger.jsonl", "checkpoints"}
"""Names that identify a run folder, which contains at least one of them. Folders of results contain none."""
UNPUBLISHED = re.compile(rf"\.(latest|{PUBLISHED.pattern})-\d+")
"""Pattern of the names of results whose publication was interrupted (`reporting.publication`)."""
READ_BY_ALL = "summary.json"
"""Name of the results file that every run reads, for the page of all runs."""


class Kind(StrEnum):
    """A kind of removable file or folder, as named in the table."""

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
    """A plan of what to remove. It is made and executed within `outputs.alone`.

    Args:
        unused_since: time in seconds since 1970. Anything used since then is kept.
        named: names of runs to remove in any case.

    Attributes:
        going: paths to remove, with their kinds.
        sentences: messages about what is kept, and about what is lost with a named run.

    Raises:
        SpecError: there is no run of this name.
        RunInUseError: another machine is working on a named run.
        CacheError: the local cache cannot be read.
    """

    def __init__(self, unused_since: float, named: Iterable[str] = ()) -> None:
        patches.install()  # sets the folder of this project's cache
        self.going: dict[Path, Kind] = {}
        self.sentences: list[str] = []
        self._files: dict[Path, list[os.stat_result]] = {}
        self._runs, self._named, self._unused_since = resolve_folder("").resolve(), set(named), unused_since
        runs = {path: kind for path in self._entries(self._runs) if (kind := _find_kind(path))}
        for name in sorted(self._named):
            check_choice(name, (path.name for path in runs), str(self._runs), "run")
        resumable = [path for path, kind in runs.items() if kind == Kind.INTERRUPTED and path.name not in self._named]
        self._unneeded_since = -math.inf if resumable else unused_since
        if resumable:
            names = ", ".join(f"{path.name} ({_find_newest(path)})" for path in resumable)
            self.sentences.append(
                f"interrupted runs stay, and all that their resume may need: {names}; --run NAME removes one"
            )
        results = list_cached_results()
        staying = [path for result in results if self._should_stay(result) for path in result.paths or ()]
        expired = [path for result in results if not self._should_stay(result) for path in result.paths or ()]
        self._staying, self._needed, self._expired = set(staying), _add_parents(staying), _add_parents(expired)
        self._add_stages(cache_folder().parent.resolve())
        self._add_runs(runs)
        self._add_results(outputs_folder().resolve())
        gone = self.going.keys()
        self._keys = [result.key for result in results if gone & _add_parents(result.paths or ())]
        if unreadable := [result.key for result in results if result.paths is None]:
            self.sentences.append(f"entries of the cache that cannot be read, and stay: {', '.join(unreadable)}")

    def lines(self) -> Iterator[str]:
        """Yield the lines of a table of what will be removed: the kinds, the numbers, and the space freed."""
        if not self.going:
            yield "nothing can go"
            return
        paths: list[Path] = []
        yield f"{'':36}{'how many':>8}{'size':>10}"
        for kind in Kind:
            if of_kind := [path for path in self.going if self.going[path] == kind]:
                before = self._count_freed_bytes(paths)
                paths += of_kind
                yield f"{kind:36}{len(of_kind):>8,}{format_size(self._count_freed_bytes(paths) - before):>10}"
        yield f"{'in all':36}{len(paths):>8,}{format_size(self._count_freed_bytes(paths)):>10}"

    def remove(self) -> int:
        """Remove the paths in `going` and their cache entries, and return the number of bytes freed.

        Paths that cannot be removed are kept, with a message in `sentences`.

        Raises:
            CacheError: the local cache cannot be written. In that case nothing was removed.
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
        return self._count_freed_bytes(removed)

    def _should_stay(self, result: CachedResult) -> bool:
        going = {self._runs / name for name in self._named}
        is_lost = bool(going & _add_parents(result.paths or ()))
        return result.used > 0 and result.used >= self._unneeded_since and not is_lost

    def _entries(self, folder: Path) -> list[Path]:
        """Return the entries of a folder, or none if the path is not a folder or is a link."""
        try:
            return sorted(folder.iterdir()) if folder.is_dir() and not folder.is_symlink() else []
        except OSError as error:
            self.sentences.append(f"{folder} cannot be read, and stays: {error.strerror}")
            return []

    def _add(self, kind: Kind, path: Path, unused_since: float = math.inf) -> None:
        """Add a path to `going` if it was not used since a time and is not needed by a cached result that is kept.

        Partial files of killed processes are added regardless of their age.
        """
        if path.name.endswith(PARTIAL):
            kind, unused_since = Kind.LEFT, math.inf
        try:
            files = list(_list_files(path))
        except OSError as error:
            self.sentences.append(f"{path} cannot be read, and stays: {error.strerror}")
            return
        if path not in self._needed and _find_last_use(path, files) < unused_since:
            self.going[path] = kind
            self._files[path] = [state for _, state in files]

    def _add_stages(self, sandbox: Path) -> None:
        for path in self._entries(sandbox):
            if path.name == USER_SPACE:  # per process, created when flytekit is imported
                for inner in self._entries(path):
                    self._add_unneeded(inner)
            elif path.name.startswith("user_space"):
                self._add_unneeded(path)
            elif path.name.startswith(f"cache{DAMAGED}") or path.name.endswith(PARTIAL):
                self._add(Kind.CACHE, path)

    def _add_unneeded(self, path: Path) -> None:
        """Add a path of a stage, or only its parts that no cached result needs."""
        if path not in self._needed:
            self._add(Kind.STAGE if path in self._expired else Kind.LEFT, path)
        elif path not in self._staying:
            for inner in self._entries(path):
                self._add_unneeded(inner)

    def _add_runs(self, runs: dict[Path, Kind]) -> None:
        """Add the removable contents of the folder of runs. `runs` are its run folders."""
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
                self.sentences.append(f"{path} is not a run folder, and stays")

    def _add_run(self, path: Path, kind: Kind) -> None:
        is_named = path.name in self._named
        if holder := find_holder(path):
            if is_named:
                raise RunInUseError(f"{path}: {holder} works on this run; stop it, or wait until it ends")
            self.sentences.append(f"{path} stays: {holder} works on it")
        elif is_named:
            if kind == Kind.INTERRUPTED:
                self.sentences.append(f"{path.name} was interrupted: without its {_find_newest(path)} it starts again")
            self._add(kind, path)
        else:
            if kind != Kind.INTERRUPTED:
                self._add(kind, path, self._unused_since if kind == Kind.BEGUN else self._unneeded_since)
            for inner in _find_partials(path) if path not in self.going else ():
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

    def _count_freed_bytes(self, paths: Iterable[Path]) -> int:
        """Return the bytes freed by removing paths. Only files whose hard links are all removed count."""
        states = [state for path in paths for state in self._files[path]]
        names = Counter((state.st_dev, state.st_ino) for state in states)
        sizes = {(state.st_dev, state.st_ino): state for state in states}
        return sum(state.st_size for inode, state in sizes.items() if names[inode] >= state.st_nlink)

    def _remove(self, path: Path) -> None:
        """Remove a file or folder. A folder is renamed first, so that a kill does not leave one that looks complete.

        Raises:
            OSError: it cannot be removed.
            RunInUseError: it belongs to a run that another machine is working on, or has worked on in the meantime.
        """
        run = next((each for each in (path, *path.parents) if each.parent == self._runs and _find_kind(each)), None)
        with Lease.from_folder(run) if run else contextlib.nullcontext():
            if run == path and _find_kind(path) != self.going[path]:
                raise RunInUseError(f"{path}: another process has worked on it meanwhile")
            if path.is_symlink() or not path.is_dir():
                path.unlink()
                return
            doomed = path if path.name.endswith(PARTIAL) else path.with_name(f".{path.name}{PARTIAL}")
            path.rename(doomed)
            shutil.rmtree(doomed)


def _find_kind(path: Path) -> Kind | None:
    """Return the kind of a run folder, or None if it is not a run folder or is a link."""
    try:
        is_run = not path.is_symlink() and any((path / name).exists() for name in OF_RUNS)
    except OSError:  # unreadable
        is_run = False
    if not is_run or path.name.endswith(PARTIAL):
        return None
    if has_ended(path):
        return Kind.ENDED
    return Kind.INTERRUPTED if _find_newest(path) else Kind.BEGUN


def _find_newest(run: Path) -> str:
    newest = Checkpoints.find_newest_below(run / "checkpoints")
    return newest.name if newest else ""


def _add_parents(paths: Iterable[Path]) -> set[Path]:
    return {parent for path in paths for parent in (path, *path.parents)}


def _list_files(path: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Yield the name and `stat` result of each file in a folder, or of a single file. Links are not followed.

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


def _find_last_use(path: Path, files: list[tuple[str, os.stat_result]]) -> float:
    """Return the time of the last read or write of a path's files, in seconds since 1970.

    Hard-linked files and `READ_BY_ALL`, which are also read or written for other reasons, count only if there are no
    other files.
    """
    own = [state for name, state in files if state.st_nlink == 1 and name != READ_BY_ALL]
    states = own or [state for _, state in files] or [path.lstat()]
    return max(max(state.st_atime, state.st_mtime) for state in states)


def _find_partials(folder: Path) -> Iterator[Path]:
    for parent, folders, names in os.walk(folder):
        yield from (Path(parent, name) for name in (*folders, *names) if name.endswith(PARTIAL))
        folders[:] = [name for name in folders if not name.endswith(PARTIAL)]
