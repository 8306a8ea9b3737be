"""Validates the local cache: a result whose files are gone or have changed is computed again.

A cached result refers to files, which may be deleted, changed, or lost in a crash. Their sizes and modification times
are therefore stored in the cache entry, together with the time of its last use. A damaged database is renamed and
replaced by an empty one.
"""

from __future__ import annotations

import json
import logging
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from flyteidl.core import literals_pb2
from flytekit import FlyteContextManager
from flytekit.core import local_cache
from flytekit.models.literals import Literal, LiteralMap
from google.protobuf.message import DecodeError

from tasks.failures import MistakeError
from tasks.flyte.cache_policy import BACKENDS_ALONE

if TYPE_CHECKING:
    from diskcache import Cache

STATES = "{key} states"
"""Key of the entry with the states of a result's files, derived from the key of the result. Its tag is the time of the
result's last use, in seconds since 1970."""

DAMAGED = "-damaged-"
"""Text between the name of the cache and the time in the name of a damaged database."""

logger = logging.getLogger(__name__)


class CacheError(MistakeError):
    """Raised if the local cache cannot be written or read."""


def cache_folder() -> Path:
    """Return the folder of the local cache, which is next to the outputs that it refers to."""
    return Path(local_cache.CACHE_LOCATION)


def miss_changed_results(get: Callable[..., LiteralMap | None]) -> staticmethod[..., LiteralMap | None]:
    """Make a cache look-up a miss if a file or folder of the cached result is gone or has changed.

    The look-up is always a miss for a task that only backends cache.
    """

    @wraps(get)
    def get_unchanged(task_name: str, cache_version: str, *args: Any) -> LiteralMap | None:
        if cache_version.startswith(BACKENDS_ALONE):  # flytekit has no such option of a task
            return None
        cached: LiteralMap | None = _call_cache(get, task_name, cache_version, *args)
        if cached is None:
            return None
        # Flytekit's own key, although private: the states must be found by the key of their result.
        key = local_cache._calculate_cache_key(task_name, cache_version, *args)
        states_then = _call_cache(local_cache.LocalTaskCache._cache.get, STATES.format(key=key))
        states = _read_states(cached)
        # Compared as texts, because JSON would return the tuples of `states` as lists.
        if None in states or states_then != json.dumps(states):
            return None
        _set_states(key, states)  # updates the time of the last use
        return cached

    return staticmethod(get_unchanged)


def keep_file_states(set_result: Callable[..., None]) -> staticmethod[..., None]:
    """Store the states of a result's files with the result."""

    @wraps(set_result)
    def keep(
        task_name: str, cache_version: str, inputs: LiteralMap, ignored: tuple[str, ...], value: LiteralMap
    ) -> None:
        key = local_cache._calculate_cache_key(task_name, cache_version, inputs, ignored)
        _call_cache(set_result, task_name, cache_version, inputs, ignored, value)
        # After the result: if the process is killed between the two, a result without states is a miss.
        _set_states(key, _read_states(value))

    return staticmethod(keep)


def _set_states(key: str, states: list[Any]) -> None:
    # The time is the entry's tag, so that a use of the result leaves the compared text as it is.
    with_time = partial(local_cache.LocalTaskCache._cache.set, tag=time.time())
    _call_cache(with_time, STATES.format(key=key), json.dumps(states))


def replace_damaged_cache(initialize: Callable[[], None]) -> staticmethod[[], None]:
    """Rename a damaged database, and create an empty one."""

    @wraps(initialize)
    def open_cache() -> None:
        try:
            initialize()
        except sqlite3.DatabaseError as error:
            if not _is_damage(error):
                raise _make_cache_error(error) from None
            folder = cache_folder()
            aside = folder.with_name(f"{folder.name}{DAMAGED}{datetime.now(UTC):%Y%m%d-%H%M%S}")
            folder.rename(aside)  # the whole folder, because SQLite's journal and large values are in files next to it
            logger.warning(
                "the cache %s is damaged (%s) and was moved to %s: stages are computed again", folder, error, aside
            )
            initialize()

    return staticmethod(open_cache)


class CachedResult(NamedTuple):
    """A result in the local cache.

    Attributes:
        key: key of its entry.
        paths: its files and folders on this machine, or None if the entry cannot be read.
        used: time of its last use in seconds since 1970. It is 0 for a result without states, which is never used.
    """

    key: str
    paths: list[Path] | None
    used: float


