"""Which run this is, and whether what an earlier attempt left of it can be gone on from."""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path
from typing import Any

from tasks.config import non_default_options, result_options
from tasks.failures import MistakeError
from tasks.lineage.code_digest import code_digest
from tasks.tables.schemas import canonical_json
from tasks.training.config import TrainingConfig
from tasks.training.records.checkpoint import FORMAT
from tasks.verifiers.config import VerifiersConfig

logger = logging.getLogger(__name__)


MAY_CHANGE = frozenset({"steps", "learner.dtype", "actors.engine.dtype"})
"""Options of which nothing is said where a run goes on: a type is `auto` before it is found out."""


class OtherRunError(MistakeError):
    """The run folder holds a run that this one cannot go on from."""


def run_name(model: str, mixture: str, config: TrainingConfig, verifiers: VerifiersConfig) -> str:
    """The name of the run of these inputs, of which `model` and `mixture` are the digests.

    Neither run-time options nor the code have a part in it, nor has the number of steps, unless the learning rate
    depends on it: a run goes on under other hardware, under code that was mended, and for some more steps. An option
    that has its default has none either, so that code with one option more begins no run anew.
    """
    options = non_default_options(config)
    if config.optimizer.schedule == "constant":
        options.pop("steps", None)
    identity = [model, mixture, options, non_default_options(verifiers)]
    return hashlib.sha256(canonical_json(identity).encode()).hexdigest()[:16]


def made_under(config: TrainingConfig) -> dict[str, Any]:
    """What a checkpoint says of itself, for `check_fits`."""
    return {
        "format": FORMAT,
        "code": code_digest("tasks.training.run"),
        "ranks": config.learner.ranks,
        "zero_stage": config.learner.zero_stage,
        "dtype": config.learner.dtype,
        "options": _leaves(result_options(config)),
        "chosen": sorted(_leaves(non_default_options(config))),
    }


def _leaves(options: Any, path: str = "") -> dict[str, Any]:
    """Values of nested options by their dotted names."""
    if not isinstance(options, dict):
        return {path: options}
    leaves: dict[str, Any] = {}
    for name, value in options.items():
        leaves |= _leaves(value, f"{path}.{name}" if path else name)
    return leaves


def check_fits(state: dict[str, Any], config: TrainingConfig, checkpoint: Path) -> None:
    """Whether a run under `config` can go on from `checkpoint` with this `state`; a warning where its code was another.

    Raises:
        OtherRunError: it cannot.
    """
    here = made_under(config)
    anew = "`seed` with another value is a run of its own"
    if state["format"] != FORMAT:
        raise OtherRunError(
            f"{checkpoint} has format {state['format']}, and this code reads format {FORMAT}: go on under the code "
            f"that wrote it; {anew}"
        )
    if state["version"] > config.steps:
        raise OtherRunError(f"{checkpoint}: the run has taken {state['version']} steps, steps = {config.steps}; {anew}")
    if (state["zero_stage"] == 3) != (here["zero_stage"] == 3):
        raise OtherRunError(
            f"{checkpoint} holds the learner's state for learner.zero_stage = {state['zero_stage']}, not "
            f"{here['zero_stage']}: DeepSpeed's universal checkpoints lead from 1 to 2 and back, and from 3 to 3. Go "
            f"on with {state['zero_stage']}; {anew}"
        )
    before, now = state["options"], here["options"]
    differing = {name for name in before.keys() | now.keys() if before.get(name) != now.get(name)} - MAY_CHANGE
    if other := differing & {*state["chosen"], *here["chosen"]}:
        was = ", ".join(f"{name} = {before.get(name)}" for name in sorted(other))
        raise OtherRunError(
            f"{checkpoint} is of a run with {was}; another run needs a folder of its own, or this one's options"
        )
    if state["code"] != here["code"]:
        logger.warning(
            "the run goes on from %s under other code than it was made by (%s, now %s); %s",
            checkpoint,
            state["code"][:8],
            here["code"][:8],
            anew,
        )
    for name in sorted(differing & before.keys() & now.keys()):
        logger.warning("%s = %s from here on; it was %s, the default of other code", name, now[name], before[name])


def needs_conversion(state: dict[str, Any], config: TrainingConfig) -> bool:
    """Whether a checkpoint with this `state` was saved by learner ranks that are not those of `config`.

    It then has to be converted (`tasks.training.learner.universal`).
    """
    return bool((state["ranks"], state["zero_stage"]) != (config.learner.ranks, config.learner.zero_stage))
