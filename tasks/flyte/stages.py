"""Provides what all Flyte tasks of this project share: types of files, caching, decks and summaries."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from functools import partial, wraps
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import pyarrow as pa
from flytekit import Cache, Deck, FlyteContextManager, HashMethod, current_context, dynamic, task
from flytekit.exceptions.user import FlyteRecoverableException
from flytekit.types.directory import FlyteDirectory
from flytekit.types.file import FlyteFile

from tasks.config.cache_keys import result_options
from tasks.config.loading import Config
from tasks.failures import describe_error, find_infrastructure_cause
from tasks.flyte import patches
from tasks.flyte.cache_policy import BACKENDS_ALONE, CodeDigest
from tasks.flyte.lost_outputs import opens
from tasks.flyte.registration import check_code, make_options
from tasks.flyte.run_names import run_id
from tasks.lineage.code_digest import code_digest
from tasks.machine.image import image
from tasks.machine.memory_limit import MemoryLimitError, find_shortage, watch
from tasks.machine.quiet import silence_libraries
from tasks.machine.resources import Machine, process_cores
from tasks.storage.addresses import read_digest
from tasks.storage.locations import resolve_address, resolve_folder
from tasks.tables.content_digest import file_digest, read_claimed_digest
from tasks.tables.parquet import add_user_columns, read_batches, read_columns, read_metadata, read_table, write_batches
from tasks.tables.schemas import StageSummary

silence_libraries()
patches.install()


@opens
def content_digest(value: Any) -> str:
    """Return the content digest of a Flyte file or folder. Downloads a remote one that has no stored digest."""
    address, access = str(value.remote_source or value.path), FlyteContextManager.current_context().file_access
    if not access.is_remote(address):
        return file_digest(address)
    if digest := read_claimed_digest(access.get_filesystem_for_path(address), address):
        return digest
    if value.remote_source:
        return file_digest(value.download())
    # A value from the command line, for which no local copy is kept.
    with tempfile.TemporaryDirectory() as folder:
        copy = str(Path(folder) / "copy")
        access.get_data(address, copy, is_multipart=isinstance(value, FlyteDirectory))
        return file_digest(copy)


@opens
def read_stored_digest(value: Any) -> str:
    """Return the content digest of a Flyte file or folder without downloading it.

    For a remote one without a stored digest, it is a digest of the names and checksums reported by the storage.
    """
    address, access = str(value.remote_source or value.path), FlyteContextManager.current_context().file_access
    if not access.is_remote(address):
        return file_digest(address)
    system = access.get_filesystem_for_path(address)
    if digest := read_claimed_digest(system, address):
        return digest
    root = system._strip_protocol(address)
    return read_digest(system, {path.removeprefix(root): path for path in system.find(address)})


@opens
def read_footer(value: Any) -> dict[str, Any]:
    """Return the metadata in a table's footer (see `tasks.tables.parquet.write_table`), without reading its rows."""
    address, access = str(value.remote_source or value.path), FlyteContextManager.current_context().file_access
    with access.get_filesystem_for_path(address).open(address, "rb") as file:
        return read_metadata(file)


@opens
def read_members(folder: Any, names: Iterable[str]) -> dict[str, str]:
    """Return the texts of the files `names` in a Flyte folder, as far as they exist, without reading other files."""
    address, access = str(folder.remote_source or folder.path), FlyteContextManager.current_context().file_access
    system = access.get_filesystem_for_path(address)
    paths = {name: f"{address.rstrip('/')}/{name}" for name in names}
    return {name: system.cat_file(path).decode() for name, path in paths.items() if system.exists(path)}


def config_digest(config: Config) -> str:
    """Return the digest of the options of a configuration that change results (`result_options`)."""
    return hashlib.sha256(json.dumps(result_options(config), sort_keys=True).encode()).hexdigest()


RESULT = HashMethod(config_digest)
"""Annotation of a configuration that a stage takes or returns. Its run-time options are not part of cache keys."""

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

    Parquet = Html = JsonLines = HandedTable = FlyteFile
    Folder = HandedFolder = FlyteDirectory
else:
    # Content is hashed instead of addresses, so that a stage hits its cache if an earlier stage ran again with the same
    # result, or if a file on the command line equals the output of an earlier run.
    Parquet = Annotated[FlyteFile[TypeVar("parquet")], HashMethod(content_digest)]
    Html = Annotated[FlyteFile[TypeVar("html")], HashMethod(content_digest)]
    JsonLines = Annotated[FlyteFile[TypeVar("jsonl")], HashMethod(content_digest)]
    Folder = Annotated[FlyteDirectory, HashMethod(content_digest)]
    # The same types for intermediate stages, which must not download anything for the hash (`tasks.inputs.handed_on`).
    HandedFolder = Annotated[FlyteDirectory, HashMethod(read_stored_digest)]
    HandedTable = Annotated[FlyteFile[TypeVar("parquet")], HashMethod(read_stored_digest)]


