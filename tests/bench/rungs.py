"""Simulates OlmoRL's throughput improvements, one by one (Olmo 3, table of infrastructure improvements).

The rungs are a synchronous batch, continuous batching with draining, threading, and in-flight updates. Each is a
configuration of the real controller and fleet, in virtual time. All engines have the same simulated speed, responses
have the paper's mean length and limit, and the learner's speed leaves it idle three quarters of the time on the last
rung.

The paper's ratios are 1 : 1.11 : 1.54 : 3.35, but it does not give the batch size of its first rung. Compared with a
synchronous batch as wide as the others' window (16 groups), the simulated ratios are 1.07, 1.54 and 1.78; compared with
a quarter of that batch, 2.3, 3.2 and 3.7 (two seeds). Continuous batching and threading match the paper at equal
windows. In-flight updates are faster than draining by a factor of 1.16 instead of 2.2. Part of the difference is that a
drained actor here starts its next responses immediately, with prefetched samples: without them (`prefetch: 0`) the
factor is 1.36.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from tasks.planning.simulated_actors import ClockLearner, EngineClock, make_length_sampler
from tasks.planning.simulated_run import Simulated, Workload, simulate
from tasks.recipe.run import TrainingConfig

PUBLISHED = {
    "synchronous": 881.0,
    "+ continuous batching": 975.0,
    "+ better threading": 1358.0,
    "+ in-flight updates": 2949.0,
}
"""Tokens/s of each rung in the paper, of Qwen2.5-7B on two nodes of 8 A100s: one generates, and one trains
(arXiv:2512.13961, table 23). So the last rung is 369 tokens/s for each GPU that generates."""

MEAN_TOKENS, LONGEST = 14_628, 32_768
"""Mean and longest length of Olmo 3's responses, tokens."""

ENGINES = 8
"""Number of engines, one on each GPU of the node that generates."""
ENGINE = EngineClock(step_seconds=0.0165, sequence_seconds=0.00065, max_num_seqs=8, update_seconds=1.0)
"""8 sequences in 21.7 ms: eight such engines generate 2,949 tokens/s.

The paper does not give the number of sequences. With 8, an engine reads 15.2 GB of weights, and 0.59 GB of KV cache for
each sequence, at 45% of an A100's memory bandwidth, and the paper has 43%; with 16 it would be 28%."""
BATCH, WINDOW = 4, 16
"""Groups of 8 samples in a batch, and in the window: half as many samples as the engines run, and twice as many."""
LEARNER = (10_000.0, 2.0)
"""Speed of the learner, tokens/s, and the time to write its weights, seconds."""


@dataclass(frozen=True)
class Rung:
    """One configuration and its simulated throughput.

    `window` is the number of groups that are sampled and not yet trained on.
    """

    name: str
    window: int
    simulated: Simulated


def build_ladder(steps: int = 192, seed: int = 0) -> list[Rung]:
    """Return the rungs in order, preceded by the synchronous rung with a window as large as the others'.

    Synchronous training has one batch in flight, and nothing while it learns. With a batch of four times the size, for
    four optimizer steps, its engines are as full as the others' can be: `synchronous, wide`.
    """
    return [
        _build_rung(name, options, steps, seed)
        for name, options in build_rung_options(BATCH, WINDOW // BATCH, steps).items()
    ]


def build_rung_options(batch: int, wide: int, steps: int) -> dict[str, dict[str, Any]]:
    """Return the training options of each variant of OlmoRL's ablation of its infrastructure, by the variant's name.

    Args:
        batch: number of groups of a step.
        wide: number of batches that asynchronous variants sample ahead, and that a step of `synchronous, wide` has.
        steps: number of steps of a run; `synchronous, wide` divides it by `wide`.
    """
    return {
        "synchronous, wide": {
            "groups_per_step": wide * batch,
            "updates": {"minibatches": wide},
            "async_steps": 0,
            "steps": max(steps // wide, 4),
            "actors": {"updates": "static"},
        },
        "synchronous": {"async_steps": 0, "actors": {"updates": "static"}},
        "+ continuous batching": {"async_steps": wide, "actors": {"updates": "barrier", "prefetch": 0}},
        "+ better threading": {"async_steps": wide, "actors": {"updates": "drained"}},
        "+ in-flight updates": {"async_steps": wide, "actors": {"updates": "in_flight"}},
    }


def _build_rung(name: str, options: dict[str, Any], steps: int, seed: int) -> Rung:
    actors = {
        "count": ENGINES,
        "engine": {"max_model_len": LONGEST + 1024, "max_num_seqs": ENGINE.max_num_seqs},
        **options["actors"],
    }
    config = TrainingConfig.model_validate(
        {
            "steps": steps,
            "groups_per_step": BATCH,
            "sampling": {"samples": 8, "max_tokens": LONGEST},
            "max_staleness": 100,
            "checkpoint_every": 10_000,
            "recover_every": None,
            **options,
            "actors": actors,
        }
    )
    chance = random.Random(seed)
    workload = Workload(make_length_sampler(chance, MEAN_TOKENS, LONGEST))
    rate, publish = LEARNER
    simulated = simulate(config, ENGINE, ClockLearner(rate, publish_seconds=publish), workload, seed)
    return Rung(name, config.groups_per_step * max(config.async_steps, 1), simulated)
