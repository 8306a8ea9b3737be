"""Where what outlives an attempt is kept: rollouts and training runs, on this machine or on blob storage.

Pods share nothing but blob storage, and a retry, a recovered execution or a second start must find what was paid for.
"""

from __future__ import annotations

import os
from pathlib import Path

RUNS = "RLVR_RUNS"
"""Environment variable: where runs are kept. An address on blob storage, or a folder that every attempt sees.

Without it: the bucket of the raw outputs on a cluster, `RUNS_HERE` on a laptop.
"""

RUNS_HERE = "outputs/runs"
"""The folder of run folders on this machine."""


def folder_of(name: str) -> Path:
    """Where what is called `name` is on this machine."""
    runs = os.environ.get(RUNS, RUNS_HERE)
    return Path(RUNS_HERE if _is_address(runs) else runs).absolute() / name


def address_of(name: str, raw_output_prefix: str) -> str | None:
    """The address of what is called `name` on blob storage; None where it is kept in its folder.

    Without `RLVR_RUNS` it is in the bucket of the raw outputs, but not below their prefix: that names the execution and
    the attempt, and another execution with the same inputs must find it.
    """
    runs = os.environ.get(RUNS)
    if runs is None and not raw_output_prefix.startswith("file:") and _is_address(raw_output_prefix):
        scheme, _, path = raw_output_prefix.partition("://")
        runs = f"{scheme}://{path.partition('/')[0]}/rlvr-runs"
    return f"{runs.rstrip('/')}/{name}" if runs is not None and _is_address(runs) else None


def _is_address(runs: str) -> bool:
    if runs.startswith("file:"):
        raise ValueError(f"{RUNS} = {runs}: a folder is given by its path, without file:")
    return "://" in runs
