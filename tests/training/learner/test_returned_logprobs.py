"""A step returns the log-probabilities of the sequences that are kept, from all ranks, and of no others."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from tasks.recipe.run import TrainingConfig
from tasks.training.learner.packing import Sequence, pack

pytestmark = pytest.mark.engine

SEQUENCES = [
    Sequence([5, 6, 7], [10, 20, 30, 40], [-5.0] * 4, 1.0),
    Sequence([5, 6, 7], [11, 21, 31], [-5.0] * 3, -1.0, mask=[True, False, True]),
    Sequence([50, 60], [70, 80, 90, 100, 110, 120], [-5.0] * 6, 0.5),
    Sequence([50, 60], [71, 81], [-5.0] * 2, -0.5),
]


@pytest.mark.parametrize(
    ("ranks", "tokens"),
    [(1, 2048), pytest.param(2, 12, marks=pytest.mark.complete)],
    ids=["one row", "rows of two ranks"],
)
def test_what_a_step_returns_is_what_the_policy_before_it_gives(processes, tiny_model, ranks, tokens):
    from tasks.training.learner.client import RayLearner

    config = TrainingConfig.model_validate(
        {"learner": {"cpu_threads": 1, "cpus": 0, "ranks": ranks, "micro_batch_tokens": tokens, "dtype": "float32"}}
    )
    learner = RayLearner(lambda rank: processes.take(ranks, rank, config, str(tiny_model)), config)

    async def results(kept):
        numbered = [replace(one, kept_as=kept.get(index)) for index, one in enumerate(SEQUENCES)]
        return await learner.logprobs(SEQUENCES), (await learner.step(numbered, 14, 1e-3)).logprobs

    asyncio.run(learner.start())
    try:
        for kept in ({}, {0: 40, 3: 43}, {index: index for index in range(4)}):
            before, returned = asyncio.run(results(kept))
            assert returned.keys() == set(kept.values())
            for index, number in kept.items():
                assert returned[number].dtype == np.float32
                assert returned[number] == pytest.approx(before[index], abs=1e-5)
                assert [value < 0 for value in returned[number]] == (
                    SEQUENCES[index].mask or [True] * len(before[index])
                )
    finally:
        processes.give_back()


def test_a_row_says_which_tokens_are_returned():
    first, second, *others = SEQUENCES
    [[row]] = pack([first, replace(second, kept_as=1), *others], 64)
    assert row.returned.tolist() == (row.sequence_ids == 1).tolist()
    [[row]] = pack(SEQUENCES, 64)
    assert row.returned is None
    [[row]] = pack([replace(first, kept_as=0, old_logprobs=[-1.0] * 4)], 64)
    assert row.returned is None
