"""The engine's ladder and its sampling in virtual time: `python -m tests.bench.simulation ladder|sampling`."""

from __future__ import annotations

import json
import logging
import random
import sys

from tasks.planning.simulated_actors import ClockLearner, EngineClock, make_length_sampler
from tasks.planning.simulated_run import Workload, simulate
from tasks.recipe.run import TrainingConfig
from tests.bench.rungs import build_ladder

SHARES = (0.3, 0.5, 0.7)
"""Of groups that teach nothing."""


def rungs() -> dict[str, float]:
    """Trained tokens/s and window of each rung, and the learner's idle share on the last."""
    found = build_ladder()
    idle = found[-1].simulated.learner_idle
    windows = {f"{rung.name}/window": rung.window for rung in found}
    return {**{rung.name: rung.simulated.trained_tokens_per_second for rung in found}, **windows, "idle": idle}


def sampling() -> dict[str, float]:
    """Generated over trained tokens, of active sampling and of DAPO's rounds of three batches, at each share."""
    return {f"{name} {share}": _generated(share, name) for share in SHARES for name in ("active", "dynamic")}


def _generated(share: float, name: str) -> float:
    chance = random.Random(0)
    how = {"active": {"async_steps": 4, "max_staleness": 100}, "dynamic": {"async_steps": 0, "max_staleness": 0}}
    config = TrainingConfig.model_validate(
        {
            "steps": 60,
            "groups_per_step": 16,
            "sampling": {"samples": 8, "max_tokens": 2000},
            "resampling": {"kind": "dynamic", "batch_multiplier": 3} if name == "dynamic" else {"kind": "active"},
            "actors": {"count": 4, "engine": {"max_model_len": 4096, "max_num_seqs": 16}},
            "checkpoint_every": 1000,
            "recover_every": None,
            **how[name],
        }
    )
    workload = Workload(make_length_sampler(chance, 500, 2000), zero_variance=share)
    found = simulate(config, EngineClock(0.01, max_num_seqs=16), ClockLearner(1e9), workload)
    return found.tokens_per_second / found.trained_tokens_per_second


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    print(json.dumps({"ladder": rungs, "sampling": sampling}[sys.argv[1]]()))
