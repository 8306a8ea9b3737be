"""Copies the files of a model folder that contain no weights; every exported policy gets them."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

WEIGHTS = re.compile(r"\.(safetensors|bin|pt|pth|ckpt|gguf|ggml|h5|msgpack|onnx|onnx_data|ot|npz|tflite)(\.|$)")
"""Names of files that contain weights, or an index of them."""

BUFFERS = "buffers"
"""Folder, next to the versions of the weights, of the files that versions are written into (`weight_buffers`)."""


def copy_permissions(folder: Path) -> None:
    """Give the weights in a model folder the permissions of its `config.json`.

    The library safetensors creates files that only their owner may read, for any umask.
    """
    for path in folder.rglob("*.safetensors"):
        shutil.copymode(folder / "config.json", path)


def copy_all_but_weights(source: Path, destination: Path, dtype: str) -> None:
    """Copy the files of a Hugging Face folder except its weights, and set `dtype` as their type in `config.json`.

    Weights in other formats are also left out: they are the initial model's, and a loader may prefer them.
    """
    for path in source.iterdir():
        if path.is_file() and not WEIGHTS.search(path.name):
            shutil.copy(path, destination / path.name)
    config = json.loads((source / "config.json").read_text())
    config.pop("torch_dtype", None)  # the old name of the option
    (destination / "config.json").write_text(json.dumps(config | {"dtype": dtype}, indent=2) + "\n")
