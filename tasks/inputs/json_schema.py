"""Writes JSON schemas of the users' YAML files, for editors: `python -m tasks.inputs.json_schema FOLDER`."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from tasks.config.loading import Extendable
from tasks.inputs.benchmarks import BenchmarkFile
from tasks.inputs.experiments import MODELS, ExperimentFile

FILES: dict[str, type[Extendable]] = MODELS | {"benchmark": BenchmarkFile, "experiment": ExperimentFile}


def json_schema(model: type[BaseModel]) -> dict[str, Any]:
    """Return the schema of `model`. Options are described by their docstrings, models by the first paragraph of theirs.

    A file that may extend another accepts dotted keys and has no required keys, including in its nested mappings.
    """
    schema = model.model_json_schema()
    for part in (schema, *schema.get("$defs", {}).values()):
        for described in (part, *part.get("properties", {}).values()):
            if "description" in described:
                described["description"] = re.sub(r"\s+", " ", described["description"].split("\n\n")[0])
    if issubclass(model, Extendable):
        schema.pop("required", None)
        for option in schema["properties"].values():
            schema.get("$defs", {}).get(option.get("$ref", "").rpartition("/")[2], {}).pop("required", None)
        about = f"a path of a file relative to this one, or the name of one in {model.folder.name}/"
        schema["properties"]["extends"] = {"type": "string", "description": about}
        schema["patternProperties"] = {r"^\w+(\.\w+)+$": {"description": "short for a mapping in a mapping"}}
    return schema


def write(folder: Path) -> None:
    """Write the schema of each kind of file to `folder`, such as `data.json`."""
    for name, model in FILES.items():
        (folder / f"{name}.json").write_text(json.dumps(json_schema(model), indent=1) + "\n")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
