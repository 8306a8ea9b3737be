"""Make a backend compose the parts of the pipeline again, with their stages from the cache.

pyflyte run --remote tasks/inputs/composed_again.py compose_again

`--overwrite-cache` would run a dynamic task and all stages in it again. Here a mark on the storage changes the cache
keys of the dynamic tasks alone: preflight reads it into the data file.
"""

from __future__ import annotations

import uuid

from flytekit import FlyteContextManager, Resources

from images import DATA
from tasks.failures import MistakeError
from tasks.flyte.stages import storage_location, uncached_stage

NAME = "composed_again"
"""The name of the file with the mark, among the runs."""


def last_mark() -> str | None:
    """Return the last mark that `compose_again` left on the storage, or None if there is none."""
    system, location = storage_location(NAME)
    try:
        return str(system.cat_file(location).decode())
    except FileNotFoundError:
        return None


@uncached_stage(container_image=DATA, requests=Resources(cpu="1", mem="1Gi"))
def compose_again() -> str:
    """Leave a new mark, after which each part of the pipeline is composed once more from cached stages.

    Raises:
        MistakeError: the task runs on this machine, which caches no parts.
    """
    state = FlyteContextManager.current_context().execution_state
    if state is not None and state.is_local_execution():
        raise MistakeError("on this machine parts of the pipeline are always composed: run it with --remote")
    system, location = storage_location(NAME)
    mark = uuid.uuid4().hex
    system.pipe_file(location, mark.encode())
    return mark
