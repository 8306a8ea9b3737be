"""Checks the services that a run uses: storage, the hub, the judge, secrets, and KubeRay."""

from __future__ import annotations

import hashlib
import os
import re
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from tasks.config.loading import SpecError
from tasks.generation.models import HubModel
from tasks.gpu_check.results import Findings, SkippedError
from tasks.inputs.files import DataFile, Recipe
from tasks.inputs.judges import check_judge
from tasks.sourcing.loader_specs import HuggingFaceLoader
from tasks.verifiers.registry import CHAT

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

STORAGE_BYTES = 256 << 20
"""Number of bytes written to storage and read back."""

PIECE = 8 << 20
"""Size of one write, bytes."""

LEAST_SPEED = 10e6
"""Minimum speed of storage, bytes/s. Below it, checkpoints and models would take hours."""

KUBERAY_TAGS = "RAY_USAGE_STATS_EXTRA_TAGS"
"""Environment variable of the head's pod that contains KubeRay's version, as `kuberay_version=v1.5.0;...`."""

OLDEST_KUBERAY = (1, 5)
"""Minimum version of KubeRay. It ends a job whose head has crashed; older versions leave the job running forever."""


class HubName(NamedTuple):
    """A repository on the hub: `model` or `dataset`, its id, and its revision, or None for the default branch."""

    kind: str
    name: str
    revision: str | None


