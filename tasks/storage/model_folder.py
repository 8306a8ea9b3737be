"""Checks that a folder holds a Hugging Face model that engines, learner and judges can load."""

from __future__ import annotations

import json
from pathlib import Path

from tasks.failures import MistakeError


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
