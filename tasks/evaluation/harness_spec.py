"""Defines the options of the benchmarks that are run by lm-evaluation-harness."""

from __future__ import annotations

import importlib.metadata
from typing import Any, Literal

from packaging.requirements import Requirement
from pydantic import Field, field_validator

from tasks.config.fields import Arguments, FolderInFile
from tasks.config.loading import Config, RunTime
from tasks.evaluation.spec import ComparedBenchmark
from tasks.failures import MistakeError
from tasks.machine.packages import installed_version

VERSION = "0.4.13"
"""Version of the package lm-eval whose tasks and prompts are used. Results of other versions are not comparable."""
CARD = "https://github.com/EleutherAI/lm-evaluation-harness"
"""URL of the public page of the package, whose tasks cite their own sources."""

INSTALL = "pip install 'rlvr-flyte[harness]'"
"""The command that installs the package with all its requirements."""


class HarnessBenchmark(Config):
    """A benchmark that the package lm-eval runs and scores with its own protocol, such as general knowledge."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Name of the benchmark in result tables, without spaces."""
    tasks: list[str] = Field(min_length=1)
    """Names of tasks, groups or tags of lm-eval (`lm_eval ls tasks`), such as `mmlu`. The documents of all of them are
    the benchmark's questions, with equal weight."""
    include_path: FolderInFile[str | None] = None
    """Optional. Folder with your own task files, on a file system that the stage can read. If null, only the package's
    tasks are available."""
    fingerprint: str | None = None
    """Digest of that folder, which is set before a run so that a changed folder misses the cache."""
    metric: str = "acc"
    """The tasks' metric that is used as a document's score, such as `acc`, `acc_norm` or `exact_match`. The document
    passes if it is 1."""
    filter: str | None = None
    """Optional. The tasks' response filter for the metric, such as `get-answer`. If null, each task must have only one
    filter."""
    num_fewshot: int | None = Field(None, ge=0)
    """Optional. Number of few-shot examples before each question. If null, the default of each task. Tasks that are
    fixed at 0 examples accept no other number."""
    gen_kwargs: Arguments = Field({})
    """Arguments of lm-eval for generation, which override the tasks' values, such as `{max_gen_toks: 16384, do_sample:
    true, temperature: 0.6, top_p: 0.95}`. Many tasks set no length, and lm-eval's is 256 tokens, which cuts off a
    policy that thinks."""
    limit: int | None = Field(None, gt=0)
    """Optional. Number of documents of each task, from the first. If null, all."""
    chat_template: bool = False
    """If true, use the chat template of the policy. If false, the question is a text to continue, as in most published
    results of base models. With the chat template, the text of a response up to `</think>` is not scored, and a
    response whose thinking is opened and not closed scores 0."""
    backend: Literal["vllm", "hf"] = "vllm"
    """The package's backend that runs the policy: `vllm`, with the options of `engine`, or `hf`, which is
    transformers."""
    batch_size: RunTime[int] = Field(8, gt=0)
    """Batch size of the backend `hf`; vLLM sets it automatically."""
    margin: float | None = Field(default=None, ge=0, le=1)
    """Optional. Margin of the pass rate, in [0, 1]: a policy has maintained the benchmark if the interval of its
    difference from the baseline is above -margin. If null, this is not tested."""

    @field_validator("gen_kwargs")
    @classmethod
    def _has_one_length(cls, value: dict[str, Any]) -> dict[str, Any]:
        for name in ("max_new_tokens", "max_tokens", "max_completion_tokens", "max_length"):
            if name in value:
                raise ValueError(f"{name}: the length of a response is max_gen_toks")
        return value

    @property
    def compared(self) -> ComparedBenchmark:
        """The benchmark's name, margin, card and licence, which the comparison of policies uses."""
        return ComparedBenchmark(name=self.name, margin=self.margin, card=CARD, licence="those of its tasks")


def check_installed() -> None:
    """Check that the package is installed, in the version that results are cached for, with its requirements.

    Raises:
        MistakeError: it is not, or it was installed without its requirements (`pip install --no-deps`).
    """
    version = installed_version("lm-eval")
    if version is None:
        raise MistakeError(f"evaluation: harness: lm-eval is not installed: {INSTALL}")
    if version != VERSION:
        raise MistakeError(f"evaluation: harness: lm-eval {version} is installed, and must be {VERSION}: {INSTALL}")
    for requirement in map(Requirement, importlib.metadata.requires("lm-eval") or ()):
        is_needed = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if is_needed and installed_version(requirement.name) is None:
            raise MistakeError(
                f"evaluation: harness: lm-eval is installed without {requirement.name}, which it requires: {INSTALL}"
            )
