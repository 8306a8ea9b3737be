"""Checks that a folder holds a Hugging Face model that engines, learner and judges can load."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

from tasks.failures import MistakeError

TODAY = datetime.date(2024, 7, 26)
"""Date that templates print which ask for today's (Llama 3.2's own default): by the real one, prompts, caches and
resumed runs would change by the day."""


class ModelError(MistakeError):
    """A model folder cannot be used; the message names the folder or file, the fault, and what would be accepted."""


def check_model_folder(path: str | Path) -> Path:
    """Return `path`, checked to hold a config, safetensors and a tokenizer with a chat template.

    Raises:
        ModelError: one of them is missing or unreadable.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise ModelError(f"model folder {folder}: no such folder")
    for name in ("config.json", "tokenizer_config.json"):
        if not (folder / name).is_file():
            raise ModelError(f"model folder {folder}: no {name}")
        try:
            content = json.loads((folder / name).read_text())
        except ValueError as error:
            raise ModelError(f"model folder {folder}: {name} is not JSON: {error}") from None
        if not isinstance(content, dict):
            raise ModelError(f"model folder {folder}: {name} is not a JSON object")
    if not any(folder.glob("*.safetensors")):
        raise ModelError(f"model folder {folder}: no weights (*.safetensors)")
    has_template = (folder / "chat_template.jinja").is_file() or json.loads(
        (folder / "tokenizer_config.json").read_text()
    ).get("chat_template")
    if not has_template:
        raise ModelError(
            f"model folder {folder}: the tokenizer has no chat template; add chat_template.jinja to the folder"
        )
    return folder


def date_variables(template: str) -> dict[str, Any]:
    """Return the variables by which a chat template that asks for the date prints `TODAY`; {} for any other."""
    return {"strftime_now": TODAY.strftime} if "strftime_now" in template else {}


def weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files that transformers reads: `model.safetensors`, else those of the index, else all.

    A folder may hold the same weights twice, as Mistral's do: in shards and in `consolidated.safetensors`.
    """
    index = folder / "model.safetensors.index.json"
    if (folder / "model.safetensors").is_file():
        names = {"model.safetensors"}
    elif index.is_file():
        names = set(json.loads(index.read_text())["weight_map"].values())
    else:
        names = {path.name for path in folder.glob("*.safetensors")}
    return [folder / name for name in sorted(names)]


def weight_bytes(folder: Path) -> int:
    """Return the size of the weights that a loader reads (`weight_files`), bytes."""
    return sum(path.stat().st_size for path in weight_files(folder))