def list_cached_results() -> list[CachedResult]:
    """Return all results in the local cache, which are none if there is no cache.

    Raises:
        CacheError: the cache cannot be read.
    """
    if not (cache_folder() / "cache.db").is_file():  # opening the cache would create it
        return []
    with closing(_open_cache()) as cache:
        return _call_cache(lambda: list(_list_results(cache)))


def forget(keys: Iterable[str]) -> None:
    """Remove results from the cache, so that they are computed again. Their files are kept.

    Raises:
        CacheError: the cache cannot be written.
    """
    with closing(_open_cache()) as cache:
        for key in keys:
            _call_cache(cache.delete, key)  # the result first: states without a result are never read
            _call_cache(cache.delete, STATES.format(key=key))


def _open_cache() -> Cache:
    from diskcache import Cache

    # Not flytekit's own object, which is opened only when a task runs.
    cache: Cache = _call_cache(Cache, str(cache_folder()))
    return cache


def _list_results(cache: Cache) -> Iterator[CachedResult]:
    keys = [key for key in cache.iterkeys() if isinstance(key, str)]  # other keys are not flytekit's
    ending = STATES.format(key="")
    for key in keys:
        if not key.endswith(ending):
            _, used = cache.get(STATES.format(key=key), tag=True)  # (None, None) without states
            yield CachedResult(key, _read_paths(cache.get(key)), used if isinstance(used, float) else 0.0)


def _read_paths(entry: Any) -> list[Path] | None:
    """Return the files and folders in a cache entry, or None if the entry is not a result."""
    message = literals_pb2.LiteralMap()
    try:
        message.ParseFromString(entry)
    except (TypeError, DecodeError):
        return None
    return [path.resolve() for path in _list_paths(LiteralMap.from_flyte_idl(message))]


def _call_cache(call: Callable[..., Any], *args: Any) -> Any:
    """Return the result of a database call.

    Raises:
        CacheError: the database is damaged or cannot be used, for example because the disk is full.
    """
    try:
        return call(*args)
    except sqlite3.DatabaseError as error:
        if not _is_damage(error):
            raise _make_cache_error(error) from None
        folder = cache_folder()
        raise CacheError(
            f"the cache {folder} is damaged ({error}): delete that folder, and stages are computed again"
        ) from None


def _is_damage(error: sqlite3.DatabaseError) -> bool:
    """Return whether an error means a damaged database. Subclasses mean locks, disk errors and permissions."""
    return type(error) is sqlite3.DatabaseError


def _make_cache_error(error: sqlite3.DatabaseError) -> CacheError:
    folder = cache_folder()
    # The cache's folder may be missing: the disk is that of the nearest folder that exists.
    existing = next(path for path in (folder, *folder.parents) if path.is_dir())
    free = shutil.disk_usage(existing).free
    return CacheError(
        f"the cache {folder} cannot be used ({error}; {free / 1e6:,.0f} MB are free): free some disk, correct its "
        "permissions, or end the run that has locked it, and the same command continues"
    )


def _read_states(result: LiteralMap) -> list[Any]:
    """Return the size and modification time of each local file of a result, and None for a missing file."""
    files = [file for path in _list_paths(result) for file in (sorted(path.rglob("*")) if path.is_dir() else [path])]
    # A missing file is not a folder either, so it is listed with the state None.
    return [_read_state(file) for file in files if not file.is_dir()]


def _list_paths(result: LiteralMap) -> list[Path]:
    """Return the local files and folders of a result."""
    is_remote = FlyteContextManager.current_context().file_access.is_remote
    literals = [literal for _, literal in sorted(result.literals.items())]  # protobuf maps have no fixed order
    return [Path(address) for each in literals for address in _list_addresses(each) if not is_remote(address)]


def _read_state(file: Path) -> tuple[str, int, int] | None:
    try:
        state = file.stat()
    except OSError:
        return None
    return file.name, state.st_size, state.st_mtime_ns


def _list_addresses(literal: Literal) -> Iterator[str]:
    """Yield the addresses of the files and folders of an output."""
    if literal.collection:
        for item in literal.collection.literals:
            yield from _list_addresses(item)
    elif literal.scalar and literal.scalar.blob:
        yield literal.scalar.blob.uri
