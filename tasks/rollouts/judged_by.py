"""Computes digests of the code and options behind verdicts, by verifier: a change of one keeps the others' verdicts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from tasks.config.cache_keys import result_options
from tasks.lineage.code_digest import code_digest
from tasks.tables.schemas import json_digest
from tasks.verifiers import VerifiersConfig, collect_verifiers
from tasks.verifiers.config import CHAT, REWARD_MODEL
from tasks.verifiers.registry import collect_reward_models
from tasks.verifiers.scores import is_own
from tasks.verifiers.weighted import WEIGHTED

CHAT_MODULES = "tasks.verifiers.chat"
"""The package of the chat verifiers and the reward models."""
PROCESSES = "tasks.verifiers.verifier_processes"
"""The module that calls the verifiers that compute in separate processes."""
WEIGHTS = "tasks.verifiers.weighted"
"""The module that combines rewards. A function alone is combined, too."""
MODULES = {
    "math": (PROCESSES, "tasks.verifiers.mathematics"),
    "precise_if": (PROCESSES, "tasks.verifiers.instructions"),
    "function": (
        PROCESSES,
        *(f"tasks.verifiers.{name}" for name in ("functions", "overlapping", "grouped", "weighted")),
    ),
    "code": ("tasks.verifiers.code.client",),
    "environment": ("tasks.verifiers.environment_rewards",),
    WEIGHTED: (WEIGHTS, "tasks.verifiers.grouped"),
    "own": (PROCESSES, "tasks.verifiers.custom"),
    "endpoint": (f"{CHAT_MODULES}.judge",),
    "server": (f"{CHAT_MODULES}.judge", f"{CHAT_MODULES}.server"),
    REWARD_MODEL: (f"{CHAT_MODULES}.reward_model", "tasks.verifiers.reward_models"),
}
"""The modules that score, by verifier. `own` is a user's verifier, whose files are part of the prompt's id. Chat
is scored by a model at an `endpoint`, on a `server` that the stage starts, or by a reward model."""
SEPARATE = (
    *("mathematics", "instructions", "functions", "overlapping", "code", "environment_rewards", "weighted", "grouped"),
    *("custom", "reward_models", "chat", "chat.judge", "chat.server", "chat.launcher", "chat.reward_model"),
    *("chat.classifier", "chat.tokenizer"),
)
"""Modules and packages of `tasks.verifiers` that belong to the verifiers for which `MODULES` or `ALSO` names them."""
ALSO = {
    "server": ("chat.launcher",),
    REWARD_MODEL: ("chat.judge", "chat.classifier", "chat.tokenizer"),
}
"""Further modules that verifiers use through the ones in `MODULES`."""
DISPATCH = (
    "tasks.config.loading",  # how options are read; their values are hashed
    "tasks.config.fields",
    "tasks.config.connection",
    "tasks.config.descriptions",
    "tasks.failures",  # classes of errors
    "tasks.verifiers.chat.config",
    "tasks.verifiers.config",
    "tasks.verifiers.factories",
    "tasks.verifiers.http_client",  # how requests are repeated, not what is in them
    "tasks.verifiers.pool",  # which calls run at the same time
    "tasks.verifiers.registry",  # the names of all verifiers
)
"""Modules that all verifiers are reached through, or that do not change a verdict."""
ENDED = "tasks.generation.interface"
"""The module that scores an episode with the reward that its environment returned."""


class JudgedBy:
    """Computes the digests of the verdicts of a stage."""

    def __init__(self, config: VerifiersConfig, initial: str) -> None:
        """Read the options of the verifiers.

        Args:
            config: options of the verifiers.
            initial: digest of the initial checkpoint, which is included if this checkpoint is the LLM judge.
        """
        self._config = config
        self._initial = initial
        self._verifier_digest = cache(self._compute_verifier_digest)

    @cached_property
    def everything(self) -> str:
        """The digest of what all verifiers depend on, for a stage whose samples depend on verdicts."""
        return json_digest([result_options(self._config), code_digest("tasks.verifiers"), self._judge_if_initial])

    def compute_digest(self, row: Mapping[str, Any]) -> str:
        """Return the digest of the code and options that score responses to a prompt (a row of `PROMPTS`)."""
        verifier, plays = row["verifier"], row["environment"] is not None
        names = {verifier}
        models: set[str] = set()
        if verifier in (WEIGHTED, REWARD_MODEL):
            truth = json.loads(row["ground_truth"])
            names |= collect_verifiers(verifier, truth)
            models = collect_reward_models(verifier, truth)
        return json_digest([self._verifier_digest(name, tuple(sorted(models)), plays=plays) for name in sorted(names)])

    def compute_program_digest(self) -> str:
        """Return the digest of the code and options that run the programs of environments in the sandbox."""
        return self._verifier_digest("code", (), plays=False)

    def compute_environment_digest(self) -> str:
        """Return the digest of the limits of the processes of environments."""
        return json_digest(result_options(self._config.environments))

    def _compute_verifier_digest(self, verifier: str, models: tuple[str, ...], *, plays: bool) -> str:
        kind = self._kind(verifier)
        codes = [code_digest(module, self._list_ignored(kind)) for module in MODULES[kind]]
        codes += [code_digest(ENDED, ("tasks.verifiers",))] if plays else []
        return json_digest([verifier, self._options(verifier, models), codes])

    def _kind(self, verifier: str) -> str:
        """Return the key of a verifier in `MODULES`."""
        if is_own(verifier):
            return "own"
        if verifier not in CHAT:
            return verifier
        judge = self._config.judge
        if judge is not None and judge.kind == "reward_model":
            return REWARD_MODEL
        return "endpoint" if judge is None or judge.url is not None else "server"

    def _list_ignored(self, kind: str) -> tuple[str, ...]:
        """Return the code that the verdicts of a kind do not depend on."""
        used = {*MODULES[kind], *(f"tasks.verifiers.{name}" for name in ALSO.get(kind, ()))}
        if getattr(self._config.judge, "tokenizer", None) is not None:
            used.add(f"{CHAT_MODULES}.tokenizer")
        separate = (f"tasks.verifiers.{name}" for name in SEPARATE)
        return (*DISPATCH, *(name for name in separate if not any(f"{one}.".startswith(f"{name}.") for one in used)))

    def _options(self, verifier: str, models: tuple[str, ...]) -> Any:
        """Return the options that change the verdicts of a verifier."""
        config = self._config
        if verifier in CHAT:
            return [result_options(config.judge), self._judge_if_initial]
        if verifier == REWARD_MODEL:
            return [[name, result_options(config.reward_models.get(name))] for name in models]
        if verifier == "code":
            return result_options(config.code)
        if verifier in ("environment", WEIGHTED):
            return None
        return [config.time_limit_seconds, config.memory_mib]

    @property
    def _judge_if_initial(self) -> str:
        config = self._config
        return self._initial if config.resolve_initial(Path(self._initial)) is not config else ""
