"""Routes that ranks get with their rows: with ZeRO 3 and recomputed layers as on one rank without."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from tasks.recipe.run import TrainingConfig
from tasks.training.learner.packing import Sequence
from tests.model_check.families import build

pytestmark = [pytest.mark.engine, pytest.mark.complete]

LAYERS, EXPERTS, CHOSEN = 2, 4, 2
FREE = [
    Sequence([5, 6, 7], [10, 20, 30, 40], [-5.0] * 4, 1.0),
    Sequence([50, 60], [70, 80, 90, 100, 110], [-5.0] * 5, -0.5),
    Sequence([50, 60], [71, 81], [-5.0] * 2, 0.5),
]


def replayed(sequence, seed):
    draw = np.random.default_rng(seed).random((sequence.length - 1, LAYERS, EXPERTS))
    return replace(sequence, routes=draw.argsort(-1)[..., :CHOSEN].astype(np.uint8))


def test_sharded_ranks_replay_what_one_rank_does(processes, tmp_path):
    from tasks.training.learner.client import RayLearner

    sizes = {"num_hidden_layers": LAYERS, "num_experts": EXPERTS, "num_experts_per_tok": CHOSEN}
    folder = build(tmp_path / "model", "qwen3_moe", **sizes)
    given = [replayed(sequence, seed) for seed, sequence in enumerate(FREE)]

    def results(sequences, **options):
        learner = {"cpu_threads": 1, "cpus": 0, "dtype": "float32", **options}
        config = TrainingConfig.model_validate({"learner": learner, "routing_replay": True})
        ranks = config.learner.ranks
        client = RayLearner(lambda rank: processes.take(ranks, rank, config, str(folder)), config)
        asyncio.run(client.start())
        try:
            before = asyncio.run(client.logprobs(sequences))
            norm = asyncio.run(client.step(sequences, 11, 1e-3)).metrics["grad_norm"]
            return np.concatenate(before), norm, np.concatenate(asyncio.run(client.logprobs(sequences)))
        finally:
            processes.give_back()

    alone = results(given)
    sharded = results(given, ranks=2, zero_stage=3, persistence_threshold=0, gradient_checkpointing=True)
    free = results(FREE)
    # sums of float32 in another order
    for one, two in zip(alone, sharded, strict=True):
        np.testing.assert_allclose(two, one, rtol=1e-4, atol=1e-5)
    assert np.abs(free[0] - alone[0]).max() > 1e-3
    assert abs(free[1] - alone[1]) > 1e-3
