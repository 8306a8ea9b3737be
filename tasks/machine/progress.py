"""Shows the progress of a long stage: a bar on a terminal, or otherwise a log line every half minute.

    training: steps: 3/14, 0:04:30 so far, 0.7/min, 0:16:30 left of this stage, mean score 0.42
    model: converting SmolLM2-135M-Instruct, 0:00:30 so far

The rate is measured from the first completed unit of work, so that it does not include the start of an engine. The
remaining time is the remaining work at this rate, and is shown after one minute of measurement. It is the time of one
stage and not of the whole run, because stages do not know about each other. Work that cannot be counted has a line when
it begins, and its time.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

LINE_SECONDS = 30.0
"""Seconds between two log lines."""

MEASURED_SECONDS = 60.0
"""Seconds of work after which the rate is used to estimate the remaining time."""

Advance = Callable[..., None]
"""The type of `advance(count=1, note="", done=None)` (see `track_progress`)."""


Begin = Callable[[str], None]
"""The type of `begin(what)` (see `track_activity`)."""


@contextlib.contextmanager
def track_progress(description: str, total: int, note: str = "") -> Iterator[Advance]:
    """Show the progress of a stage while the block runs.

    Args:
        description: the stage and its unit of work, as in `training: steps`.
        total: units of work in the whole stage.
        note: the text next to the numbers before the first call of `advance`, as in `the engine is loading`.

    Yields:
        `advance(count=1, note="", done=None)`, which counts completed work. `note` is appended to the line. `done` is
        the total number of completed units, including this call. A stage that resumes sets it, so that work of an
        earlier attempt does not count towards this attempt's rate. With a count of 0 it only sets the note, and the
        work of earlier attempts.
    """
    from rich.console import Console

    console = Console(stderr=True)
    meter = Meter(description, total, note)
    with _show_bar(meter, console) if console.is_terminal else _print_lines(meter):
        yield meter.advance


@contextlib.contextmanager
def track_activity(stage: str) -> Iterator[Begin]:
    """Show what a stage without countable units of work is doing while the block runs.

    Args:
        stage: the stage, as in `model`.

    Yields:
        `begin(what)`, which shows the work that begins, as in `converting SmolLM2-135M-Instruct`.
    """
    from rich.console import Console

    console = Console(stderr=True)
    activity = Activity(stage)
    if console.is_terminal:
        with _show_spinner(activity, console):
            yield activity.begin
        return

    def begin(what: str) -> None:
        activity.begin(what)
        _print(f"{stage}: {what}")

    def format_later() -> str:
        return activity.line() if activity.seconds() >= 1 else ""  # `begin` has just printed the work

    with _print_repeatedly(format_later):
        yield begin


class Activity:
    """Measures the time of work that cannot be counted. One thread writes to it and another reads."""

    def __init__(self, stage: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._stage = stage
        self._clock = clock
        self._now = ("", clock())  # what is being done, and since when

    def begin(self, what: str) -> None:
        """Set the work that begins now."""
        self._now = (what, self._clock())

    def seconds(self) -> float:
        """Return the seconds since the work began."""
        return self._clock() - self._now[1]

    def line(self) -> str:
        """Return the work and its time as a log line."""
        what, began = self._now
        return f"{self._stage}: {what}, {_format_clock_time(self._clock() - began)} so far"


class Meter:
    """Counts the work done by this attempt of a stage. One thread writes to it and another reads.

    Attributes:
        description: the stage and its unit of work.
        total: units of work in the whole stage.
        done: units of work done so far, including earlier attempts.
        note: the last text from the stage.
    """

    def __init__(
        self, description: str, total: int, note: str = "", clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.description = description
        self.total = total
        self.done = 0
        self.note = note
        self._ended = False
        self._first: tuple[int, float] | None = None  # the units done, and the time, after the first call of `advance`
        self._clock = clock
        self._started = clock()

    def advance(self, count: int = 1, note: str = "", done: int | None = None) -> None:
        """Count `count` units of work (see `track_progress`)."""
        if done is not None and self._first is None:
            self.done = done - count
        self.done += count
        self.note = note
        if self._first is None and count:
            self._first = self.done, self._clock()

    def end(self) -> None:
        """End the measurement. A stage that ended before all units of work were done has no time left."""
        self._ended = True

    def seconds(self) -> float:
        """Return the seconds since this attempt of the stage began."""
        return self._clock() - self._started

    def rate(self) -> float:
        """Return the units of work per second since the first unit of this attempt, or 0 before the second unit."""
        if self._first is None:
            return 0.0
        done, since = self._first
        return (self.done - done) / max(self._clock() - since, 1e-9)

    def estimate_seconds_left(self) -> float | None:
        """Return the estimated remaining seconds, or None if less than a minute was measured or work ended early."""
        if self._ended and self.done < self.total:
            return None
        if self._first is None or self._clock() - self._first[1] < MEASURED_SECONDS or not self.rate():
            return None
        return (self.total - self.done) / self.rate()

    def speed(self) -> str:
        """Return the rate and the remaining time as text, or "" before the second unit of work."""
        parts = [_format_rate(self.rate())] if self.rate() else []
        if (left := self.estimate_seconds_left()) is not None:
            parts.append(f"{_format_clock_time(left)} left of this stage")
        return ", ".join(parts)

    def line(self) -> str:
        """Return the progress as a log line."""
        parts = [f"{self.description}: {self.done:,}/{self.total:,}", f"{_format_clock_time(self.seconds())} so far"]
        return ", ".join([*parts, *filter(None, [self.speed(), self.note])])


@contextlib.contextmanager
def _print_lines(meter: Meter) -> Iterator[None]:
    try:
        with _print_repeatedly(meter.line):
            yield
    finally:
        meter.end()
        _print(meter.line())


@contextlib.contextmanager
def _print_repeatedly(line: Callable[[], str]) -> Iterator[None]:
    """Print the line every `LINE_SECONDS` while the block runs, unless it is empty."""
    over = threading.Event()

    def write() -> None:
        while not over.wait(LINE_SECONDS):
            if text := line():
                _print(text)

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    try:
        yield
    finally:
        over.set()
        writer.join()


def _print(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


@contextlib.contextmanager
def _show_spinner(activity: Activity, console: Console) -> Iterator[None]:
    from rich.live import Live
    from rich.spinner import Spinner

    spinner = Spinner("line")

    def row() -> Spinner:
        spinner.update(text=activity.line())
        return spinner

    with Live(get_renderable=row, console=console):
        yield


@contextlib.contextmanager
def _show_bar(meter: Meter, console: Console) -> Iterator[None]:
    from rich.live import Live
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    def row() -> Table:
        table = Table.grid(padding=(0, 1))
        table.add_row(
            f"{meter.description} {meter.note}".rstrip(),
            ProgressBar(total=meter.total, completed=meter.done, width=40),
            f"{meter.done:,}/{meter.total:,}",
            f"{_format_clock_time(meter.seconds())} so far",
            meter.speed(),
        )
        return table

    with Live(get_renderable=row, console=console):
        try:
            yield
        finally:
            meter.end()


def _format_rate(rate: float) -> str:
    return f"{rate:.1f}/s" if rate >= 0.1 else f"{60 * rate:.1f}/min"


def _format_clock_time(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"
