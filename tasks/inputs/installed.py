"""Checks that what the stages of a run import is installed on this machine.

An environment with the wheel alone checks files and launches executions. Runs on this machine need an extra.
"""

from __future__ import annotations

from importlib.util import find_spec

from tasks.generation.models import ModelSpec, PackagedGguf
from tasks.machine.local_ray import MachineError
from tasks.machine.packages import install_command

IMPORTED = ("torch", "transformers", "vllm", "deepspeed", "ray")
"""Names of what the stages of generation and training import."""


def find_missing_packages(model: ModelSpec) -> list[str]:
    """Return the names of what a run of this model imports or reads, and is not installed here."""
    missing = [name for name in IMPORTED if find_spec(name) is None]
    source = model.source
    return [*missing, source.package] if isinstance(source, PackagedGguf) and source.folder() is None else missing


def describe_missing(missing: list[str]) -> str:
    """Return a text that names what is missing, and the command that installs it."""
    return f"a run on this machine needs {', '.join(missing)}, which this environment lacks: {install_command()}"


def check_environment_of_run(model: ModelSpec) -> None:
    """Check that a run of this model has what it imports and reads.

    Raises:
        MachineError: something is not installed.
    """
    if missing := find_missing_packages(model):
        raise MachineError(describe_missing(missing))
