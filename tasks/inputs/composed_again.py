"""Makes a backend run the dynamic tasks of the pipeline again, with their stages from the cache.

pyflyte run --remote tasks/inputs/composed_again.py compose_again

`--overwrite-cache` would run a dynamic task and all stages in it again. Instead, a mark on the storage changes only the
cache keys of the dynamic tasks: preflight reads the mark into the data file.
"""

from __future__ import annotations

import uuid

from flytekit import FlyteContextManager, Resources

from images import DATA
from tasks.failures import MistakeError
from tasks.flyte.stages import find_storage_location, uncached_stage

NAME = "composed_again"
"""Name of the file with the mark, in the folder of runs."""


def read_last_mark() -> str | None:
    """Return the last mark that `compose_again` wrote to the storage, or None if there is none."""
    system, location = find_storage_location(NAME)
    try:
        return str(system.cat_file(location).decode())
    except FileNotFoundError:
        return None


@uncached_stage(container_image=DATA, requests=Resources(cpu="1", mem="1Gi"))
def compose_again() -> str:
    """Write a new mark, after which each part of the pipeline is composed again from cached stages.

    Raises:
        MistakeError: the task runs on this machine, where dynamic tasks are not cached.
    """
    state = FlyteContextManager.current_context().execution_state
    if state is not None and state.is_local_execution():
        raise MistakeError("on this machine parts of the pipeline are always composed: run it with --remote")
    system, location = find_storage_location(NAME)
    mark = uuid.uuid4().hex
    system.pipe_file(location, mark.encode())
    return mark
