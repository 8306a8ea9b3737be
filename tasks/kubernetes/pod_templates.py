"""Checks inline Kubernetes pod templates given by users, and converts them to pod specs.

A template is a pod spec with Kubernetes' own names, plus `metadata` with labels and annotations. The stage runs in the
container `primary`, whatever its name in the pod.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from pathlib import PurePosixPath
from typing import Any

from tasks.config.loading import close_match
from tasks.kubernetes.pod_fields import ROOT, fields

PRIMARY = "primary"
"""Name of the stage's container in a template."""

SHARED_MEMORY = "/dev/shm"  # noqa: S108 (its path in Linux)
"""Folder through which the processes of an engine or a learner exchange tensors."""

WORKING = "/root"
"""Working folder of this project's images."""

OPTIONS = {"cpu": "cpu", "memory": "memory_gib", "ephemeral-storage": "disk_gib", "nvidia.com/gpu": "gpus"}
"""Options of a pod by the Kubernetes resource that each requests. A template may only contain other resources."""

OF_THE_STAGE = ("command", "args")
"""Fields of the primary container that the stage itself sets."""

SCALARS: dict[str, tuple[tuple[type, ...], str]] = {
    "str": ((str,), "a text; a number or true in quotes"),
    "int": ((int,), "a whole number"),
    "bool": ((bool,), "true or false"),
    "quantity": ((str, int, float), "a number, or a text such as 64Gi"),
    "any": ((object,), "any value"),
}
"""Python types of a scalar field, and a description of them, by its type in `pod_fields`."""

METADATA = {"labels": "{str}", "annotations": "{str}"}
"""Fields of the metadata of a template."""


def check_template(template: dict[str, Any]) -> None:
    """Check that all fields of a template exist in Kubernetes, and that none is set by the stage or an option.

    Raises:
        ValueError: a field is invalid. The message contains its path in the template and the accepted values.
    """
    _check_fields(template, {**fields()[ROOT], "metadata": "METADATA"}, "")
    for index, container in enumerate(template.get("containers", [])):
        if "name" not in container:
            raise ValueError(f"containers[{index}]: name is missing; the stage's own is {PRIMARY!r}")
    container = primary(template)
    for name in OF_THE_STAGE:
        if name in container:
            raise ValueError(f"containers: {name} of {PRIMARY!r} is set by the stage")
    for amounts in container.get("resources", {}).values():
        for name in OPTIONS.keys() & (amounts if isinstance(amounts, dict) else {}):
            raise ValueError(
                f"containers: {name} among the resources of {PRIMARY!r}: the option {OPTIONS[name]} sets it"
            )


def check_template_option(template: str | dict[str, Any] | None) -> None:
    """Check the option `template` of a pod if it is an inline template. Names and None are not checked.

    Raises:
        ValueError: as `check_template` raises it, after the option's name.
    """
    if isinstance(template, dict):
        try:
            check_template(template)
        except ValueError as error:
            raise ValueError(f"template: {error}") from None


def primary(template: dict[str, Any]) -> dict[str, Any]:
    """Return the stage's container in a template, or an empty mapping if the template has none."""
    return next((item for item in template.get("containers", []) if item.get("name") == PRIMARY), {})


def mounts_shared_memory(template: dict[str, Any]) -> bool:
    """Return whether a template mounts a volume on `/dev/shm`."""
    return any(mount.get("mountPath") == SHARED_MEMORY for mount in primary(template).get("volumeMounts", []))


def is_on_volume(template: dict[str, Any], variable: str, default: str) -> bool:
    """Return whether a folder of the stage's container is on a volume that does not use the pod's own disk.

    An `emptyDir` uses the pod's disk, unless it is in memory.

    Args:
        template: the inline template.
        variable: environment variable that names the folder.
        default: the folder if the template does not set the variable.
    """
    container = primary(template)
    variables = {item.get("name"): item.get("value") for item in container.get("env", [])}
    given = variables.get(variable)
    folder = PurePosixPath(WORKING, default if given is None or "://" in given else given)
    mounts = [mount for mount in container.get("volumeMounts", []) if folder.is_relative_to(mount.get("mountPath", ""))]
    if not mounts:
        return False
    innermost = max(mounts, key=lambda mount: len(mount["mountPath"]))
    volumes = {volume.get("name"): volume for volume in template.get("volumes", [])}
    empty = volumes.get(innermost.get("name"), {}).get("emptyDir")
    return empty is None or empty.get("medium") == "Memory"


