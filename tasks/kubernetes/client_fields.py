"""Reads the fields of pods from the models of Kubernetes' client, and prints them as `pod_fields.json` has them.

The client is an extra of development: `make pod-fields` writes the file with it.
"""

from __future__ import annotations

import json
import re
from typing import Any

from tasks.kubernetes.pod_fields import ROOT

SCALARS = {"str": "str", "int": "int", "bool": "bool", "datetime": "str", "object": "any"}
"""Types of scalar fields, by their types in the client."""

QUANTITIES = ("divisor", "limits", "overhead", "requests", "sizeLimit")
"""Fields with quantities, which are texts in the client."""

_CONTAINER = re.compile(r"(?i)(list|dict)[\[(](?:str, )?(.+)[\])]")
_PREFIX = re.compile(r"^(CoreV1|V1)")


def client_fields() -> dict[str, dict[str, str]]:
    """Return the type of each field of pods, by the names of its object and the field (`pod_fields.fields`)."""
    from kubernetes import client

    objects: dict[str, dict[str, str]] = {}
    waiting: list[Any] = [getattr(client, f"V1{ROOT}")]
    while waiting:
        model = waiting.pop()
        name = _PREFIX.sub("", model.__name__)
        if name in objects:
            continue
        names: dict[str, str] = model.attribute_map
        objects[name] = {names[key]: _kind(kind, names[key]) for key, kind in model.openapi_types.items()}
        inner = {_CONTAINER.sub(r"\2", kind) for kind in model.openapi_types.values()}
        waiting += [getattr(client, kind) for kind in inner - set(SCALARS)]
    return {name: dict(sorted(objects[name].items())) for name in sorted(objects)}


def _kind(kind: str, field: str) -> str:
    """Return the type of a field, given its type in the client, such as `list[V1Volume]`."""
    if container := _CONTAINER.fullmatch(kind):
        inner = _kind(container[2], field)
        return f"[{inner}]" if container[1].lower() == "list" else f"{{{inner}}}"
    if kind == "str" and field in QUANTITIES:
        return "quantity"
    return SCALARS.get(kind) or _PREFIX.sub("", kind)


if __name__ == "__main__":
    lines = [f"{json.dumps(name)}: {json.dumps(fields)}" for name, fields in client_fields().items()]
    print("{", ",\n".join(lines), "}", sep="\n")
