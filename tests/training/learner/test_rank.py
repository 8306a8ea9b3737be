"""How ranks join each other."""

import json
import os
import subprocess
import sys

import pytest

from tasks.recipe.run import TrainingConfig
from tasks.training.learner.rank import MARGIN, LearnerRank, compute_memory_share, group_timeout

JOINED = """
import socket

import torch

from tasks.recipe.run import TrainingConfig
from tasks.training.learner.rank import LearnerRank

with socket.create_server(("127.0.0.1", 0)) as free:
    port = free.getsockname()[1]
LearnerRank(TrainingConfig(stall_seconds=7200), "")._join(0, 1, ("127.0.0.1", port))
print(torch.distributed.group.WORLD._get_backend(torch.device("cpu")).options._timeout.total_seconds())
"""


class CountingTrainer:
    """Notes its calls; the result of a step is their number."""

    def __init__(self):
        self.calls = []

    def __getattr__(self, name):
        def call(*arguments):
            self.calls.append((name, *arguments))
            if name == "load":
                raise RuntimeError(f"call {len(self.calls)} finds no checkpoint")
            return len(self.calls)

        return call


def test_a_call_that_ray_repeats_has_one_effect_and_one_answer():
    rank = LearnerRank(TrainingConfig(), "")
    rank.trainer = CountingTrainer()
    assert [rank.step(0, ["row"], 2.0, 0.1) for _ in range(3)] == [1, 1, 1]
    assert rank.step(1, ["row"], 2.0, 0.1) == 2
    assert [rank.write_weights(2, "weights") for _ in range(2)] == [3, 3]
    for _ in range(2):
        with pytest.raises(RuntimeError, match="call 4 finds no checkpoint"):
            rank.load(3, "folder")
    step = ("step", ["row"], 2.0, 0.1)
    assert rank.trainer.calls == [step, step, ("write_weights", "weights"), ("load", "folder")]


def test_a_collective_call_may_take_longer_than_the_controller_waits():
    assert group_timeout(TrainingConfig(stall_seconds=1800)).total_seconds() == 1800 + MARGIN
    slow = TrainingConfig(stall_seconds=60, learner={"init_timeout_seconds": 1800})
    assert group_timeout(slow).total_seconds() == 1800 + MARGIN


def test_a_rank_next_to_an_engine_leaves_room_for_its_largest_layer(tmp_path):
    """1.5 GB, and an embedding of 151,936 x 896 in 16 bits; without a known shape 1.5 GB."""
    shared = TrainingConfig(placement="shared")
    config = {"num_attention_heads": 14, "num_hidden_layers": 24, "hidden_size": 896, "intermediate_size": 4864}
    (tmp_path / "config.json").write_text(json.dumps(config | {"vocab_size": 151936}))
    left = 0.6 * 24e9 - 1.5e9
    assert compute_memory_share(shared, 24 * 10**9, tmp_path) * 24e9 == pytest.approx(left - 2 * 151936 * 896)
    assert compute_memory_share(shared, 24 * 10**9, tmp_path / "none") * 24e9 == pytest.approx(left)


@pytest.mark.long
def test_the_group_that_a_rank_joins_has_this_limit():
    """DeepSpeed's default is 10 minutes, and `DEEPSPEED_TIMEOUT` does not apply either."""
    done = subprocess.run(
        [sys.executable, "-c", JOINED],
        env=os.environ | {"CUDA_VISIBLE_DEVICES": "", "DEEPSPEED_TIMEOUT": "3"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.split()[-1]) == 7200 + MARGIN
