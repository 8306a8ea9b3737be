"""Options of the benchmarks that lm-evaluation-harness asks."""

from __future__ import annotations

import importlib.metadata
from typing import Literal

from packaging.requirements import Requirement
from pydantic import Field

from tasks.config import Config, RunTime
from tasks.config_fields import FolderInFile
from tasks.evaluation.spec import ComparedBenchmark
from tasks.failures import MistakeError

VERSION = "0.4.13"
"""Version of the package lm-eval whose tasks and prompts these are; results of another one are not compared with."""
CARD = "https://github.com/EleutherAI/lm-evaluation-harness"
"""Address of the public page of the package, whose tasks name their own sources."""

INSTALL = "pip install 'rlvr-flyte[harness]'"
"""The command that installs the package with all that it requires."""


class HarnessBenchmark(Config):
    """A benchmark that the package lm-eval asks and judges by its own protocol, such as general knowledge."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Name of the benchmark in tables of results, without spaces."""
    tasks: list[str] = Field(min_length=1)
    """Names of tasks, groups or tags of lm-eval (`lm_eval ls tasks`), such as `mmlu`; the documents of all of them are
    the benchmark's questions, and weigh the same."""
    include_path: FolderInFile[str | None] = None
    """Folder with task files of your own, on a file system that the stage sees; None: the package's tasks alone."""
    fingerprint: str | None = None
    """Digest of that folder, which is filled in before a run so that a changed one misses the cache."""
    metric: str = "acc"
    """The tasks' metric that is a document's score, such as `acc`, `acc_norm` or `exact_match`. The document passes
    where it is 1."""
    filter: str | None = None
    """The tasks' filter of responses by which the metric is taken, such as `get-answer`; None: they have one alone."""
    num_fewshot: int | None = Field(None, ge=0)
    """Examples before each question; None: as many as each task says."""
    limit: int | None = Field(None, gt=0)
    """Documents of each task, the first ones; None: all."""
    chat_template: bool = False
    """Ask in the chat template of the policy. False: the question is a text to go on with, as in most published
    figures of base models. In a chat, what a response has up to `</think>` is not judged."""
    backend: Literal["vllm", "hf"] = "vllm"
    """The package's backend that runs the policy, with the options of `engine`; `hf`: transformers."""
    batch_size: RunTime[int] = Field(8, gt=0)
    """Requests of the backend `hf` that run at once; vLLM decides by itself."""
    margin: float | None = Field(default=None, ge=0, le=1)
    """Points of pass rate, in [0, 1]: a policy has maintained the benchmark where the interval of its difference from
    the baseline lies above -margin. None: this is not tested."""

    @property
    def compared(self) -> ComparedBenchmark:
        """The benchmark as policies are compared on it."""
        return ComparedBenchmark(name=self.name, margin=self.margin, card=CARD, licence="those of its tasks")


def check_installed() -> None:
    """Check that the package is installed, in the version by which results are cached, with what it requires.

    Raises:
        MistakeError: it is not, or was installed alone (`pip install --no-deps`).
    """
    try:
        version = importlib.metadata.version("lm-eval")
    except importlib.metadata.PackageNotFoundError:
        raise MistakeError(f"evaluation: harness: lm-eval is not installed: {INSTALL}") from None
    if version != VERSION:
        raise MistakeError(f"evaluation: harness: lm-eval {version} is installed, and must be {VERSION}: {INSTALL}")
    for requirement in map(Requirement, importlib.metadata.requires("lm-eval") or ()):
        name = requirement.name
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            try:
                importlib.metadata.version(name)
            except importlib.metadata.PackageNotFoundError:
                raise MistakeError(
                    f"evaluation: harness: lm-eval is installed without {name}, which it requires: {INSTALL}"
                ) from None
