"""Options of the verifiers. Difficulty, training and evaluation share them, so that their scores agree."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, StringConstraints, field_validator, model_validator

from tasks.config.loading import Config, RunTime
from tasks.verifiers.chat.config import INITIAL, AnyJudgeConfig, NamedRewardModelConfig
from tasks.verifiers.code.config import CodeConfig
from tasks.verifiers.scores import VERIFIERS

CHAT = ("chat_reference", "chat_open")
"""Names of the verifiers that use the LLM judge."""
REWARD_MODEL = "reward_model"
"""Name of the verifier that uses the reward models."""

ModelName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$")]
"""Name of a reward model: letters, digits, `_` and `-`."""


class EnvironmentsConfig(Config):
    """Limits of the environment processes. Each process runs one episode at a time."""

    processes: RunTime[int] = Field(256, gt=0)
    """Maximum number of episodes of one stage whose environments run at the same time; further ones wait. They are
    forked from a process that has loaded the environment, and share its memory."""
    memory_mib: int = Field(4096, gt=0)
    """MiB of address space of one process."""
    cpu_seconds: float = Field(30.0, gt=0)
    """CPU seconds that the environment of one episode may take in total; an episode that takes more is truncated."""


class VerifiersConfig(Config):
    """Options of all verifiers."""

    time_limit_seconds: float = Field(10.0, gt=0)
    """CPU seconds that one call of math, precise_if or function may take. A response that takes more scores 0. If a
    reward function takes more, the response gets no score, because the function is at fault. Waiting for a core does
    not count."""
    memory_mib: int = Field(2048, gt=0)
    """MiB of address space of one worker process of these verifiers."""
    total_memory_mib: RunTime[int] = Field(16384, gt=0)
    """MiB of address space of all worker processes of one verifier together; limits how many are started."""
    cache_entries: RunTime[int] = Field(100_000, ge=0)
    """Number of cached scores, so that an equal response to an equal ground truth is not scored twice. 0 disables the
    cache."""
    code: CodeConfig = CodeConfig()
    """Sandbox of the code verifier, and how its results are scored."""
    environments: EnvironmentsConfig = EnvironmentsConfig()
    """Processes of the environments, for prompts that have one."""
    judge: AnyJudgeConfig | None = None
    """LLM judge or reward model of `chat_reference` and `chat_open`. Optional if no prompt needs one."""
    reward_models: dict[ModelName, NamedRewardModelConfig] = {}  # noqa: RUF012 (pydantic copies defaults)
    """Reward models by name, as in `{helpful: {model: models/helpful, squash: false}}`. Sources name them in `rewards`,
    as in `{reward_model: helpful, weight: 0.5}`. Each runs in the process that scores, on its own GPU or on CPU cores
    (`device`)."""

    @field_validator("reward_models")
    @classmethod
    def _check_names(cls, models: dict[str, NamedRewardModelConfig]) -> dict[str, NamedRewardModelConfig]:
        if taken := sorted(set(models) & set(VERIFIERS)):
            raise ValueError(f"{taken[0]!r} is the name of a verifier; give the reward model another")
        return models

    @model_validator(mode="after")
    def _check_memory(self) -> Self:
        if 2 * self.memory_mib > self.total_memory_mib:
            raise ValueError(
                f"total_memory_mib ({self.total_memory_mib}) must have room for two processes of memory_mib "
                f"({self.memory_mib})"
            )
        return self

    def processes(self, workers: int) -> int:
        """Return the number of processes of a verifier's fast queue: `workers`, or fewer if the fast queue and a slow
        queue of the same size would need more than `total_memory_mib`.
        """
        return min(workers, self.total_memory_mib // (2 * self.memory_mib))

    @property
    def serves(self) -> bool:
        """True if a judge or reward models run on this machine, and use its GPUs if it has any."""
        return bool(self.reward_models) or self._serves_judge

    @property
    def judge_gpus(self) -> int:
        """GPUs of the judge or reward model that runs on this machine if it has GPUs, or 0 if none runs here."""
        return self.judge.gpus if self.judge is not None and self._serves_judge else 0

    @property
    def _serves_judge(self) -> bool:
        return self.judge is not None and getattr(self.judge, "url", None) is None

    def gpus(self, verifiers: Collection[str]) -> int:
        """Return the GPUs that the judge and the reward models of these verifiers use here, if there are GPUs."""
        judge = self.judge_gpus if not set(CHAT).isdisjoint(verifiers) else 0
        models = self.reward_models.values() if REWARD_MODEL in verifiers else ()
        return judge + sum(model.gpus for model in models)

    def resolve_initial(self, checkpoint: Path) -> Self:
        """Return a copy whose judge, if it is `model: initial`, uses the path of that checkpoint as its model."""
        if self.judge is None or self.judge.model != INITIAL or getattr(self.judge, "url", None) is not None:
            return self
        return self.model_copy(update={"judge": self.judge.model_copy(update={"model": str(checkpoint)})})


DEFAULTS = VerifiersConfig()
"""Default options of the verifiers, without an LLM judge."""
