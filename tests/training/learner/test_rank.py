"""How ranks join each other."""

import os
import subprocess
import sys

import pytest

from tasks.training.config import TrainingConfig
from tasks.training.learner.rank import MARGIN, group_timeout

JOINED = """
import socket

import torch

from tasks.training.config import TrainingConfig
from tasks.training.learner.rank import LearnerRank

with socket.create_server(("127.0.0.1", 0)) as free:
    port = free.getsockname()[1]
LearnerRank(TrainingConfig(stall_seconds=7200), "")._join(0, 1, ("127.0.0.1", port))
print(torch.distributed.group.WORLD._get_backend(torch.device("cpu")).options._timeout.total_seconds())
"""


def test_a_collective_call_may_take_longer_than_the_controller_waits():
    assert group_timeout(TrainingConfig(stall_seconds=1800)).total_seconds() == 1800 + MARGIN
    slow = TrainingConfig(stall_seconds=60, learner={"init_timeout_seconds": 1800})
    assert group_timeout(slow).total_seconds() == 1800 + MARGIN


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
