"""Progress of a stage: a bar on a terminal, or a line every 30 seconds in a log."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator

LINE_SECONDS = 30.0
"""Seconds between two lines in a log."""

Advance = Callable[..., None]
"""A function `advance(count=1, note="", done=None)` that reports work as done, and redraws the progress.

`count` units were finished just now. `note` stands behind the progress until the next call. `done` is the total after
this call, `count` included: the first call gives it where earlier work was resumed, so that the speed leaves it out.
"""


@contextlib.contextmanager
def report_progress(description: str, total: int) -> Iterator[Advance]:
    """Show the progress of `total` units of work for the length of a block; yields a function that advances it."""
    from rich.console import Console

    console = Console(stderr=True)
    with _bar(description, total, console) if console.is_terminal else _lines(description, total) as advance:
        yield advance


@contextlib.contextmanager
def _lines(description: str, total: int) -> Iterator[Advance]:
    progress = _Progress(description, total)
    over = threading.Event()

    def write() -> None:
        while not over.wait(LINE_SECONDS):
            print(progress.line(), file=sys.stderr, flush=True)

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    try:
        yield progress.advance
    finally:
        over.set()
        writer.join()
        print(progress.line(), file=sys.stderr, flush=True)


class _Progress:
    """Count of finished units, as text; one thread advances it, another reads it."""

    def __init__(self, description: str, total: int) -> None:
        self._description = description
        self._total = total
        self._done = 0
        self._before = 0
        self._note = ""
        self._began = time.monotonic()

    def advance(self, count: int = 1, note: str = "", done: int | None = None) -> None:
        """Count units as finished, as `Advance` defines it."""
        if done is not None and self._done == 0:
            self._before = self._done = done - count
        self._done += count
        self._note = note

    def line(self) -> str:
        """Return the progress as one line: units, time so far, speed, time left, note."""
        seconds = time.monotonic() - self._began
        done = self._done
        parts = [f"{self._description}: {done:,}/{self._total:,}", f"{_duration(seconds)} so far"]
        if rate := (done - self._before) / max(seconds, 1e-9):
            parts += [_speed(rate), f"{_duration((self._total - done) / rate)} left"]
        return ", ".join([*parts, *filter(None, [self._note])])


@contextlib.contextmanager
def _bar(description: str, total: int, console: object) -> Iterator[Advance]:
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
            return Text(_speed(speed) if speed else "")

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        Rate(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    # Optimizer steps take minutes on some machines, and rich computes the speed from this period alone.
    with Progress(*columns, console=console, speed_estimate_period=3600) as bar:  # type: ignore[arg-type]
        job = bar.add_task(description, total=total)

        def advance(count: int = 1, note: str = "", done: int | None = None) -> None:
            if done is not None and bar.tasks[0].completed == 0 and done > count:
                bar.reset(job, completed=done - count)
            bar.update(job, advance=count, description=f"{description} {note}".rstrip())

        yield advance


def _speed(rate: float) -> str:
    return f"{rate:.1f}/s" if rate >= 0.1 else f"{60 * rate:.1f}/min"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"
