"""Options of the verifiers, which difficulty, training and evaluation share, so that their scores agree."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from tasks.config import Config, RunTime
from tasks.verifiers.chat.config import INITIAL, AnyJudgeConfig
from tasks.verifiers.code.config import CodeConfig


class EnvironmentsConfig(Config):
    """Bounds of the processes of environments, one episode at a time in each."""

    processes: RunTime[int] = Field(256, gt=0)
    """Most episodes of one stage whose environments run at one time; further ones wait. Processes are forked from one
    that has loaded the environment, and share its memory."""
    memory_mib: int = Field(4096, gt=0)
    """MiB of address space of one process."""
    cpu_seconds: float = Field(30.0, gt=0)
    """CPU seconds that the environment of one episode may take in all; an episode that takes more is truncated."""


class VerifiersConfig(Config):
    """Options of all verifiers."""

    time_limit_seconds: float = Field(10.0, gt=0)
    """CPU seconds that one judgement by math, precise_if or function may take. A response that takes more scores 0; by
    a function, which is not the response's, it is unjudged. Waiting for a core is not counted."""
    memory_mib: int = Field(2048, gt=0)
    """MiB of address space of one worker process of these verifiers."""
    total_memory_mib: RunTime[int] = Field(16384, gt=0)
    """MiB of address space of all worker processes of one verifier together; bounds how many are started."""
    cache_entries: RunTime[int] = Field(100_000, ge=0)
    """Scores that are cached, so that an equal response to an equal ground truth is not judged twice; 0 caches none."""
    code: CodeConfig = CodeConfig()
    """Sandbox of the code verifier, and the worth of its verdicts."""
    environments: EnvironmentsConfig = EnvironmentsConfig()
    """Processes of the environments of prompts that have one."""
    judge: AnyJudgeConfig | None = None
    """LM judge or reward model of `chat_reference` and `chat_open`; None where no prompt needs one."""

    @model_validator(mode="after")
    def _two_processes_fit(self) -> Self:
        if 2 * self.memory_mib > self.total_memory_mib:
            raise ValueError(
                f"total_memory_mib ({self.total_memory_mib}) must hold two processes of memory_mib ({self.memory_mib})"
            )
        return self

    def processes(self, workers: int) -> int:
        """Return the number of processes of a lane where `workers` are wanted: two lanes must fit into the memory."""
        return min(workers, self.total_memory_mib // (2 * self.memory_mib))

    @property
    def serves(self) -> bool:
        """True if the judge is a model that runs on this machine, and needs its GPU if there is one."""
        return self.judge is not None and getattr(self.judge, "url", None) is None

    @property
    def judge_gpus(self) -> int:
        """GPUs of the judge or reward model that runs on this machine, if there are GPUs; 0: none runs here."""
        return self.judge.gpus if self.judge is not None and self.serves else 0

    def with_initial(self, checkpoint: Path) -> Self:
        """Return a copy in which a judge of `model: initial` has the path of that checkpoint as its model."""
        if self.judge is None or self.judge.model != INITIAL or getattr(self.judge, "url", None) is not None:
            return self
        return self.model_copy(update={"judge": self.judge.model_copy(update={"model": str(checkpoint)})})


DEFAULTS = VerifiersConfig()
"""Options of verifiers where nothing is configured; chat has no judge."""
