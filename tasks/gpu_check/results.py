"""Stores the results of checks (measurements and faults), and formats them as a table."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from tasks.failures import one_line

Number = float | int | str
Status = Literal["passed", "failed", "skipped"]


class SkippedError(Exception):
    """A check cannot run on this machine. This is not a fault; the message is the reason."""


@dataclass
class Findings:
    """Measurements and faults of one check, in the order they were found.

    Attributes:
        figures: measured values, by a name that contains the unit.
        faults: one message for each problem.
        note: a message on what the check found if it found no faults, or empty.
    """

    figures: dict[str, Number] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    note: str = ""

    def require(self, holds: bool, fault: str) -> None:
        """Add the fault if the condition is false."""
        if not holds:
            self.faults.append(fault)


@dataclass(frozen=True)
class Result:
    """The result of one check.

    Attributes:
        name: name of the check.
        status: `passed`; `failed` if it found a fault or raised an error; `skipped` if it cannot run here.
        seconds: duration of the check.
        figures: as in `Findings`.
        reason: the faults, the error, or why it was skipped; the check's note if it passed.
    """

    name: str
    status: Status
    seconds: float
    figures: dict[str, Number]
    reason: str


def run_check(name: str, check: Callable[[Findings], None], findings: Findings | None = None) -> Result:
    """Run a check; an error that it raises, such as out of memory, is its result, so that other checks still run.

    Args:
        name: name of the check.
        check: gets the findings.
        findings: what the check adds to. Optional. If None, new ones.
    """
    findings, started = findings or Findings(), time.perf_counter()
    status: Status = "failed"
    try:
        check(findings)
        reason = " ".join(findings.faults) or findings.note
        status = "failed" if findings.faults else "passed"
    except SkippedError as skipped:
        status, reason = "skipped", str(skipped)
    except Exception as error:
        reason = " ".join([*findings.faults, f"{type(error).__name__}: {one_line(error)}"])
    return Result(name, status, time.perf_counter() - started, dict(findings.figures), reason)


def format_table(results: list[Result]) -> str:
    """Return all results as text: a line for each check and for each of its measurements."""
    width = max((len(name) for result in results for name in result.figures), default=0)
    lines = []
    for result in results:
        lines.append(f"{result.status:8} {result.name}  ({result.seconds:.1f} s)")
        if result.reason:
            lines.append(f"{'':8} {result.reason}")
        lines += [f"{'':8}   {name:{width}}  {format_number(value)}" for name, value in result.figures.items()]
    return "\n".join(lines)


def format_number(value: Number) -> str:
    """Return a measurement as text: whole if it is large, otherwise with four digits."""
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.4g}"
