"""JSON schemas of the files that users write, for their editors: `python -m tasks.inputs.json_schema FOLDER`."""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel

from tasks.config import Extendable

_ENTRY = re.compile(r"^    (\w+(?:, \w+)*): (.*(?:\n {6,}.*)*)", re.MULTILINE)
"""An entry of a docstring's section `Attributes`: the names, and what they are."""


def json_schema(model: type[BaseModel]) -> dict[str, Any]:
    """The schema of a `model`, with what docstrings say of it and of its fields; `extends` makes nothing required."""
    made = model.model_json_schema()
    for name, each in _models(model):
        part = made if each is model else made["$defs"].get(name, {})
        part["description"] = _text(inspect.getdoc(each) or "").split("\n\n")[0]
        for field, text in attributes(each).items():
            if text != "see there.":
                part.get("properties", {}).get(field, {}).setdefault("description", text)
    if issubclass(model, Extendable):
        made.pop("required", None)
        about = f"a path of a file relative to this one, or the name of one in {model.folder.name}/"
        made["properties"]["extends"] = {"type": "string", "description": about}
        made["patternProperties"] = {r"^\w+(\.\w+)+$": {"description": "short for a mapping in a mapping"}}
    return made


def attributes(model: type[BaseModel]) -> dict[str, str]:
    """What the docstrings of `model` and of those that it extends say of each attribute."""
    found: dict[str, str] = {}
    for each in reversed(model.__mro__):
        section = (inspect.getdoc(each) or "").partition("Attributes:\n")[2] if issubclass(each, BaseModel) else ""
        for names, text in _ENTRY.findall(section):
            found |= dict.fromkeys(names.split(", "), _text(text))
    return found


def _text(doc: str) -> str:
    return re.sub(r"(?<!\n)\n *(?!\n)", " ", doc).strip()


def _models(model: type[BaseModel]) -> Iterator[tuple[str, type[BaseModel]]]:
    """`model` and all that its fields hold, at any depth, by name."""
    waiting, seen = [model], set()
    while waiting:
        each = waiting.pop()
        if each not in seen:
            seen.add(each)
            yield each.__name__, each
            waiting += [found for field in each.model_fields.values() for found in _within(field.annotation)]


def _within(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [found for part in get_args(annotation) for found in _within(part)]


def write(folder: Path) -> None:
    """Write `data.json`, `training.json` and `evaluation.json`."""
    from tasks.evaluation.spec import EvaluationSpec
    from tasks.inputs.files import DataFile, Recipe

    for name, model in (("data", DataFile), ("training", Recipe), ("evaluation", EvaluationSpec)):
        (folder / f"{name}.json").write_text(json.dumps(json_schema(model), indent=1) + "\n")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
