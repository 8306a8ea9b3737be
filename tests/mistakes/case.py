"""A mistake or a fault, as a person meets it: a command, what is wrong around it, and what the terminal has to name."""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tests.paths import ROOT

PROGRAMS = {
    "pyflyte": (str(Path(sys.executable).with_name("pyflyte")), "run", "workflows/rlvr.py", "rlvr"),
    "rlvr": (sys.executable, "-m", "tasks.commands"),
}
"""What stands behind the first word of a case's command."""

MOST_LINES = 3
"""Lines that a mistake or fault may take on the terminal."""

ROUTINE = re.compile(
    r"╭|Running Execution on local\.|this processor computes bfloat16|\w+: [\w ]+: [\d,]+/[\d,]+, "
    r"|model( check)?: (\w+ing|comparison) "
    r"|.*\b(engine loads|loads its engine|learner ranks|learner's rank).*, since \d+ s$"
)
"""Beginnings of lines that a command prints whatever happens: of its progress, and of processes that start slowly."""


@dataclass(frozen=True)
class Case:
    """A command that cannot succeed.

    Attributes:
        name: the mistake or fault, in words.
        command: its first word is one of `PROGRAMS`; `{here}` is the case's folder, which is the home as well,
            `{model}` and `{mixture}` are those that all cases share.
        named: texts that the terminal must show; `{here}` as in the command.
        files: content of files in the folder, by name.
        environment: variables of the process; None takes one away.
        prepare: called with the folder, the model and the mixture before the command starts.
        within: a command that runs the command, such as one that mounts a small disk first.
        status: exit status of the process.
        sampled: whether `make test` runs it, too.
    """

    name: str
    command: str
    named: tuple[str, ...]
    files: Mapping[str, str | bytes] = field(default_factory=dict)
    environment: Mapping[str, str | None] = field(default_factory=dict)
    prepare: Callable[[Path, Path, Path], None] = lambda *_: None
    within: tuple[str, ...] = ()
    status: int = 1
    sampled: bool = False


class Outcome(NamedTuple):
    """What a person saw: the exit status, the lines on the terminal but routine ones, and the seconds it took."""

    status: int
    lines: list[str]
    seconds: float


def run(case: Case, here: Path, model: Path, mixture: Path, seconds: float = 150) -> Outcome:
    """Run a case in a home of its own.

    Raises:
        subprocess.TimeoutExpired: it has not ended after so many seconds; all that it started is killed.
    """
    started = time.monotonic()
    with started_process(case, here, model, mixture) as process:
        try:
            output, _ = process.communicate(timeout=seconds)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    return Outcome(process.returncode, seen(output), time.monotonic() - started)


def started_process(case: Case, here: Path, model: Path, mixture: Path) -> subprocess.Popen[str]:
    """Start a case's command, whose output is one pipe, as the leader of a process group."""
    names = {"here": str(here), "model": str(model), "mixture": str(mixture)}
    for name, content in case.files.items():
        path = here / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            path.write_text(filled(content, names))
    case.prepare(here, model, mixture)
    program, *arguments = shlex.split(filled(case.command, names))
    command = [*(filled(part, names) for part in case.within), *PROGRAMS[program], *arguments]
    environment = surroundings(here) | {name: filled(value or "", names) for name, value in case.environment.items()}
    environment = {name: value for name, value in environment.items() if case.environment.get(name, "") is not None}
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def seen(output: str) -> list[str]:
    """Return the lines of an output that are not routine."""
    return [line for line in output.splitlines() if re.search(r"\w", line) and not ROUTINE.match(line)]


def filled(text: str, names: Mapping[str, str]) -> str:
    """Return a text with `{here}`, `{model}` and `{mixture}` replaced; other braces stay, which YAML needs."""
    for name, value in names.items():
        text = text.replace(f"{{{name}}}", value)
    return text


def surroundings(here: Path) -> dict[str, str]:
    """The environment of a person whose home is the case's folder."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("RLVR_", "HF_", "RAY_", "PYTEST"))}
    return own | {
        "HOME": str(here),
        "COLUMNS": "1000",
        "RLVR_OUTPUTS": str(here / "outputs"),
        "RLVR_RUNS": str(here / "runs"),
        "FLYTE_SDK_LOCAL_SANDBOX": str(here / "flyte"),
        "HF_ENDPOINT": "http://127.0.0.1:9",  # nothing answers there
        "HF_HUB_DISABLE_XET": "1",
    }


def wrong(outcome: Outcome, case: Case, here: Path) -> list[str]:
    """Return what of an outcome is not as a person should see it."""
    text = "\n".join(outcome.lines)
    faults = [f"{name!r} is not named" for name in case.named if name.replace("{here}", str(here)) not in text]
    if outcome.status != case.status:
        faults.append(f"exit status {outcome.status}, not {case.status}")
    if len(outcome.lines) > MOST_LINES:
        faults.append(f"{len(outcome.lines)} lines")
    if "Traceback (most recent" in text or '  File "' in text:
        faults.append("a traceback")
    return faults


def every(*tables: Sequence[Case]) -> list[Case]:
    """Return the cases of all tables, whose names differ."""
    cases = [case for table in tables for case in table]
    assert len({case.name for case in cases}) == len(cases)
    return cases
