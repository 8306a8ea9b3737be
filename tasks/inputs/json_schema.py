"""JSON schemas of the files that users write, for their editors: `python -m tasks.inputs.json_schema FOLDER`."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from tasks.config import Extendable
from tasks.evaluation.spec import EvaluationSpec
from tasks.inputs.files import DataFile, Recipe

FILES: dict[str, type[Extendable]] = {"data": DataFile, "training": Recipe, "evaluation": EvaluationSpec}
"""The three kinds of files, by the option of the pipeline that takes them."""


def json_schema(model: type[BaseModel]) -> dict[str, Any]:
    """Return the schema of `model`: options with their docstrings, models with the first paragraph of theirs.

    A file that may extend another requires nothing, and takes dotted keys.
    """
    schema = model.model_json_schema()
    for part in (schema, *schema.get("$defs", {}).values()):
        for described in (part, *part.get("properties", {}).values()):
            if "description" in described:
                described["description"] = re.sub(r"\s+", " ", described["description"].split("\n\n")[0])
    if issubclass(model, Extendable):
        schema.pop("required", None)
        about = f"a path of a file relative to this one, or the name of one in {model.folder.name}/"
        schema["properties"]["extends"] = {"type": "string", "description": about}
        schema["patternProperties"] = {r"^\w+(\.\w+)+$": {"description": "short for a mapping in a mapping"}}
    return schema


def write(folder: Path) -> None:
    """Write `data.json`, `training.json` and `evaluation.json` to `folder`."""
    for name, model in FILES.items():
        (folder / f"{name}.json").write_text(json.dumps(json_schema(model), indent=1) + "\n")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
