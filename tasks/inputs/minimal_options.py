"""Reduces a file to its non-default options, as the content of a shorter file that gives the same run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from tasks.config.fields import PathMark, replace_files, replace_paths
from tasks.config.loading import Config
from tasks.config.nested_values import changed
from tasks.storage.sent_files import SentFile


def written_options(spec: Config, *, absolute: bool = True) -> dict[str, Any]:
    """Return the non-default options of `spec`, including options from the files that it extends.

    A specification does not know which options the user wrote, because Flyte passes all of them to every task. For
    files that a launch has sent, the user's original paths are returned.

    Args:
        spec: the specification.
        absolute: whether to make relative paths absolute, so that a file with these options gives the same
            specification anywhere on this machine. If false, they are unchanged, because absolute paths in a pod are of
            no use elsewhere.
    """
    spec = replace_files(spec, _restore_name)
    options: dict[str, Any] = _drop_defaults(spec)
    if type(spec).model_validate(options).model_dump() != spec.model_dump():
        # An option can be meaningful although it has its default, such as a source's seed that overrides the file's
        # seed, or a temperature that overrides a benchmark's.
        options = spec.model_dump(mode="json")
    if not absolute:
        return options
    return replace_paths(type(spec), options, Path(), _resolve_path)


def _resolve_path(path: str) -> str:
    """Return an absolute path without `..`, behind which may be a link."""
    return str(Path(path).resolve() if ".." in Path(path).parts else Path(path).absolute())


def _restore_name(_: str, mark: PathMark, value: Any) -> Any:
    """Return an option with the file paths that the user gave."""
    if isinstance(value, SentFile):
        return value.named
    if not isinstance(value, list) or not any(isinstance(file, SentFile) for file in value):
        return value
    return list(dict.fromkeys(file.named if isinstance(file, SentFile) else file for file in value))


def _drop_defaults(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return {
            name: _drop_defaults(getattr(value, name))
            for name, field in type(value).model_fields.items()
            # The `kind` of a union member is always kept.
            if name == "kind" or getattr(value, name) != field.get_default(call_default_factory=True)
        }
    return changed(
        value, lambda leaf: _drop_defaults(leaf) if isinstance(leaf, BaseModel) else to_jsonable_python(leaf)
    )