def _convert_failures(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a task's function to raise infrastructure failures as the error that makes Flyte retry.

    Other errors are unchanged. The function refuses to run in a pod whose code is not the registered code.
    """

    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        check_code(function.__module__)
        try:
            return function(*args, **kwargs)
        except FlyteRecoverableException as error:
            raise make_recoverable(error) from error.__cause__
        except Exception as error:
            if find_infrastructure_cause(error) is None:
                raise
            raise make_recoverable(error) from error

    return run


def make_recoverable(error: Exception) -> FlyteRecoverableException | MemoryLimitError:
    """Return the error that makes Flyte retry a stage that failed with `error`.

    If a process of the stage was killed for memory, or did not start, the message says so, and the second attempt is
    the last.
    """
    message = describe_error(error, sys.maxsize)
    reason = watch().report() or str(find_shortage(error) or "")
    if not reason:
        return FlyteRecoverableException(message)
    message = message if reason in message else f"{message}: {reason}"
    is_first = os.environ.get(ATTEMPT, "0") == "0"
    return (
        FlyteRecoverableException(message)
        if is_first
        else MemoryLimitError(f"{message}; this happened in two attempts")
    )


def stage(
    function: Callable[..., Any] | None = None,
    *,
    retries: int = 2,
    ignored_code: tuple[str, ...] = (),
    ignored_inputs: tuple[str, ...] = (),
    **given: Any,
) -> Any:
    """Declare a task whose result is cached as long as its inputs and all the code it depends on stay the same.

    On a cluster, Flyte retries it after infrastructure failures (`tasks.failures`). `ignored_code` names packages whose
    code does not affect the result. They are not part of the cache version. `ignored_inputs` affect how the stage runs
    but not its result. They are not part of the cache key.
    """
    if function is None:
        return partial(stage, retries=retries, ignored_code=ignored_code, ignored_inputs=ignored_inputs, **given)
    policy = Cache(policies=[CodeDigest(ignored_code)], serialize=True, ignored_inputs=ignored_inputs)
    return uncached_stage(function, cache=policy, retries=retries, **given)


def uncached_stage(function: Callable[..., Any] | None = None, *, make: Callable[..., Any] = task, **given: Any) -> Any:
    """Declare an uncached task, because it depends on more than its inputs, such as files or the run itself."""
    if function is None:
        return partial(uncached_stage, make=make, **given)
    return make(_convert_failures(function), **make_options(function.__module__), **given)


def cached_by_backends(
    function: Callable[..., Any] | None = None, *, make: Callable[..., Any] = task, **given: Any
) -> Any:
    """Declare a task that backends cache like a stage, but that always runs in local runs.

    It returns the outputs of other stages. The local cache would still refer to their files after they were deleted,
    and the stages would not make them again.
    """
    if function is None:
        return partial(cached_by_backends, make=make, **given)
    version = f"{BACKENDS_ALONE}{code_digest(function.__module__)}"
    return uncached_stage(function, make=make, cache=Cache(version=version), **given)


composed = partial(cached_by_backends, make=dynamic)
"""Declare a dynamic task, which composes stages once its inputs are known, and is one node in the graph.

It starts only cached stages and reads only its inputs, to which preflight has added the digests of everything they
name.
"""

uncached_composed = partial(uncached_stage, make=dynamic)
"""Declare a dynamic task that is never cached, such as one that starts executions."""


shown_stage = partial(stage, enable_deck=True, deck_fields=())
"""Declare a stage whose deck contains only the stage's own page. The console already lists inputs and outputs."""


@opens
def to_local(value: Any) -> Path:
    """Return the local path of a Flyte file or directory, and download it if it is remote."""
    return Path(value.download() if value.remote_source else value.path)


def make_scratch_path(name: str) -> Path:
    """Return a new path called `name` in the task's working directory, for an output."""
    return Path(tempfile.mkdtemp(dir=current_context().working_directory)) / name


def read_input_schema(file: FlyteFile, schema: pa.Schema) -> pa.Schema:
    """Return `schema` with the user's additional columns of the table in `file` (`add_user_columns`)."""
    return add_user_columns(schema, read_columns(to_local(file)))


def read_input(file: FlyteFile, schema: pa.Schema) -> pa.Table:
    """Read an input table of a stage (`tasks.tables.parquet.read_table`)."""
    return read_table(to_local(file), schema)


def read_input_batches(file: FlyteFile, schema: pa.Schema) -> Iterator[pa.Table]:
    """Read an input table of a stage in batches (`tasks.tables.parquet.read_batches`)."""
    return read_batches(to_local(file), schema)


def read_all_batches(files: Iterable[FlyteFile], schema: pa.Schema) -> Iterator[pa.Table]:
    """Read several input tables of a stage one after another, in batches."""
    return chain.from_iterable(read_input_batches(file, schema) for file in files)


def write_output(
    name: str,
    tables: pa.Table | Iterable[pa.Table],
    schema: pa.Schema,
    lineage: Mapping[str, Any],
    last: Callable[[], Mapping[str, Any]] = dict,
) -> FlyteFile:
    """Write a table, or the batches of a table, as an output of the stage.

    Args:
        name: name of the file.
        tables: the whole table, or its batches in order.
        schema: the columns of the table.
        lineage: the inputs and options that it was made from (`tasks.lineage.provenance.made_from`), for its footer.
        last: returns additional metadata that is only known after all batches.
    """
    parts = [tables] if isinstance(tables, pa.Table) else tables
    return FlyteFile(str(write_batches(make_scratch_path(name), parts, schema, lineage, last)))


def make_output_folder(folder: Path) -> FlyteDirectory:
    """Return a folder as an output of the stage. Its address on blob storage ends in its name, as for a file."""
    context = FlyteContextManager.current_context()
    if context.execution_state is None or context.execution_state.is_local_execution():
        return FlyteDirectory(str(folder))
    address = context.file_access.get_random_remote_directory()
    return FlyteDirectory(str(folder), remote_directory=f"{address}/{folder.name}")


def find_storage_location(name: str) -> tuple[AbstractFileSystem, str]:
    """Return the file system that stores `name` (`tasks.storage.locations`), and the path or address there."""
    access = FlyteContextManager.current_context().file_access
    location = resolve_address(name, access.raw_output_prefix) or str(resolve_folder(name))
    return access.get_filesystem_for_path(location), location


class Stopwatch:
    """Measures the time of a stage, and creates the stage's summary at its end."""

    def __init__(self, stage: str) -> None:
        self._stage = stage
        self._started_at = datetime.now(UTC)
        self._started = time.perf_counter()

    def summary(self, headline: str, *, before: float = 0.0, on: Machine | None = None, **facts: Any) -> StageSummary:
        """Return the summary of the stage up to now.

        Args:
            headline: one human-readable sentence about the result.
            before: time spent by earlier attempts at the same work, seconds.
            on: the machine or cluster it ran on. If None, the cores of this process.
            facts: named values for the report and for programs.
        """
        machine = on or process_cores()
        return StageSummary(
            stage=self._stage,
            started_at=self._started_at,
            seconds=before + time.perf_counter() - self._started,
            headline=headline,
            facts=facts,
            run=run_id(),
            image=image(),
            cores=machine.cores,
            gpus=machine.gpus,
        )


def show(name: str, html: str) -> None:
    """Put `html` on the task's deck, and publish the current deck. Items of a mapped task have no deck."""
    if not current_context().enable_deck:
        return
    decks = current_context().decks
    decks[:] = [deck for deck in decks if deck.name != name]  # decks can only be appended to, so the deck is replaced
    Deck(name, html)
    with contextlib.suppress(FileNotFoundError):
        Deck.publish()


@contextlib.contextmanager
def progress(description: str, total: int, note: str = "") -> Iterator[Callable[..., None]]:
    """Show the progress and remaining time of a stage. Yields `advance` (`tasks.machine.progress.track_progress`)."""
    from tasks.machine.progress import track_progress

    with track_progress(description, total, note) as advance:
        yield advance


ATTEMPT = "FLYTE_ATTEMPT_NUMBER"
"""Environment variable of a pod with the number of its attempt, starting at 0."""

DECK_SECONDS = 30.0
"""Minimum interval between two renderings of a live deck, seconds."""


@contextlib.contextmanager
def sampling_progress(
    description: str, prompts: pa.Table, responses: int, note: str
) -> Iterator[tuple[Callable[[Mapping[str, Any]], None], Callable[[str], None]]]:
    """Show the progress of a stage that samples, with a live deck of the scores so far.

    Args:
        description: the stage and its unit of work.
        prompts: a table of `PROMPTS`.
        responses: total number of responses to all prompts.
        note: what happens until the first response, such as `the engine is loading`.

    Yields:
        A function to call with every graded row, and a function to call with a text that ends the last line.
    """
    from tasks import charts

    columns = (prompts.column(name).to_pylist() for name in ("prompt_id", "domain"))
    domain_of = dict(zip(*columns, strict=True))
    scores: dict[str, list[float]] = defaultdict(list)
    drawn_at, unjudged = time.monotonic(), 0

    with progress(description, responses, note) as advance:

        def judged(row: Mapping[str, Any]) -> None:
            nonlocal drawn_at, unjudged
            if row["score"] is None:
                unjudged += 1
            else:
                scores[domain_of[row["prompt_id"]]].append(row["score"])
            count = sum(map(len, scores.values()))
            mean = sum(map(sum, scores.values())) / max(count, 1)
            advance(note=f"mean score {mean:.2f}")
            if time.monotonic() - drawn_at >= DECK_SECONDS:
                drawn_at = time.monotonic()
                figures = {"scored so far": f"{count:,} of {responses:,}", "mean score": f"{mean:.1%}"}
                show(description, charts.page(figures, charts.render_rates(scores, unjudged)))

        yield judged, lambda text: advance(0, note=text)
