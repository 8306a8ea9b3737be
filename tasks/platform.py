"""What every Flyte task of this project shares: the types of its files, its cache, its deck and its summary."""

from __future__ import annotations

import contextlib
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from flytekit import Cache, Deck, FlyteContextManager, HashMethod, current_context, task
from flytekit.core.local_cache import LocalTaskCache
from flytekit.deck import DeckField
from flytekit.models.literals import Literal, LiteralMap
from flytekit.types.directory import FlyteDirectory
from flytekit.types.file import FlyteFile

from tasks.digest import CodeDigest
from tasks.quiet import hush
from tasks.schemas import StageSummary, file_digest

hush()


def _content(value: Any) -> str:
    if value.remote_source:
        value.download()
    return file_digest(str(value.path))


if TYPE_CHECKING:
    Parquet = Html = JsonLines = FlyteFile
    Folder = FlyteDirectory
else:
    # Hashing content, not addresses, is what lets a stage hit its cache when an earlier one ran again to the same
    # result, and what lets a file given on the command line stand for the output of an earlier run.
    Parquet = Annotated[FlyteFile[TypeVar("parquet")], HashMethod(_content)]
    Html = Annotated[FlyteFile[TypeVar("html")], HashMethod(_content)]
    JsonLines = Annotated[FlyteFile[TypeVar("jsonl")], HashMethod(_content)]
    Folder = Annotated[FlyteDirectory, HashMethod(_content)]


def _addresses(literal: Literal) -> Iterator[str]:
    """Where the files and folders of an output are."""
    if literal.collection:
        for item in literal.collection.literals:
            yield from _addresses(item)
    elif literal.scalar and literal.scalar.blob:
        yield literal.scalar.blob.uri


def _missing_what_is_gone(get: Callable[..., LiteralMap | None]) -> Callable[..., LiteralMap | None]:
    """A look-up in flytekit's local cache by which a result is a miss once a file or folder of it is gone.

    That cache keeps addresses, in the user's home, and takes every entry for good: after outputs or a whole checkout
    were deleted, or /tmp was cleaned, the next run would fail at the first stage that reads one of them.
    """

    @wraps(get)
    def checked(*args: Any, **kwargs: Any) -> LiteralMap | None:
        found = get(*args, **kwargs)
        is_remote = FlyteContextManager.current_context().file_access.is_remote
        addresses = [a for literal in (found.literals if found else {}).values() for a in _addresses(literal)]
        return found if all(is_remote(a) or Path(a).exists() for a in addresses) else None

    return checked


LocalTaskCache.get = staticmethod(_missing_what_is_gone(LocalTaskCache.get))

stage = partial(task, cache=Cache(policies=[CodeDigest()], serialize=True))
"""A task whose result is kept for as long as its inputs and all code that it depends on stay the same."""
shown_stage = partial(
    stage,
    enable_deck=True,
    # Without flytekit's list of dependencies: it starts pip twice in every task, 2 s each time.
    deck_fields=(DeckField.SOURCE_CODE, DeckField.TIMELINE, DeckField.INPUT, DeckField.OUTPUT),
)
"""A stage with a deck."""


def local(value: Any) -> Path:
    """The local path of a Flyte file or directory, downloaded when it is remote."""
    return Path(value.download() if value.remote_source else value.path)


def scratch(name: str) -> Path:
    """A new path called `name` in the task's working directory, for an output."""
    return Path(tempfile.mkdtemp(dir=current_context().working_directory)) / name


class Stopwatch:
    """Times a stage and turns what it has to say into its summary."""

    def __init__(self, stage: str) -> None:
        self._stage = stage
        self._started_at = datetime.now(UTC)
        self._started = time.perf_counter()

    def summary(self, headline: str, **facts: Any) -> StageSummary:
        """The stage's summary, up to now."""
        return StageSummary(
            stage=self._stage,
            started_at=self._started_at,
            seconds=time.perf_counter() - self._started,
            headline=headline,
            facts=json.dumps(facts, sort_keys=True),
        )


def show(name: str, html: str) -> None:
    """Put `html` on the task's deck, and publish the deck as it stands so far."""
    deck = next((deck for deck in current_context().decks if deck.name == name), None)
    if deck is None:
        deck = Deck(name, html)
    else:
        deck._html = html  # a deck only appends, and a live chart replaces itself
    with contextlib.suppress(FileNotFoundError):
        Deck.publish()


@contextlib.contextmanager
def progress(description: str, total: int) -> Iterator[Callable[..., None]]:
    """A progress bar on the terminal with the time that is left; yields `advance(count, note)`.

    Where there is no terminal, one line at the end.
    """
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.progress import Task as Job
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: Job) -> Text:
            speed = task.finished_speed or task.speed
            if not speed:
                return Text("")
            return Text(f"{speed:.1f}/s" if speed >= 0.1 else f"{60 * speed:.1f}/min")

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        Rate(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    # Optimizer steps take minutes on some machines, and rich forgets what is older than the period.
    with Progress(*columns, console=Console(stderr=True), speed_estimate_period=3600) as bar:
        job = bar.add_task(description, total=total)

        def advance(count: int = 1, note: str = "") -> None:
            bar.update(job, advance=count, description=f"{description} {note}".rstrip())

        yield advance
