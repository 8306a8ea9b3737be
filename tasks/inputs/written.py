"""The options of a file that are not at their defaults, as the content of a file that gives the same run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from tasks.config import Extendable
from tasks.config_fields import with_paths


def written_options(spec: Extendable, *, absolute: bool = True) -> dict[str, Any]:
    """Return the options of `spec` that are not at their defaults, those of the files that it extends included.

    A specification does not know which options the user wrote, as Flyte hands all of them to every task.

    Args:
        spec: the specification.
        absolute: True: relative paths are made absolute, so that a file with these options gives the same specification
            wherever it lies on this machine; False: they stay, as those of a pod are of no use elsewhere.
    """
    options: dict[str, Any] = _not_default(spec)
    if type(spec).model_validate(options) != spec:
        # An option may count as given although it has its default, such as a source's seed beside that of the file.
        options = spec.model_dump(mode="json")
    if not absolute:
        return options
    return with_paths(type(spec), options, Path(), lambda path: str(Path(path).absolute()))


def _not_default(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return {
            name: _not_default(getattr(value, name))
            for name, field in type(value).model_fields.items()
            # The kind of a mapping that may be one of several always stays.
            if name == "kind" or getattr(value, name) != field.get_default(call_default_factory=True)
        }
    if isinstance(value, dict):
        return {key: _not_default(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_not_default(item) for item in value]
    return to_jsonable_python(value)
