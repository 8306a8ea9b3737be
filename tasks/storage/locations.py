"""Locations of what outlives an attempt: run folders, rollout caches and prepared models, by name.

    RLVR_RUNS        on this machine       on blob storage
    not set          outputs/runs/NAME     <bucket of the raw outputs>/rlvr-runs/NAME, on a cluster alone
    a folder         <folder>/NAME         -
    an address       outputs/runs/NAME     <address>/NAME

Pods share nothing but blob storage, and a retry, a recovered execution or a second start must find the rollouts and
checkpoints of the attempt before it.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from tasks.failures import PASSING, MistakeError

RUNS = "RLVR_RUNS"
"""Name of the environment variable with the location of all runs: an address on blob storage, or a folder that every
attempt sees."""

RUNS_HERE = "outputs/runs"
"""The folder of run folders on this machine, unless `RLVR_RUNS` is a folder."""

OUTPUTS = "RLVR_OUTPUTS"
"""Name of the environment variable with the folder in which every local run gets a folder of its own."""


SANDBOX = "FLYTE_SDK_LOCAL_SANDBOX"
"""Flytekit's environment variable that names the folder of all that its local runs write, their cache included."""


def outputs_folder() -> Path:
    """Return the folder of all local runs: `outputs` in the working directory, unless `RLVR_OUTPUTS` names another."""
    return Path(os.environ.get(OUTPUTS, "outputs")).absolute()


def sandbox_folder() -> Path:
    """Return the folder of Flyte's local cache and of what it points at."""
    return Path(os.environ.get(SANDBOX, "outputs/flyte")).absolute()


def check_folders() -> None:
    """Make the folders of run folders and of local results on this machine, and write a file in them and remove it.

    Raises:
        MistakeError: `RLVR_RUNS` begins with `file:`, or the system refuses to make or write a folder.
        OSError: a fault that may pass, such as a full disk.
    """
    for variable, folder in ((RUNS, folder_of("")), (OUTPUTS, outputs_folder())):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError as error:
            if error.errno in PASSING:
                raise
            raise MistakeError(
                f"the folder {folder} cannot be written ({error.strerror}); {variable} names another"
            ) from error


def folder_of(name: str) -> Path:
    """Return the folder of the run or cache called `name` on this machine."""
    runs = os.environ.get(RUNS, RUNS_HERE)
    return Path(RUNS_HERE if _is_address(runs) else runs).absolute() / name


def address_of(name: str, raw_output_prefix: str) -> str | None:
    """Return the address of the run or cache called `name` on blob storage; None: it is in its folder alone.

    Without `RLVR_RUNS` it is in the bucket of the raw outputs, but not below their prefix: that names the execution and
    the attempt, and another execution with the same inputs must find it.

    Raises:
        MistakeError: `RLVR_RUNS` begins with `file:`.
    """
    runs = os.environ.get(RUNS)
    if runs is None and not raw_output_prefix.startswith("file:") and _is_address(raw_output_prefix):
        scheme, _, path = raw_output_prefix.partition("://")
        runs = f"{scheme}://{path.partition('/')[0]}/rlvr-runs"
    return f"{runs.rstrip('/')}/{name}" if runs is not None and _is_address(runs) else None


def _is_address(runs: str) -> bool:
    if runs.startswith("file:"):
        raise MistakeError(f"{RUNS} = {runs}: a folder is given by its path, without file:")
    return "://" in runs
