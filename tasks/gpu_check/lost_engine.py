"""Checks a run with time sharing of one GPU, whose engine is killed once (part F), by `rlvr train`.

Without a GPU, time sharing is not possible: engine and learner run apart, and the engine is killed in the same way.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.gpu_check.pipeline import record_steps
from tasks.gpu_check.results import Findings
from tasks.gpu_check.small_run import prepare_run, write_mixture
from tasks.machine.resources import has_gpu
from tasks.tables.json_lines import read_json_lines

if TYPE_CHECKING:
    import psutil

    from tasks.gpu_check.part import PartTask

STEPS = 3
CPU_STEPS = 12
"""Number of steps without a GPU: a tiny model takes half a second for each, and three would end before the kill."""
ENGINE = "EngineCore"
"""Part of the command line of vLLM's process."""
PAUSE = 0.2
"""Seconds between two looks at the run."""


def make_checks(task: PartTask) -> dict[str, Callable[[Findings], None]]:
    """Return the check of part F, by name."""
    return {"lost engine": lambda findings: check_lost_engine(findings, task)}


def check_lost_engine(findings: Findings, task: PartTask) -> None:
    """Train a few steps, kill the engine after the first one, and require that the run replaces it and ends."""
    steps = STEPS if has_gpu() else CPU_STEPS
    home, files = prepare_run(task, "lost_engine", steps)
    run = home / "run"
    mixture = write_mixture(home / "mixture.parquet")
    placement = "time_shared" if has_gpu() else "auto"
    findings.figures["placement"] = placement
    command = [sys.executable, "-m", "tasks.commands", "train", str(files["training"]), f"placement={placement}"]
    command += ["async_steps=0", "model_check=false"]  # no responses of the first engine are left for later steps
    command += ["--data", str(files["data"]), "--mixture", str(mixture), "--folder", str(run)]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)  # noqa: S603
    killed = _kill_engine_after_a_step(process, run / "metrics.jsonl")
    findings.figures["killed process"] = killed or "none"
    findings.require(killed is not None, f"There was no engine to kill: see {task.log}.")
    findings.require(process.wait() == 0, f"rlvr train exited with {process.returncode}: see {task.log}.")
    if findings.faults:
        return
    taken = read_json_lines(run / "metrics.jsonl")
    for step in taken:
        findings.figures[f"step {step['step']}, s"] = step["step_seconds"]
    record_steps(findings, taken, steps)
    lost = sum(step["actors_lost"] for step in taken)
    findings.figures["engines lost"] = lost
    findings.require(lost == 1, f"The run has counted {lost:.0f} lost engines, and one was killed.")
    generated = sum(step["generated_tokens"] for step in taken[1:])
    findings.figures["tokens generated after the first step"] = generated
    findings.require(generated > 0, "The engine that replaced the lost one has generated nothing.")
    findings.require(any((run / "policy").glob("*.safetensors")), "The run has written no policy.")


def _kill_engine_after_a_step(run: subprocess.Popen[bytes], metrics: Path) -> int | None:
    """Wait for the first step of a run and kill its engine; return the engine's pid, or None if the run has ended."""
    while run.poll() is None:
        if metrics.exists() and metrics.read_text().endswith("\n") and (pid := find_engine(run.pid)):
            os.kill(pid, signal.SIGKILL)
            return pid
        time.sleep(PAUSE)
    return None


def find_engine(pid: int) -> int | None:
    """Return the pid of vLLM's process below a process, or None if there is none now."""
    import psutil

    for process in psutil.Process(pid).children(recursive=True):
        try:
            above = process.parent()
            # What it starts has its name, too, until it becomes another program.
            if _is_engine(process) and not (above and _is_engine(above)):
                return process.pid
        except psutil.Error:  # it has just ended
            continue
    return None


def _is_engine(process: psutil.Process) -> bool:
    return any(ENGINE in word for word in process.cmdline())
