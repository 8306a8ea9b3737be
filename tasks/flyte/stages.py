"""What every Flyte task of this project shares: the types of its files, its cache, its deck and its summary."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import pyarrow as pa
from flytekit import Cache, Deck, FlyteContextManager, HashMethod, current_context, dynamic, task
from flytekit.exceptions.user import FlyteRecoverableException
from flytekit.types.directory import FlyteDirectory
from flytekit.types.file import FlyteFile

from tasks.config import Config, result_options
from tasks.failures import cause_in_infrastructure
from tasks.flyte import patches
from tasks.flyte.cache_policy import CodeDigest
from tasks.flyte.registration import check_code, options
from tasks.lineage.provenance import image
from tasks.machine.quiet import silence_libraries
from tasks.machine.resources import Machine, process_cores
from tasks.storage.locations import address_of, folder_of
from tasks.tables.content_digest import claimed, file_digest
from tasks.tables.parquet import columns_of, read_batches, read_metadata, read_table, with_user_columns, write_batches
from tasks.tables.schemas import StageSummary

silence_libraries()
patches.install()


def content_digest(value: Any) -> str:
    """The digest of what a Flyte file or folder holds; a remote one is downloaded only where it has no claim of it."""
    address, access = str(value.remote_source or value.path), FlyteContextManager.current_context().file_access
    if not access.is_remote(address):
        return file_digest(address)
    if digest := claimed(access.get_filesystem_for_path(address), address):
        return digest
    if value.remote_source:
        return file_digest(value.download())
    # As the command line gives it, which has no use for a copy.
    with tempfile.TemporaryDirectory() as folder:
        copy = str(Path(folder) / "copy")
        access.get_data(address, copy, is_multipart=isinstance(value, FlyteDirectory))
        return file_digest(copy)


def footer(value: Any) -> dict[str, Any]:
    """What the writer of a table left in its footer (`tasks.tables.parquet.write_table`); all else is not read."""
    address, access = str(value.remote_source or value.path), FlyteContextManager.current_context().file_access
    with access.get_filesystem_for_path(address).open(address, "rb") as file:
        return read_metadata(file)


def config_digest(config: Config) -> str:
    """The digest of what a result depends on in a configuration (`tasks.config.result_options`)."""
    return hashlib.sha256(json.dumps(result_options(config), sort_keys=True).encode()).hexdigest()


RESULT = HashMethod(config_digest)
"""Annotates a configuration that a stage takes or gives: its run-time options have no part in cache keys."""

RUN_TIME = HashMethod(lambda _: "run-time")
"""Annotates an input on which what a stage gives does not depend, but only how."""

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

    Parquet = Html = JsonLines = FlyteFile
    Folder = FlyteDirectory
else:
    # Hashing content, not addresses, is what lets a stage hit its cache when an earlier one ran again to the same
    # result, and what lets a file given on the command line stand for the output of an earlier run.
    Parquet = Annotated[FlyteFile[TypeVar("parquet")], HashMethod(content_digest)]
    Html = Annotated[FlyteFile[TypeVar("html")], HashMethod(content_digest)]
    JsonLines = Annotated[FlyteFile[TypeVar("jsonl")], HashMethod(content_digest)]
    Folder = Annotated[FlyteDirectory, HashMethod(content_digest)]


def _guarded(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with what the infrastructure did to it raised as what Flyte retries; all else is raised as it is.

    It runs under the code that it was registered with, or not at all.
    """

    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        check_code(function.__module__)
        try:
            return function(*args, **kwargs)
        except FlyteRecoverableException:
            raise
        except Exception as error:
            if (cause := cause_in_infrastructure(error)) is None:
                raise
            raise FlyteRecoverableException(f"{type(cause).__name__}: {cause}") from error

    return run


def stage(
    function: Callable[..., Any] | None = None, *, retries: int = 2, ignored_code: tuple[str, ...] = (), **given: Any
) -> Any:
    """Make a task whose result is cached for as long as its inputs and all code that it depends on stay the same.

    Flyte retries it where the infrastructure failed (`tasks.failures`), on a cluster alone. `ignored_code` names
    packages whose code does not affect the result; they are left out of the cache version.
    """
    if function is None:
        return partial(stage, retries=retries, ignored_code=ignored_code, **given)
    policy = Cache(policies=[CodeDigest(ignored_code)], serialize=True)
    return uncached_stage(function, cache=policy, retries=retries, **given)


def uncached_stage(function: Callable[..., Any] | None = None, *, make: Callable[..., Any] = task, **given: Any) -> Any:
    """A task that runs whenever it is asked for: it looks at the world, or at the run itself."""
    if function is None:
        return partial(uncached_stage, make=make, **given)
    return make(_guarded(function), **options(function.__module__), **given)


composed = partial(uncached_stage, make=dynamic)
"""A dynamic task: stages that are put together where the inputs are known, as one box of the graph."""


