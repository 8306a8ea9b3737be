"""Learner state for another number of ranks: DeepSpeed's universal checkpoint (Lian et al. 2024, arXiv:2406.18820).

What ranks save is each one's part of the optimizer's state. The universal form holds each parameter whole, with its
moments, and any number of ranks takes its parts from that. A rank has no other state of its own: the reference policy
is whole on every rank, nothing is drawn at random once the policy is built, and the order of the data is the
controller's.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tasks.failures import InfrastructureError
from tasks.storage.durable import whole

TAG = "rlvr"
"""DeepSpeed's name for what is in a folder; ours hold one checkpoint each."""


class ConversionError(InfrastructureError):
    """A checkpoint could not be brought into its universal form: the disk is full, or the memory did not suffice."""


def universal_in(learner: Path) -> Path:
    """Where the universal form of what ranks saved in the folder `learner` is, if it has been made."""
    return learner / "universal"


def convert(learner: Path) -> None:
    """Make the universal form of what ranks saved in the folder `learner`, unless it is there.

    It has its name once it is complete, and goes with the folder. Takes the memory of one rank's state.

    Raises:
        ConversionError: DeepSpeed could not; its own words.
    """
    final = universal_in(learner)
    if final.is_dir():
        return
    command = [sys.executable, "-m", "deepspeed.checkpoint.ds_to_universal", "--inject_missing_state"]
    workers = ["--num_extract_workers", "1"]  # each holds one rank's state
    with whole(final, durable=True) as partial:
        folders = ["--input_folder", str(learner / TAG), "--output_folder", str(partial / TAG)]
        done = subprocess.run([*command, *folders, *workers], capture_output=True, text=True, check=False)  # noqa: S603
        if done.returncode:
            errors = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
            raise ConversionError(f"{learner} could not be converted for other learner ranks: {errors[-1]}")
