"""Collects the provenance of a table for its footer: inputs, specification, seed, code and image.

inputs        the content digests of the inputs, by name
spec          the full specification, including run-time options
spec_digest   the digest of the options that the result depends on
seed          the seed of random numbers, or null if none are used
code_version  the digest of the stage's code (`tasks.lineage.code_digest`)
image         the name of the container image of the stage
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from tasks.config.cache_keys import result_options
from tasks.lineage.code_digest import code_digest
from tasks.machine.image import image
from tasks.tables.schemas import json_digest


def made_from(
    module: str, *, inputs: Mapping[str, str | list[str]], seed: int | Mapping[str, int] | None = None, **spec: Any
) -> dict[str, Any]:
    """Return the provenance of a table, for its footer.

    Args:
        module: module of the stage.
        inputs: content digests of the inputs, by name.
        seed: Optional. Seed of random numbers, or several seeds by name.
        spec: further inputs of the stage: configurations and JSON values, by name.
    """
    return {
        "inputs": dict(inputs),
        "spec": {name: _to_json(value) for name, value in spec.items()},
        "spec_digest": json_digest(result_options(spec)),
        "seed": dict(seed) if isinstance(seed, Mapping) else seed,
        "code_version": code_digest(module),
        "image": image(),
    }


def _to_json(value: Any) -> Any:
    return value.model_dump(mode="json") if isinstance(value, BaseModel) else value
