"""Stores the routes of a response as a value of a table's column."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from tasks.generation.interface import Routes

ROUTES = pa.struct([("shape", pa.list_(pa.int32())), ("experts", pa.large_binary())])
"""The routes of a response: `[tokens, layers, k]`, and the numbers of the experts in this order, one or two bytes each,
the lower one first. They are for the tokens of the prompt and of the response, without the last."""


def encode_routes(routes: Routes | None) -> dict[str, Any] | None:
    """Return routes as a value of `ROUTES`, or None without routes."""
    if routes is None:
        return None
    little = routes.astype(routes.dtype.newbyteorder("<"), copy=False)
    return {"shape": list(routes.shape), "experts": little.tobytes()}


def decode_routes(value: dict[str, Any] | None) -> Routes | None:
    """Return the routes in a value of `ROUTES`."""
    if value is None:
        return None
    shape, experts = value["shape"], value["experts"]
    size = len(experts) // max(int(np.prod(shape)), 1)
    return np.frombuffer(experts, "<u2" if size == 2 else "u1").reshape(shape)
