"""The mark by which the parts of the pipeline are not taken from a backend's cache.

pyflyte run --remote tasks/inputs/composed_again.py compose_again

Flyte overwrites a cached result of a dynamic task only together with those of all stages in it. Preflight puts the mark
into the data file instead, and so into the cache keys of the parts alone: each is composed once more, and its stages
are taken from the cache.
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
    """Return the mark that `compose_again` left last on the storage; None: it left none."""
    system, location = storage_location(NAME)
    try:
        return str(system.cat_file(location).decode())
    except FileNotFoundError:
        return None


@uncached_stage(container_image=DATA, requests=Resources(cpu="1", mem="1Gi"))
def compose_again() -> str:
    """Leave a new mark: after it, every part of the pipeline is composed again, from stages that are cached.

    Raises:
        MistakeError: the stages run on this machine, where nothing is to be forgotten.
    """
    state = FlyteContextManager.current_context().execution_state
    if state is not None and state.is_local_execution():
        raise MistakeError("on this machine parts of the pipeline are always composed: run it with --remote")
    system, location = storage_location(NAME)
    mark = uuid.uuid4().hex
    system.pipe_file(location, mark.encode())
    return mark
