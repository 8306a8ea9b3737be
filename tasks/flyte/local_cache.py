"""Keep the cache of this machine right: a result whose files are gone or have changed is computed again.

A cached result names files; others may delete them, write to them, or lose them in a crash. Their sizes and times when
the result was cached are therefore part of its entry, and so is the time of its last use. A database that is damaged is
set aside, and an empty one made.
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
"""Key of the entry with the states of the files of a result, by that of the result; its tag is the time of the result's
last use, in seconds since 1970."""

DAMAGED = "-damaged-"
"""Text between the name of the cache and the time in the name of a damaged one that was set aside."""

logger = logging.getLogger(__name__)


class CacheError(MistakeError):
    """The cache of this machine cannot be written or read."""


def cache_folder() -> Path:
    """Return the folder of the cache of this machine, which lies beside the outputs that it points at."""
    return Path(local_cache.CACHE_LOCATION)


def miss_changed_results(get: Callable[..., LiteralMap | None]) -> staticmethod[..., LiteralMap | None]:
    """Make a look-up a miss if a file or folder of the cached result is gone, or is not as it was.

    The look-up of a task that only backends cache is always a miss.
    """

    @wraps(get)
    def unchanged(task_name: str, cache_version: str, *args: Any) -> LiteralMap | None:
        if cache_version.startswith(BACKENDS_ALONE):
            return None
        cached: LiteralMap | None = _working(get, task_name, cache_version, *args)
        if cached is None:
            return None
        key = local_cache._calculate_cache_key(task_name, cache_version, *args)
        states_then = _working(local_cache.LocalTaskCache._cache.get, STATES.format(key=key))
        states = _states(cached)
        if None in states or states_then != json.dumps(states):
            return None
        _set_states(key, states)  # with the time of this use
        return cached

    return staticmethod(unchanged)


def keep_file_states(set_result: Callable[..., None]) -> staticmethod[..., None]:
    """Keep the states of a result's files with it."""

    @wraps(set_result)
    def keep(
        task_name: str, cache_version: str, inputs: LiteralMap, ignored: tuple[str, ...], value: LiteralMap
    ) -> None:
        key = local_cache._calculate_cache_key(task_name, cache_version, inputs, ignored)
        _working(set_result, task_name, cache_version, inputs, ignored, value)
        _set_states(key, _states(value))

    return staticmethod(keep)


def _set_states(key: str, states: list[Any]) -> None:
    with_time = partial(local_cache.LocalTaskCache._cache.set, tag=time.time())
    _working(with_time, STATES.format(key=key), json.dumps(states))


def replace_damaged_cache(initialize: Callable[[], None]) -> staticmethod[[], None]:
    """Set a database aside that is damaged, and make an empty one."""

    @wraps(initialize)
    def open_cache() -> None:
        try:
            initialize()
        except sqlite3.DatabaseError as error:
            if not _is_damage(error):
                raise _unusable(error) from None
            folder = cache_folder()
            aside = folder.with_name(f"{folder.name}{DAMAGED}{datetime.now(UTC):%Y%m%d-%H%M%S}")
            folder.rename(aside)
            logger.warning(
                "the cache %s is damaged (%s) and was moved to %s: stages are computed again", folder, error, aside
            )
            initialize()

    return staticmethod(open_cache)


class CachedResult(NamedTuple):
    """A result in the cache of this machine.

    Attributes:
        key: of its entry.
        paths: its files and folders on this machine; None for an entry that cannot be read.
        used: time of its last use in seconds since 1970; 0 for one that is never used again, as it has no states.
    """

    key: str
    paths: list[Path] | None
    used: float


def cached_results() -> list[CachedResult]:
    """Return all results in the cache of this machine; none if there is no cache.

    Raises:
        CacheError: the cache cannot be read.
    """
    if not (cache_folder() / "cache.db").is_file():
        return []
    with closing(_opened()) as cache:
        return _working(lambda: list(_results(cache)))


def forget(keys: Iterable[str]) -> None:
    """Remove results from the cache, so that they are computed again; their files are left.

    Raises:
        CacheError: the cache cannot be written.
    """
    with closing(_opened()) as cache:
        for key in keys:
            _working(cache.delete, key)
            _working(cache.delete, STATES.format(key=key))


def _opened() -> Cache:
    from diskcache import Cache

    cache: Cache = _working(Cache, str(cache_folder()))
    return cache


def _results(cache: Cache) -> Iterator[CachedResult]:
    keys = [key for key in cache.iterkeys() if isinstance(key, str)]
    ending = STATES.format(key="")
    for key in keys:
        if not key.endswith(ending):
            _, used = cache.get(STATES.format(key=key), tag=True)
            yield CachedResult(key, _paths_in(cache.get(key)), used if isinstance(used, float) else 0.0)


def _paths_in(entry: Any) -> list[Path] | None:
    """Return the files and folders that the entry of a result names; None: it is no result."""
    message = literals_pb2.LiteralMap()
    try:
        message.ParseFromString(entry)
    except (TypeError, DecodeError):
        return None
    return [path.resolve() for path in _paths(LiteralMap.from_flyte_idl(message))]


def _working(call: Callable[..., Any], *args: Any) -> Any:
    """Return the result of a call of the database.

    Raises:
        CacheError: the database is damaged, or the system does not let it be used: a full disk, say.
    """
    try:
        return call(*args)
    except sqlite3.DatabaseError as error:
        if not _is_damage(error):
            raise _unusable(error) from None
        folder = cache_folder()
        raise CacheError(
            f"the cache {folder} is damaged ({error}): delete that folder, and stages are computed again"
        ) from None


def _is_damage(error: sqlite3.DatabaseError) -> bool:
    """Return whether an error is of a damaged database; its subclasses are of locks, of the disk and of permissions."""
    return type(error) is sqlite3.DatabaseError


def _unusable(error: sqlite3.DatabaseError) -> CacheError:
    folder = cache_folder()
    existing = next(path for path in (folder, *folder.parents) if path.is_dir())
    free = shutil.disk_usage(existing).free
    return CacheError(
        f"the cache {folder} cannot be used ({error}; {free / 1e6:,.0f} MB are free): free some disk, correct its "
        "permissions, or end the run that has locked it, and the same command goes on"
    )


def _states(result: LiteralMap) -> list[Any]:
    """Return size and time of change of each file of a result on this machine, and None for a file that is gone."""
    files = [file for path in _paths(result) for file in (sorted(path.rglob("*")) if path.is_dir() else [path])]
    return [_state(file) for file in files if not file.is_dir()]


def _paths(result: LiteralMap) -> list[Path]:
    """Return the files and folders of a result on this machine."""
    is_remote = FlyteContextManager.current_context().file_access.is_remote
    literals = [literal for _, literal in sorted(result.literals.items())]
    return [Path(address) for each in literals for address in _addresses(each) if not is_remote(address)]


def _state(file: Path) -> tuple[str, int, int] | None:
    try:
        state = file.stat()
    except OSError:
        return None
    return file.name, state.st_size, state.st_mtime_ns


def _addresses(literal: Literal) -> Iterator[str]:
    """Yield the addresses of the files and folders of an output."""
    if literal.collection:
        for item in literal.collection.literals:
            yield from _addresses(item)
    elif literal.scalar and literal.scalar.blob:
        yield literal.scalar.blob.uri
