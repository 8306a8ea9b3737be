"""Starts the parts one after the other, each in a separate process with a time limit, and collects their results."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from tasks.failures import MistakeError
from tasks.gpu_check.part import TASK, UNFINISHED, PartTask
from tasks.gpu_check.parts import PARTS
from tasks.gpu_check.results import Result
from tasks.storage.durable import write_whole
from tasks.verifiers.process_limits import adopt_orphans, end_children, list_children

MACHINE_SECONDS = 120
"""Time limit of the process that looks at the machine, seconds: it imports torch."""


def collect_machine_facts() -> dict[str, str]:
    """Return the GPU and the versions of libraries, by name, as `tasks.gpu_check.machine` prints them.

    Raises:
        MistakeError: torch does not load.
        subprocess.TimeoutExpired: it takes more than `MACHINE_SECONDS`.
    """
    command = [sys.executable, "-m", "tasks.gpu_check.machine"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=MACHINE_SECONDS)  # noqa: PLW1510, S603
    if done.returncode != 0:
        last = (done.stderr.splitlines() or [f"it exited with {done.returncode}"])[-1]
        raise MistakeError(f"torch does not load in {sys.executable}, which runs the checks: {last}")
    facts: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return facts


def launch(task: PartTask) -> list[Result]:
    """Run a part in a separate process, and kill that process and all below it when its time is over.

    Returns a result for each of its checks, and for the model if it was written.
    """
    if missing := PARTS[task.part].missing:
        return [Result(name, "skipped", 0.0, {}, f"no {', no '.join(missing)}") for name in task.checks]
    task.results.unlink(missing_ok=True)
    others = list_children()
    adopt_orphans()
    with task.log.open("wb") as stream:
        process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-m", "tasks.gpu_check.part", TASK.dump_json(task).decode()],
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            process.wait(task.seconds)
        except subprocess.TimeoutExpired:
            ending = f"The part was stopped after {task.seconds:g} s, its time limit; see {task.log}."
        else:
            ending = f"The process {_describe_exit(process.returncode)}; see {task.log}."
        finally:
            end_children(others)
    return read_results(task, ending)


def read_results(task: PartTask, ending: str) -> list[Result]:
    """Return what a part has written, and a result for each check that it did not finish.

    Args:
        task: the part, which has ended.
        ending: how its process ended, the reason of the check that was running then.
    """
    written = [Result(**row) for row in json.loads(task.results.read_text())] if task.results.exists() else []
    results = [replace(one, reason=ending) if one.reason == UNFINISHED else one for one in written]
    lost = [name for name in task.checks if name not in {result.name for result in results}]
    if lost and not any(result.reason == ending for result in results):
        results.append(Result(lost.pop(0), "failed", 0.0, {}, ending))
    return results + [Result(name, "skipped", 0.0, {}, "The part ended before.") for name in lost]


def _describe_exit(code: int) -> str:
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"


def write_all(file: Path, machine: dict[str, str], results: Mapping[str, Sequence[Result]]) -> None:
    """Write the results of all parts that have ended, by letter, with the machine, as JSON."""
    checks = [{"part": letter} | asdict(result) for letter, of_part in results.items() for result in of_part]
    with write_whole(file) as partial:
        partial.write_text(json.dumps({"machine": machine, "checks": checks}, indent=2))
