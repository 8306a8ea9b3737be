"""Identifies a training run by its inputs, and decides whether a checkpoint of it can be resumed."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tasks.config import non_default_options, result_options
from tasks.lineage.code_digest import code_digest
from tasks.tables.schemas import canonical_json
from tasks.training.config import TrainingConfig
from tasks.training.records.run_state import FORMAT, SEED_ADVICE, OtherRunError, RunSetup, RunState
from tasks.verifiers.config import VerifiersConfig

logger = logging.getLogger(__name__)


MAY_CHANGE = frozenset({"steps", "learner.dtype", "actors.engine.dtype"})
"""Options that may differ on resume without a warning: a type is `auto` until it is resolved on the machine."""


def run_name(
    model: str, mixture: str, config: TrainingConfig, verifiers: VerifiersConfig, benchmarks: Sequence[str] = ()
) -> str:
    """Return the name of a run: 16 hex digits over its inputs, by which an attempt finds what earlier ones left.

    Run-time options and the code are not part of the name, nor is the number of steps unless the learning rate depends
    on it: a run is resumed on other hardware, under repaired code, and for more steps. For fewer steps than it has
    taken there is a run of its own (`shorter_runs`). Options at their default are left out as well, so that
    code with one more option gives the same name.

    Args:
        model: digest of the initial model.
        mixture: digest of the mixture of prompts.
        config: the recipe's training options.
        verifiers: the options by which responses are judged.
        benchmarks: digests of the benchmarks that validation asks.
    """
    options = non_default_options(config)
    if config.optimizer.schedule == "constant":
        options.pop("steps", None)
    identity = [model, mixture, options, non_default_options(verifiers), *benchmarks]
    return hashlib.sha256(canonical_json(identity).encode()).hexdigest()[:16]


def run_setup(config: TrainingConfig) -> RunSetup:
    """Return the options, the code and the learner ranks of a run under `config`, as its checkpoints record them.

    It reads all of the code once, which takes a second.
    """
    return RunSetup(
        format=FORMAT,
        code=code_digest("tasks.training.run"),
        ranks=config.learner.ranks,
        zero_stage=config.learner.zero_stage,
        dtype=config.learner.dtype,
        options=_leaves(result_options(config)),
        chosen=sorted(_leaves(non_default_options(config))),
    )


def _leaves(options: Any, path: str = "") -> dict[str, Any]:
    """Return the values of nested options by their dotted names."""
    if not isinstance(options, dict):
        return {path: options}
    leaves: dict[str, Any] = {}
    for name, value in options.items():
        leaves |= _leaves(value, f"{path}.{name}" if path else name)
    return leaves


def check_fits(state: RunState, config: TrainingConfig, checkpoint: Path) -> None:
    """Check that a run under `config` can resume from `checkpoint`, which holds `state`.

    Other code, and other defaults of options, are logged as warnings.

    Raises:
        OtherRunError: the run has taken more steps, has another ZeRO stage that does not fit, or other options.
    """
    here = run_setup(config)
    if state.version > config.steps:
        raise OtherRunError(
            f"{checkpoint}: the run has taken {state.version} steps, steps = {config.steps}: fewer steps are a run of "
            f"their own, in a folder of their own"
        )
    if (state.zero_stage == 3) != (here.zero_stage == 3):
        raise OtherRunError(
            f"{checkpoint} holds the learner's state for learner.zero_stage = {state.zero_stage}, not "
            f"{here.zero_stage}: DeepSpeed's universal checkpoints lead from 1 to 2 and back, and from 3 to 3. Go "
            f"on with {state.zero_stage}; {SEED_ADVICE}"
        )
    before, now = state.options, here.options
    differing = {name for name in before.keys() | now.keys() if before.get(name) != now.get(name)} - MAY_CHANGE
    if other := differing & {*state.chosen, *here.chosen}:
        was = ", ".join(f"{name} = {before.get(name)}" for name in sorted(other))
        raise OtherRunError(
            f"{checkpoint} is of a run with {was}; another run needs a folder of its own, or this one's options"
        )
    if state.code != here.code:
        logger.warning(
            "the run goes on from %s under other code than it was made by (%s, now %s); %s",
            checkpoint,
            state.code[:8],
            here.code[:8],
            SEED_ADVICE,
        )
    for name in sorted(differing & before.keys() & now.keys()):
        logger.warning("%s = %s from here on; it was %s, the default of other code", name, now[name], before[name])


def needs_conversion(state: RunState, config: TrainingConfig) -> bool:
    """Return True if `state` was saved by other learner ranks, or under another ZeRO stage, than `config` has.

    The learner's part of the checkpoint then has to be converted (`tasks.training.learner.universal`).
    """
    return (state.ranks, state.zero_stage) != (config.learner.ranks, config.learner.zero_stage)