def check_storage(
    findings: Findings, system: AbstractFileSystem, location: str, size: int = STORAGE_BYTES, least: float = LEAST_SPEED
) -> None:
    """Write a file to storage, read it back and remove it.

    Args:
        findings: receives the measurements, the faults and the note.
        system: file system of the storage.
        location: folder of the runs there. It is created if it does not exist.
        size: size of the file, bytes.
        least: minimum speed, bytes/s. A slower storage is a fault.
    """
    piece, path = os.urandom(PIECE), f"{location.rstrip('/')}/cluster-check-{uuid.uuid4().hex}"
    pieces = [piece] * max(1, size // PIECE)
    written, read = hashlib.sha256(), hashlib.sha256()
    began = time.perf_counter()
    try:
        system.makedirs(location, exist_ok=True)
        with system.open(path, "wb") as file:
            for part in pieces:
                written.update(part)
                file.write(part)
        middle = time.perf_counter()
        with system.open(path, "rb") as file:
            while part := file.read(PIECE):
                read.update(part)
        end = time.perf_counter()
    except Exception as error:
        findings.faults.append(f"{location} cannot be written and read: {type(error).__name__}: {error}.")
        return
    finally:
        if system.exists(path):
            system.rm(path)
    total = PIECE * len(pieces)
    speeds = {"written": total / (middle - began), "read": total / (end - middle)}
    findings.figures |= {f"{name}, MB/s": speed / 1e6 for name, speed in speeds.items()}
    findings.require(read.digest() == written.digest(), f"{location} returns other bytes than were written to it.")
    for name, speed in speeds.items():
        findings.require(
            speed >= least, f"{location} is {name} at {speed / 1e6:.1f} MB/s, less than {least / 1e6:g}: too slow."
        )
    findings.note = (
        f"{location} is written at {speeds['written'] / 1e6:,.0f} MB/s and read at {speeds['read'] / 1e6:,.0f}."
    )


def list_hub_names(data: DataFile, training: Recipe) -> list[HubName]:
    """Return the hub repositories of the recipe's model, the sources and the evaluation sets."""
    names = []
    if isinstance(source := training.model.source, HubModel):
        names.append(HubName("model", source.name, source.revision))
    loaders = [source.loader for source in (*data.used_sources, *(known.source for known in data.evaluation_sets))]
    names += [
        HubName("dataset", loader.dataset, loader.revision)
        for loader in loaders
        if isinstance(loader, HuggingFaceLoader) and loader.dataset is not None
    ]
    return list(dict.fromkeys(names))


def check_hub(findings: Findings, names: Sequence[HubName]) -> None:
    """Query the hub for each repository, with the network and token of this pod.

    Raises:
        SkippedError: nothing comes from the hub.
    """
    if not names:
        raise SkippedError("Neither the model nor a source is on the hub.")
    from huggingface_hub import HfApi

    began, asked = time.perf_counter(), 0
    for kind, name, revision in names:
        try:
            HfApi().repo_info(name, revision=revision, repo_type=kind, timeout=30)
            asked += 1
        except Exception as error:  # from the network or the hub: one message per repository
            sentence = " ".join(str(error).split())
            findings.faults.append(f"The hub does not provide {kind} {name}: {type(error).__name__}: {sentence[:200]}.")
    seconds = time.perf_counter() - began
    findings.note = f"The hub provides all {asked} repositories, in {seconds / len(names):.1f} s each."


def find_needed_secrets(data: DataFile, training: Recipe, registered: str = "") -> dict[str, str]:
    """Return the environment variables with secrets that a run reads, each with the option that names it.

    Args:
        data: the data file.
        training: the recipe.
        registered: the value of `RLVR_SECRETS`.
    """
    judge, remote = data.verifiers.judge, data.verifiers.code.remote
    server = data.difficulty.engine.server if data.difficulty is not None else None
    named = {
        "verifiers.judge.api_key_env": getattr(judge, "api_key_env", None) if judge else None,
        "verifiers.code.remote.token_env": remote.token_env if remote else None,
        "difficulty.engine.server.api_key_env": server.api_key_env if server else None,
        "trackers: wandb": "WANDB_API_KEY" if "wandb" in training.trackers else None,
    }
    wanted = {text.partition("=")[0]: "RLVR_SECRETS" for text in registered.split()}
    return wanted | {variable: option for option, variable in named.items() if variable}


def check_secrets(findings: Findings, needed: Mapping[str, str], environment: Mapping[str, str] | None = None) -> None:
    """Check that each variable of `find_needed_secrets` has a value here. The values are not shown.

    Raises:
        SkippedError: no secrets are needed.
    """
    if not needed:
        raise SkippedError("No option names a secret, and RLVR_SECRETS is empty.")
    present = os.environ if environment is None else environment
    for variable, option in needed.items():
        findings.require(
            bool(present.get(variable)),
            f"{variable} ({option}) is not set here: name its secret in RLVR_SECRETS where you register.",
        )
    findings.note = f"{', '.join(needed)} {'is' if len(needed) == 1 else 'are'} set."


def check_endpoint(findings: Findings, data: DataFile, *, on_this_machine: bool) -> None:
    """Connect to the judge's endpoint.

    Raises:
        SkippedError: no source needs a judge, or the run serves its judge itself.
    """
    if not any(source.verifiers & set(CHAT) for source in data.used_sources):
        raise SkippedError("No source needs a judge.")
    url = getattr(data.verifiers.judge, "url", None)
    if url is None:
        raise SkippedError("The run serves its judge itself.")
    began = time.perf_counter()
    try:
        check_judge(data.verifiers, data.name, on_this_machine=on_this_machine)
    except SpecError as error:
        findings.faults.append(f"{error}.")
    findings.note = f"The judge's endpoint {url} accepts a connection in {time.perf_counter() - began:.2f} s."


def check_kuberay(findings: Findings, environment: Mapping[str, str] | None = None) -> None:
    """Check the version of KubeRay, which it passes to the head's pod.

    Raises:
        SkippedError: this pod was not created by KubeRay, or its version is not given.
    """
    tags = (os.environ if environment is None else environment).get(KUBERAY_TAGS, "")
    stated = re.search(r"kuberay_version=v?(\d+)\.(\d+)[\w.-]*", tags)
    if stated is None:
        raise SkippedError(
            "KubeRay's version is not known here; if Flyte's Ray plugin is enabled, it must be 1.5 or later."
        )
    version = stated[0].partition("=")[2]
    findings.require(
        (int(stated[1]), int(stated[2])) >= OLDEST_KUBERAY,
        f"KubeRay is {version}, and a job whose head crashes would run for ever: install 1.5 or later.",
    )
    findings.note = f"KubeRay is {version}."