def list_other_containers(template: dict[str, Any]) -> list[str]:
    """Return the names of a template's containers except the primary one, including init containers."""
    containers = [*template.get("containers", []), *template.get("initContainers", [])]
    return [item.get("name", "") for item in containers if item.get("name") != PRIMARY]


def extract_pod_spec(
    template: dict[str, Any], *, node_label: tuple[str, str] | None = None, shared_memory_gib: int | None = None
) -> dict[str, Any]:
    """Return the pod spec of a template, without its metadata.

    Args:
        template: the template, which may be empty.
        node_label: a label and its value that a node must have. A taint of the same name and value is tolerated.
        shared_memory_gib: size of a volume in memory that is mounted on `/dev/shm`. If None, no volume is mounted.
    """
    spec = deepcopy({name: value for name, value in template.items() if name != "metadata"})
    containers = spec.setdefault("containers", [])
    if not primary(spec):
        containers.append({"name": PRIMARY})
    if node_label is not None:
        label, value = node_label
        spec["nodeSelector"] = {**spec.get("nodeSelector", {}), label: value}
        tolerated = {"key": label, "operator": "Equal", "value": value, "effect": "NoSchedule"}
        spec["tolerations"] = [*spec.get("tolerations", []), tolerated]
    if shared_memory_gib is not None:
        memory = {"medium": "Memory", "sizeLimit": f"{shared_memory_gib}Gi"}
        spec["volumes"] = [*spec.get("volumes", []), {"name": "shared-memory", "emptyDir": memory}]
        container = primary(spec)
        mount = {"name": "shared-memory", "mountPath": SHARED_MEMORY}
        container["volumeMounts"] = [*container.get("volumeMounts", []), mount]
    return spec


def add_resources(container: dict[str, Any], requests: dict[str, str], limits: dict[str, str]) -> dict[str, Any]:
    """Return a container of a pod spec with these amounts added to its resources."""
    own = container.get("resources", {})
    added = {
        name: {**{key: str(amount) for key, amount in own.get(name, {}).items()}, **amounts}
        for name, amounts in (("limits", limits), ("requests", requests))
    }
    return {**container, "resources": {**own, **added}}


def _check_fields(value: Any, known: dict[str, str], path: str) -> None:
    if not isinstance(value, dict):
        raise ValueError(f"{path} = {value!r}: must be a mapping")
    for name, item in value.items():
        below = f"{path}.{name}" if path else name
        if name not in known:
            hint = close_match(name, known) or f"; there are: {', '.join(sorted(known))}"
            raise ValueError(f"{below}: Kubernetes has no such field{hint}")
        _check_value(item, known[name], below)


def _check_value(value: Any, kind: str, path: str) -> None:
    objects = {**fields(), "METADATA": METADATA}
    if kind in objects:
        _check_fields(value, objects[kind], path)
    elif kind[0] in "[{":
        if not isinstance(value, list if kind[0] == "[" else dict):
            raise ValueError(f"{path} = {value!r}: must be a {'list' if kind[0] == '[' else 'mapping'}")
        for below, item in _list_items(value, path):
            _check_value(item, kind[1:-1], below)
    else:
        types, description = SCALARS[kind]
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types and object not in types):
            raise ValueError(f"{path} = {value!r}: must be {description}")


def _list_items(value: list[Any] | dict[str, Any], path: str) -> Iterator[tuple[str, Any]]:
    """Yield the items of a list or a mapping, each with its path."""
    if isinstance(value, dict):
        yield from ((f"{path}[{name!r}]", item) for name, item in value.items())
    else:
        yield from ((f"{path}[{index}]", item) for index, item in enumerate(value))
