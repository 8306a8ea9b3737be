"""Checks that a folder contains a Hugging Face model that engines, learner and LLM judges can load."""

from __future__ import annotations

import contextlib
import datetime
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tasks.failures import MistakeError, one_line

TODAY = datetime.date(2024, 7, 26)
"""Date for chat templates that print today's date (Llama 3.2's default). With the real date, prompts, caches and
resumed runs would change every day."""

CHAT_TEMPLATE = "chat_template.jinja"
"""Name of the file with a model's chat template."""

EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
"""Keys of the number of experts in `config.json`: Qwen's, Mixtral's, DeepSeek's and Ernie's."""


class ModelError(MistakeError):
    """A model folder cannot be used. The message has the folder or file, the problem, and what would be accepted."""


def check_model_folder(path: str | Path, needs_template: bool = True) -> Path:
    """Check that `path` contains a config, safetensors and a tokenizer with a chat template, and return it.

    Args:
        path: the folder.
        needs_template: if False, the chat template may be missing.

    Raises:
        ModelError: one of them is missing, unreadable or truncated.
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
    has_template = (folder / CHAT_TEMPLATE).is_file() or json.loads((folder / "tokenizer_config.json").read_text()).get(
        "chat_template"
    )
    if needs_template and not has_template:
        raise ModelError(
            f"model folder {folder}: the tokenizer has no chat template; add {CHAT_TEMPLATE} to the folder, or give "
            "model.chat_template"
        )
    for file in list_weight_files(folder):
        _check_whole(file)
    return folder


def _check_whole(file: Path) -> None:
    """Raise `ModelError` if a safetensors file is missing or shorter than its header says."""
    if not file.is_file():
        raise ModelError(f"model folder {file.parent}: no {file.name}, which model.safetensors.index.json names")
    size = file.stat().st_size
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        try:
            tensors = json.loads(stream.read(min(length, size)))
            needed = 8 + length + max(t["data_offsets"][1] for name, t in tensors.items() if name != "__metadata__")
        except (ValueError, TypeError, AttributeError, KeyError):
            raise ModelError(f"model folder {file.parent}: {file.name} is not a safetensors file") from None
    if size < needed:
        raise ModelError(f"model folder {file.parent}: {file.name} is truncated: it has {size:,} of {needed:,} bytes")


@contextlib.contextmanager
def convert_load_errors(folder: str | Path) -> Iterator[None]:
    """Convert errors of transformers and safetensors in the block, which loads the model or tokenizer in `folder`.

    Raises:
        ModelError: instead of the libraries' errors. System errors are not converted, because they may be temporary.
    """
    from safetensors import SafetensorError

    try:
        yield
    except (ValueError, KeyError, SafetensorError, OSError) as error:
        if isinstance(error, MistakeError) or (isinstance(error, OSError) and error.errno is not None):
            raise
        raise ModelError(f"model folder {folder}: it cannot be loaded: {one_line(error)}") from error


def make_date_variables(template: str) -> dict[str, Any]:
    """Return the variables that make a chat template print `TODAY`, or {} if it does not print the date."""
    return {"strftime_now": TODAY.strftime} if "strftime_now" in template else {}


def has_experts(folder: Path) -> bool:
    """Return whether `config.json` in a model folder describes a mixture of experts."""
    config = json.loads((folder / "config.json").read_text())
    return any((config.get("text_config") or config).get(name) for name in EXPERTS)


def list_weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files that transformers reads: `model.safetensors`, else the files in the index, else all.

    A folder may contain the same weights twice, as Mistral's do: in shards and in `consolidated.safetensors`.
    """
    index = folder / "model.safetensors.index.json"
    if (folder / "model.safetensors").is_file():
        names = {"model.safetensors"}
    elif index.is_file():
        names = set(json.loads(index.read_text())["weight_map"].values())
    else:
        names = {path.name for path in folder.glob("*.safetensors")}
    return [folder / name for name in sorted(names)]


def count_weight_bytes(folder: Path) -> int:
    """Return the size in bytes of the weights that a loader reads (`list_weight_files`)."""
    return sum(path.stat().st_size for path in list_weight_files(folder))
