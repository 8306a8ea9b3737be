"""Identifies a training run by its inputs, and decides whether a checkpoint of it can be resumed."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from tasks.config.cache_keys import non_default_options, result_options
from tasks.config.nested_values import leaves
from tasks.lineage.code_digest import code_digest
from tasks.recipe.run import TrainingConfig
from tasks.tables.schemas import json_digest
from tasks.training.records.run_state import FORMAT, SEED_ADVICE, OtherRunError, RunSetup, RunState
from tasks.verifiers.config import VerifiersConfig

logger = logging.getLogger(__name__)


MAY_CHANGE = frozenset({"steps", "learner.dtype", "actors.engine.dtype"})
"""Options that may differ on resume without a warning. A dtype is `auto` until it is resolved on the machine."""


def run_name(
    model: str, mixture: str, config: TrainingConfig, verifiers: VerifiersConfig, benchmarks: Sequence[str] = ()
) -> str:
    """Return the name of a run, a digest of its inputs with 16 hex digits. Attempts find earlier attempts by it.

    Run-time options and the code are not part of the name. The number of steps is part of it only if the learning rate
    depends on it. So a run can be resumed on other hardware, with fixed code, and for more steps. For fewer steps than
    it has taken there is a separate run (`shorter_runs`). Options with their default value are left out as well, so the
    name stays the same when the code gets a new option.

    Args:
        model: digest of the initial model.
        mixture: digest of the mixture of prompts.
        config: the recipe's training options.
        verifiers: the options of the verifiers.
        benchmarks: digests of the benchmarks that validation uses.
    """
    options = non_default_options(config)
    if config.optimizer.schedule == "constant":
        options.pop("steps", None)
    identity = [model, mixture, options, non_default_options(verifiers), *benchmarks]
    return json_digest(identity)[:16]


def run_setup(config: TrainingConfig) -> RunSetup:
    """Return the options, the code digest and the learner ranks of a run under `config`, for its checkpoints.

    It reads all source files once, which takes a second.
    """
    return RunSetup(
        format=FORMAT,
        code=code_digest("tasks.training.run"),
        ranks=config.learner.ranks,
        zero_stage=config.learner.zero_stage,
        dtype=config.learner.dtype,
        options=dict(leaves(result_options(config))),
        chosen=sorted(name for name, _ in leaves(non_default_options(config))),
    )


def check_fits(state: RunState, config: TrainingConfig, checkpoint: Path) -> None:
    """Check that a run under `config` can resume from `checkpoint`, which contains `state`.

    Different code and different defaults of options are logged as warnings.

    Raises:
        OtherRunError: the run has taken more steps, used an incompatible ZeRO stage, or has different options.
    """
    here = run_setup(config)
    if state.version > config.steps:
        raise OtherRunError(
            f"{checkpoint}: the run has taken {state.version} steps, steps = {config.steps}: fewer steps are a "
            f"separate run, in a separate folder"
        )
    if (state.zero_stage == 3) != (here.zero_stage == 3):
        raise OtherRunError(
            f"{checkpoint} has the learner's state for learner.zero_stage = {state.zero_stage}, not "
            f"{here.zero_stage}: DeepSpeed's universal checkpoints lead from 1 to 2 and back, and from 3 to 3. Go "
            f"on with {state.zero_stage}; {SEED_ADVICE}"
        )
    before, now = state.options, here.options
    differing = {name for name in before.keys() | now.keys() if before.get(name) != now.get(name)} - MAY_CHANGE
    if other := differing & {*state.chosen, *here.chosen}:
        was = ", ".join(f"{name} = {before.get(name)}" for name in sorted(other))
        raise OtherRunError(
            f"{checkpoint} belongs to a run with {was}; another run needs its own folder, or this one's options"
        )
    if state.code != here.code:
        logger.warning(
            "the run continues from %s under other code than it was made by (%s, now %s); %s",
            checkpoint,
            state.code[:8],
            here.code[:8],
            SEED_ADVICE,
        )
    for name in sorted(differing & before.keys() & now.keys()):
        logger.warning("%s = %s from here on; it was %s, the default of other code", name, now[name], before[name])


def should_convert(state: RunState, config: TrainingConfig) -> bool:
    """Return whether `state` was saved with another number of learner ranks or another ZeRO stage than in `config`.

    The learner's files in the checkpoint then have to be converted (`tasks.training.learner.universal`).
    """
    return (state.ranks, state.zero_stage) != (config.learner.ranks, config.learner.zero_stage)
