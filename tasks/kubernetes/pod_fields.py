"""Lists the fields of a Kubernetes pod spec and its nested objects, in the client version that the tests compare with.

Files are checked on machines without Kubernetes' client, which neither flytekit nor this project installs, and which
takes seconds to import. So `pod_fields.json` contains what `client_fields` reads from it.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

ROOT = "PodSpec"
"""The type of a pod template."""

FILE = Path(__file__).with_suffix(".json")
"""Each object and its fields, each with its type: a scalar, another object, a `[list]` or a `{mapping}` by name.

A quantity is a number or a text such as `64Gi`.
"""


@cache
def fields() -> dict[str, dict[str, str]]:
    """Return the type of each field, by the name of its object and the name of the field in Kubernetes' files."""
    objects: dict[str, dict[str, str]] = json.loads(FILE.read_text())
    return objects
