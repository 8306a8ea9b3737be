"""Awaits calls of Ray actors."""

from __future__ import annotations

import asyncio
from typing import Any


async def result_of(call: Any) -> Any:
    """Return the result of a Ray call. If this task is cancelled, cancel the call, which Ray would continue and repeat.

    Raises:
        RayError, RayTaskError: the actor was lost, or the call raised.
    """
    import ray

    try:
        return await call
    except asyncio.CancelledError:
        ray.cancel(call)
        raise
