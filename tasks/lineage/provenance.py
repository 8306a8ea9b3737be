"""Where a table came from, as its footer says it: inputs, specification, seed, code and image.

inputs        the content digests of what it was made from, by name
spec          the specification in full, run-time options included
spec_digest   of what of it a result depends on
seed          of what was drawn; null where nothing is
code_version  the digest of the stage's code (`tasks.lineage.code_digest`)
image         the container image that the stage ran in, by name
"""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from tasks.config import result_options
from tasks.lineage.code_digest import code_digest
from tasks.tables.schemas import canonical_json

IMAGE = "FLYTE_INTERNAL_IMAGE"
"""Environment variable: the name of a container's image. `images/Dockerfile` sets it, as Flyte's own images do."""

_IN_A_POD = "FLYTE_INTERNAL_EXECUTION_ID"
"""Environment variable that Flyte gives to every pod."""


def image() -> str:
    """The container image that this runs in, by name; without one, what else there is to say of the environment."""
    if name := os.environ.get(IMAGE):
        return name
    where = f"an image that does not say its name in {IMAGE}" if _IN_A_POD in os.environ else "this environment"
    return f"{where}, Python {platform.python_version()}"


def made_from(
    module: str, *, inputs: Mapping[str, str | list[str]], seed: int | Mapping[str, int] | None = None, **spec: Any
) -> dict[str, Any]:
    """What goes into the footer of a table.

    Args:
        module: of the stage.
        inputs: content digests, by name.
        seed: of what was drawn; where there are several, by name.
        spec: what else the stage was given: configurations and JSON values, by name.
    """
    return {
        "inputs": dict(inputs),
        "spec": {name: _in_full(value) for name, value in spec.items()},
        "spec_digest": hashlib.sha256(canonical_json(result_options(spec)).encode()).hexdigest(),
        "seed": dict(seed) if isinstance(seed, Mapping) else seed,
        "code_version": code_digest(module),
        "image": image(),
    }


def _in_full(value: Any) -> Any:
    return value.model_dump(mode="json") if isinstance(value, BaseModel) else value
