"""Determines the locations of files that are kept between attempts: run folders, rollout caches and prepared models.

    RLVR_RUNS        on this machine       on blob storage
    not set          outputs/runs/NAME     <bucket of the raw outputs>/rlvr-runs/NAME, only on a cluster
    a folder         <folder>/NAME         -
    an address       outputs/runs/NAME     <address>/NAME

Pods share only blob storage. A retry, a recovered execution or a second start must find the rollouts and checkpoints of
the previous attempt.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from tasks.failures import PASSING, MistakeError

RUNS = "RLVR_RUNS"
"""Name of the environment variable with the location of all runs: an address on blob storage, or a folder that every
attempt can access."""

RUNS_HERE = "outputs/runs"
"""The folder of run folders on this machine, unless `RLVR_RUNS` is a folder."""

RESPONSE_LIST = "responses.json"
"""Name of the list of a run's files of responses on blob storage, next to their folder."""

OUTPUTS = "RLVR_OUTPUTS"
"""Name of the environment variable with the parent folder of the folders of all local runs."""


SANDBOX = "FLYTE_SDK_LOCAL_SANDBOX"
"""Flytekit's environment variable with the folder of all files that its local runs write, including their cache."""


def outputs_folder() -> Path:
    """Return the folder of all local runs: `RLVR_OUTPUTS` if set, otherwise `outputs` in the working directory."""
    return Path(os.environ.get(OUTPUTS, "outputs")).absolute()


def sandbox_folder() -> Path:
    """Return the folder of Flyte's local cache and of the files that it refers to."""
    return Path(os.environ.get(SANDBOX, "outputs/flyte")).absolute()


def check_sandbox() -> None:
    """Check that the folder of Flyte's local files is absolute, because flytekit reads a relative one as below `/tmp`.

    Raises:
        MistakeError: it is relative.
    """
    given = os.environ.get(SANDBOX, "/")
    if not os.path.isabs(given):
        raise MistakeError(f"{SANDBOX} = {given}: must be an absolute path: export {SANDBOX}=$PWD/{given}")


def check_folders() -> None:
    """Create the folders of runs and of local results on this machine, and write and remove a file in each.

    Raises:
        MistakeError: `RLVR_RUNS` begins with `file:`, or the system refuses to create or write a folder.
        OSError: a temporary failure, such as a full disk.
    """
    for variable, folder in ((RUNS, resolve_folder("")), (OUTPUTS, outputs_folder())):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError as error:
            if error.errno in PASSING:
                raise
            raise MistakeError(
                f"the folder {folder} cannot be written ({error.strerror}); set {variable} to another one"
            ) from error


def resolve_folder(name: str) -> Path:
    """Return the folder of the run or cache called `name` on this machine."""
    runs = os.environ.get(RUNS, RUNS_HERE)
    return Path(RUNS_HERE if _is_address(runs) else runs).absolute() / name


def resolve_address(name: str, raw_output_prefix: str) -> str | None:
    """Return the address of the run or cache called `name` on blob storage, or None if it is only in a local folder.

    Without `RLVR_RUNS` it is in the bucket of the raw outputs, but not below their prefix. The prefix contains the
    execution and the attempt, but another execution with the same inputs must find it.

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
