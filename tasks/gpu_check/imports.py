"""Checks that libraries and compiled operators load on this machine (part A).

Each loads in a separate process: a library that was built for another torch may end its process.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import TypeAdapter

from tasks.config.loading import Config, read_yaml
from tasks.gpu_check.results import Findings
from tasks.machine.resources import process_cores

if TYPE_CHECKING:
    from tasks.gpu_check.part import PartTask

MOST_AT_A_TIME = 4
"""Largest number of processes at a time; each has two cores at least."""
SHARE = 0.75
"""Time limit of one process, as a fraction of the limit of the part."""
LIBRARIES = (
    *("torch", "triton", "transformers", "peft", "deepspeed", "liger_kernel", "flash_attn", "flashinfer", "vllm"),
    *("ray", "flytekit"),
)
"""Modules that are imported if they are installed."""
IMPORT = """
import importlib, importlib.metadata, sys, time
began = time.perf_counter()
module = importlib.import_module(sys.argv[1])
version = getattr(module, "__version__", "") or importlib.metadata.version(sys.argv[1].replace("_", "-"))
print(f"{version}, {time.perf_counter() - began:.1f} s")
"""


class Operator(Config):
    """A program that uses compiled operators and prints one line."""

    package: str
    """Module without which it does not run."""
    program: str
    """Text of the program."""
    needs_gpu: bool = False
    """If true, it runs with a GPU only."""


OPERATORS = TypeAdapter(dict[str, Operator]).validate_python(read_yaml(Path(__file__).parent / "operators.yaml"))
"""Programs of the check `operators`, by name."""


def make_checks(task: PartTask) -> dict[str, Callable[[Findings], None]]:
    """Return the checks of part A, by name."""
    limit = SHARE * task.seconds
    every: dict[str, Callable[[Findings], None]] = {
        "imports": lambda findings: check_imports(findings, limit),
        "operators": lambda findings: check_operators(findings, limit),
    }
    return {name: every[name] for name in task.checks}


def check_imports(findings: Findings, limit: float) -> None:
    """Import each library that is installed, within `limit` seconds: its version, and seconds."""
    installed = [name for name in LIBRARIES if importlib.util.find_spec(name)]
    _run(findings, {name: (IMPORT, name) for name in installed}, limit)
    for name in LIBRARIES:
        if name not in installed:
            findings.figures[name] = "not installed"


def check_operators(findings: Findings, limit: float) -> None:
    """Run each program whose package is installed, within `limit` seconds, on a GPU if there is one."""
    import torch

    gpu = torch.cuda.is_available()
    usable = {
        name: (operator.program,)
        for name, operator in OPERATORS.items()
        if importlib.util.find_spec(operator.package) and (gpu or not operator.needs_gpu)
    }
    _run(findings, usable, limit)
    for name in OPERATORS:
        if name not in usable:
            findings.figures[name] = "not run"


def _run(findings: Findings, programs: Mapping[str, tuple[str, ...]], limit: float) -> None:
    """Run programs with their arguments, each in a process; record the last line that each prints."""
    at_a_time = max(1, min(MOST_AT_A_TIME, int(process_cores().cores) // 2))
    with ThreadPoolExecutor(at_a_time) as threads:
        results = threads.map(lambda program: run_for_last_line(program, limit), programs.values())
        for name, (line, fault) in zip(programs, results, strict=True):
            findings.figures[name] = line or "does not load"
            findings.require(not fault, f"{name} does not load: {fault}.")


def run_for_last_line(program: tuple[str, ...], limit: float) -> tuple[str, str]:
    """Run a program with its arguments; return the last line that it prints, or why it failed, as the second text."""
    command = [sys.executable, "-c", *program]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)  # noqa: S603
    except subprocess.TimeoutExpired:
        return "", f"it took more than {limit:g} s"
    output, errors = done.stdout.strip().splitlines(), done.stderr.strip().splitlines()
    if done.returncode == 0:
        return (output or [""])[-1], ""
    return "", (errors or [f"it ended with {done.returncode}"])[-1].rstrip(".")
