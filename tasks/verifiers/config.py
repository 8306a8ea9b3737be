"""How responses are judged: the options that difficulty, training and evaluation share, so that their scores agree."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from tasks.config import Config, RunTime
from tasks.verifiers.chat.config import INITIAL, AnyJudgeConfig
from tasks.verifiers.code.config import CodeConfig


class VerifiersConfig(Config):
    """Options of all verifiers."""

    time_limit_seconds: float = Field(10.0, gt=0)
    """CPU time of one judgement in a process of ours, however busy the machine is; what overruns scores 0."""
    memory_mib: int = Field(2048, gt=0)
    """Address space of one such process."""
    total_memory_mib: RunTime[int] = Field(16384, gt=0)
    """Address space of all processes of one verifier together; bounds how many there are."""
    cache_entries: RunTime[int] = Field(100_000, ge=0)
    """Scores that are remembered, so that the same response to the same ground truth is not judged twice; 0 remembers
    none."""
    code: CodeConfig = CodeConfig()
    """The sandbox, and what its verdicts are worth."""
    judge: AnyJudgeConfig | None = None
    """The LM judge or reward model of `chat_reference` and `chat_open`; None where no prompt needs one."""

    @model_validator(mode="after")
    def _two_processes_fit(self) -> Self:
        if 2 * self.memory_mib > self.total_memory_mib:
            raise ValueError(
                f"total_memory_mib ({self.total_memory_mib}) must hold two processes of memory_mib ({self.memory_mib})"
            )
        return self

    def processes(self, workers: int) -> int:
        """How many processes a lane has where `workers` are asked for: two lanes of them keep within the memory."""
        return min(workers, self.total_memory_mib // (2 * self.memory_mib))

    @property
    def serves(self) -> bool:
        """Whether the judge is a model that is served beside the verifiers, and needs the GPU that there is."""
        return self.judge is not None and getattr(self.judge, "url", None) is None

    def with_initial(self, checkpoint: Path) -> Self:
        """The same with a judge of `model: initial` told where that checkpoint lies."""
        if self.judge is None or self.judge.model != INITIAL or getattr(self.judge, "url", None) is not None:
            return self
        return self.model_copy(update={"judge": self.judge.model_copy(update={"model": str(checkpoint)})})


DEFAULTS = VerifiersConfig()
"""Where nothing is configured: chat has no judge."""
