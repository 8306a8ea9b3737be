"""Converts learner state for another number of ranks.

It uses DeepSpeed's universal checkpoint (Lian et al. 2024, arXiv:2406.18820).

Each rank saves its shard of the optimizer's state. The universal form contains every parameter whole, with its moments,
and any number of ranks can load its shards from it. A rank has no other state: any number of ranks can read the files
of a reference policy, nothing is random once the policy is built, and the controller determines the order of the data.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tasks.failures import InfrastructureError
from tasks.storage.durable import write_whole

TAG = "rlvr"
"""DeepSpeed's name ("tag") of a checkpoint in a folder; our folders contain one checkpoint, with this tag."""


class ConversionError(InfrastructureError):
    """A checkpoint could not be converted to its universal form: the disk is full, or there is too little memory."""


def make_universal_path(learner: Path) -> Path:
    """Return the folder of the universal form of a checkpoint; it exists once `convert` has made it.

    Args:
        learner: the folder that ranks saved the checkpoint to.
    """
    return learner / "universal"


def convert(learner: Path) -> None:
    """Create the universal form of a checkpoint, inside its folder, unless it exists.

    It needs memory for one rank's state.

    Args:
        learner: the folder that ranks saved the checkpoint to.

    Raises:
        ConversionError: DeepSpeed failed; the message is the last line of its error.
    """
    final = make_universal_path(learner)
    if final.is_dir():
        return
    command = [sys.executable, "-m", "deepspeed.checkpoint.ds_to_universal", "--inject_missing_state"]
    workers = ["--num_extract_workers", "1"]  # every worker has one rank's state in memory
    # More workers would be forks of a process with torch threads, and wait for these forever.
    workers += ["--num_merge_workers", "1"]
    with write_whole(final, durable=True) as partial:
        folders = ["--input_folder", str(learner / TAG), "--output_folder", str(partial / TAG)]
        done = subprocess.run([*command, *folders, *workers], capture_output=True, text=True, check=False)  # noqa: S603
        if done.returncode:
            lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
            raise ConversionError(f"{learner} could not be converted for other learner ranks: {lines[-1]}")
