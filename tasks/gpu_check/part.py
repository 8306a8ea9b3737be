"""Runs the checks of one part in this process: `python -m tasks.gpu_check.part TASK`, with a task as JSON.

Results and measurements are written as soon as they are known, so that they are kept if the process is killed.
"""

from __future__ import annotations

import faulthandler
import json
import pkgutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter

from tasks.gpu_check.parts import PARTS
from tasks.gpu_check.results import Findings, Number, Result, run_check
from tasks.storage.durable import write_whole

UNFINISHED = "It did not finish."
"""The reason of a check that is running; it stays if the process is killed."""
BEFORE_LIMIT = 2
"""Seconds before the end of the time limit at which the stacks of all threads are written to the log."""


@dataclass(frozen=True)
class PartTask:
    """One part to run.

    Attributes:
        part: its letter.
        checks: names of the checks to run.
        dry: whether shapes are tiny, as for a CPU.
        folder: folder that all parts share; the random model is in it.
        output: folder of what stays: the results of the part, and what its processes print.
        seconds: time limit.
    """

    part: str
    checks: list[str]
    dry: bool
    folder: Path
    output: Path
    seconds: float

    @property
    def results(self) -> Path:
        """JSON file of the results."""
        return self.output / f"{self.part}.json"

    @property
    def log(self) -> Path:
        """File of what the processes of the part print."""
        return self.output / f"{self.part}.log"


TASK = TypeAdapter(PartTask)
"""Writes a task as JSON, and reads it."""


class Recorded(dict[str, Number]):
    """Measurements of a check that call `write` after each new one."""

    def __init__(self, write: Callable[[], None]) -> None:
        super().__init__()
        self._write = write

    def __setitem__(self, name: str, value: Number) -> None:
        super().__setitem__(name, value)
        self._write()


def run_part(task: PartTask, checks: Mapping[str, Callable[[Findings], None]]) -> list[Result]:
    """Run the checks of a part one after the other, and write the results to the task's file."""
    results: list[Result] = []
    for name, check in checks.items():
        results.append(_run_check(task.results, results, name, check))
        write_results(task.results, results)
        print(f"{name}: {results[-1].status}", flush=True)
    return results


def _run_check(file: Path, before: list[Result], name: str, check: Callable[[Findings], None]) -> Result:
    """Run a check whose measurements are written to the file with the results before it, one after the other."""

    def write() -> None:
        write_results(file, [*before, Result(name, "failed", 0.0, dict(figures), UNFINISHED)])

    figures = Recorded(write)
    write()
    return run_check(name, check, Findings(figures))


def write_results(file: Path, results: list[Result]) -> None:
    """Write results as JSON, in one step."""
    with write_whole(file) as partial:
        partial.write_text(json.dumps([asdict(result) for result in results], indent=2))


def main(text: str) -> None:
    """Run the part that the task in `text` describes."""
    from tasks.machine.quiet import silence_libraries, silence_progress_bars
    from tasks.verifiers.process_limits import die_with_parent

    die_with_parent()
    task = TASK.validate_json(text)
    faulthandler.dump_traceback_later(max(task.seconds - BEFORE_LIMIT, 1))
    silence_libraries()
    silence_progress_bars()
    checks: Mapping[str, Callable[[Findings], None]] = pkgutil.resolve_name(PARTS[task.part].source)(task)
    run_part(task, checks)


if __name__ == "__main__":
    main(sys.argv[1])