shown_stage = partial(stage, enable_deck=True, deck_fields=())
"""A stage with a deck, which holds the stage's own page alone: the console has inputs and outputs beside it."""


def local(value: Any) -> Path:
    """The local path of a Flyte file or directory, downloaded when it is remote."""
    return Path(value.download() if value.remote_source else value.path)


def scratch(name: str) -> Path:
    """A new path called `name` in the task's working directory, for an output."""
    return Path(tempfile.mkdtemp(dir=current_context().working_directory)) / name


def input_schema(file: FlyteFile, schema: pa.Schema) -> pa.Schema:
    """Return `schema` with the columns that users have added to the table in `file` (`with_user_columns`)."""
    return with_user_columns(schema, columns_of(local(file)))


def read_input(file: FlyteFile, schema: pa.Schema) -> pa.Table:
    """Read the table that a stage was given (`tasks.tables.parquet.read_table`)."""
    return read_table(local(file), schema)


def read_input_batches(file: FlyteFile, schema: pa.Schema) -> Iterator[pa.Table]:
    """Read the table that a stage was given in parts (`tasks.tables.parquet.read_batches`)."""
    return read_batches(local(file), schema)


def write_output(
    name: str,
    tables: pa.Table | Iterable[pa.Table],
    schema: pa.Schema,
    lineage: Mapping[str, Any],
    last: Callable[[], Mapping[str, Any]] = dict,
) -> FlyteFile:
    """Write a table, or one that comes in parts, as an output of the stage.

    Args:
        name: of the file.
        tables: all of the table, or its parts in their order.
        schema: the columns of the table.
        lineage: the inputs and options that it was made from (`tasks.lineage.provenance.made_from`), for its footer.
        last: gives further metadata that is known only once all parts were taken.
    """
    parts = [tables] if isinstance(tables, pa.Table) else tables
    return FlyteFile(str(write_batches(scratch(name), parts, schema, lineage, last)))


def storage_location(name: str) -> tuple[AbstractFileSystem, str]:
    """Return the file system that stores `name` (`tasks.storage.locations`), and its path or address there."""
    access = FlyteContextManager.current_context().file_access
    place = address_of(name, access.raw_output_prefix) or str(folder_of(name))
    return access.get_filesystem_for_path(place), place


def run_id() -> str:
    """The name of this run: of the execution on a cluster, of the process on this machine."""
    context = current_context()
    execution = context.execution_id
    if execution is None or execution.project in ("local", ""):
        return f"{os.getpid()}-{context.execution_date:%Y%m%dT%H%M%S}"
    return str(execution.name)


class Stopwatch:
    """Times a stage and turns what it has to say into its summary."""

    def __init__(self, stage: str) -> None:
        self._stage = stage
        self._started_at = datetime.now(UTC)
        self._started = time.perf_counter()

    def summary(self, headline: str, *, before: float = 0.0, on: Machine | None = None, **facts: Any) -> StageSummary:
        """The stage's summary, up to now.

        Args:
            headline: one sentence for people.
            before: what earlier attempts of the same work took, in seconds.
            on: what it ran on; without it, the cores of this process.
            facts: for the report and for programs.
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
    """Put `html` on the task's deck, and publish the deck as it stands so far."""
    decks = current_context().decks
    decks[:] = [deck for deck in decks if deck.name != name]  # a deck can only be appended to: the new one replaces it
    Deck(name, html)
    with contextlib.suppress(FileNotFoundError):
        Deck.publish()


@contextlib.contextmanager
def progress(description: str, total: int) -> Iterator[Callable[..., None]]:
    """Show the progress of a stage and its time left; yields `advance` (`tasks.machine.progress.track_progress`)."""
    from tasks.machine.progress import track_progress

    with track_progress(description, total) as advance:
        yield advance


DECK_SECONDS = 30.0
"""A live deck is drawn at most this often: drawing takes time."""


@contextlib.contextmanager
def sampling_progress(
    description: str, prompts: pa.Table, samples: int
) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """The progress of a stage that samples, with a live deck of the scores so far; yields what takes each judged row.

    Args:
        description: the stage.
        prompts: a table of `PROMPTS`.
        samples: responses to each.
    """
    from tasks import charts

    columns = (prompts.column(name).to_pylist() for name in ("prompt_id", "domain"))
    domain_of = dict(zip(*columns, strict=True))
    scores: dict[str, list[float]] = defaultdict(list)
    drawn_at, unjudged = time.monotonic(), 0

    with progress(description, prompts.num_rows * samples) as advance:

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
                figures = {"judged so far": f"{count:,} of {prompts.num_rows * samples:,}", "mean score": f"{mean:.1%}"}
                show(description, charts.page(figures, charts.rates_so_far(scores, unjudged)))

        yield judged
