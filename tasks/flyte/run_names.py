"""Names the run that this process is part of."""

from __future__ import annotations

import os

from flytekit import current_context


def run_id() -> str:
    """Return the name of this run: the execution's name on a cluster, or else the process id and start time."""
    context = current_context()
    execution = context.execution_id
    if execution is None or execution.project in ("local", ""):
        return f"{os.getpid()}-{context.execution_date:%Y%m%dT%H%M%S}"
    return str(execution.name)
