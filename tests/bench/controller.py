"""What the controller costs: CPU time for each completion, `python -m tests.bench.controller <samples in flight>`.

Controller, window, fleet, ledger, rollout files and checkpoints are the real ones, in virtual time; 20 actors are
clocks. The time is that of the one thread in which all of it runs, what the clocks take and what a real run leaves to
threads (checkpoints, files of rollouts) included.
"""

from __future__ import annotations

import json
import logging
import random
import sys
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from tasks.generation.config import SamplingConfig
from tasks.generation.interface import Completion
from tasks.planning.simulated_actors import ChanceJudge, ClockActor, ClockLearner, EngineClock, make_length_sampler
from tasks.planning.simulated_run import EnoughError, play
from tasks.recipe.run import TrainingConfig
from tasks.training.groups.group import Prompt

ACTORS = 20
SAMPLES = 8
TOKENS, LONGEST = 1000, 4000
WARM_UP = 2
STEPS = 4
"""Measured, a checkpoint among them."""
STEPS_AHEAD = 32
"""Batches that are sampled ahead of the learner, twice as much as the engines hold: they always have work."""
ZERO_VARIANCE = 0.3
"""Share of prompts that teach nothing."""

TEXT = "a word " * (LONGEST // 2)
TOKEN_IDS, LOGPROBS = np.zeros(LONGEST, np.int32), np.full(LONGEST, -0.5, np.float32)


class WordyActor(ClockActor):
    """A clock whose responses have a text, and arrays of tokens and log-probabilities, as an engine's have."""

    async def generate(self, prompt_ids: list[int], sampling: SamplingConfig, seed: int | None) -> Completion:
        """See `Actor`."""
        found = await super().generate(prompt_ids, sampling, seed)
        tokens = len(found.token_ids)
        return replace(found, text=TEXT[: 4 * tokens], token_ids=TOKEN_IDS[:tokens], logprobs=LOGPROBS[:tokens])


class Meter:
    """What the steps after `WARM_UP` cost, as `clock` reads, and their completions; see `journal.Metrics`."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._began = 0.0
        self.completions = 0.0
        self.cost = 0.0

    def record(self, metrics: dict[str, float]) -> None:
        """See `Metrics`."""
        step = int(metrics["step"]) + 1
        if step <= WARM_UP:
            self._began = self._clock()
            return
        self.completions += metrics["samples"]
        if step == WARM_UP + STEPS:
            self.cost = self._clock() - self._began
            raise EnoughError

    def sync(self) -> int:
        """See `Metrics`."""
        return 0


def measure(in_flight: int, actors: int = ACTORS, clock: Callable[[], float] = time.thread_time) -> Meter:
    """What completions cost while `actors` engines hold `in_flight` samples together."""
    groups_per_step = 2 * in_flight // SAMPLES // STEPS_AHEAD
    config = TrainingConfig.model_validate(
        {
            "steps": WARM_UP + STEPS + 1,
            "groups_per_step": groups_per_step,
            "async_steps": STEPS_AHEAD,
            "checkpoint_every": STEPS,
            "recover_every": None,
            "max_staleness": 100,
            "sampling": {"samples": SAMPLES, "max_tokens": LONGEST},
            "actors": {
                "count": actors,
                "prefetch": 0,
                "engine": {"max_model_len": 2 * LONGEST, "max_num_seqs": in_flight // actors},
            },
            "resampling": {"kind": "active", "max_dropped_groups": in_flight},
        }
    )
    chance = random.Random(0)
    lengths = make_length_sampler(chance, TOKENS, LONGEST)
    prompt = [0] * 256
    prompts = [
        Prompt(str(number), "math", [], "math", None if chance.random() < ZERO_VARIANCE else "1", prompt)
        for number in range(in_flight)
    ]
    engine = EngineClock(step_seconds=0.02, sequence_seconds=1e-4, max_num_seqs=in_flight // actors)
    meter = Meter(clock)
    play(
        config,
        prompts,
        lambda *_: WordyActor(engine, lengths),
        ChanceJudge(chance),
        ClockLearner(1e9),
        meter,
        keep_rollouts=True,
    )
    return meter


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    found = measure(int(sys.argv[1]))
    print(json.dumps({"milliseconds": 1000 * found.cost / found.completions, "completions": found.completions}))
