"""Makes one attempt at a run. Prints the step at which it is resumed and, if it is interrupted, what is left."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.machine.progress import Advance
from tasks.recipe.run import TrainingConfig
from tasks.training.records.checkpoint import Checkpoints
from tasks.training.records.run_storage import open_run_storage
from tasks.training.records.shorter_runs import FileSystemOf, RunLocation
from tasks.training.telemetry.step_metrics import format_note

if TYPE_CHECKING:
    from tasks.training.run import RunInputs, TrainingResult


def run_attempt(
    location: RunLocation, inputs: RunInputs, filesystem_of: FileSystemOf, advance: Advance
) -> TrainingResult:
    """Train a run at its location, which is locked for other processes meanwhile.

    Args:
        location: its folder, and its address on blob storage if it has one.
        inputs: the inputs of the run; its lease, its uploads and `on_phase` are replaced.
        filesystem_of: returns the fsspec file system of an address.
        advance: the progress of its steps (`track_progress`).

    Raises:
        AccessError, StoreError, RunInUseError: see `open_run_storage`.
        Exception: any exception that `train` raises.
    """
    from tasks.training.run import train

    config = inputs.config
    with (
        open_run_storage(
            location.folder, location.address, filesystem_of, config.checkpoint_every, location.begin
        ) as held,
        print_attempt(location.folder, config, advance),
    ):
        shown = replace(inputs, on_phase=lambda what: advance(0, note=what))
        return train(replace(shown, lease=held.lease, on_saved=held.on_saved, uploads=held.uploads))


@contextlib.contextmanager
def print_attempt(folder: Path, config: TrainingConfig, advance: Advance) -> Iterator[None]:
    """Print from which step the run in `folder` is resumed, and what is left of it when Ctrl-C ends the block.

    Args:
        folder: the run folder.
        config: the options of the run.
        advance: the progress of its steps, which counts steps of earlier attempts as done (`track_progress`).
    """
    done = count_saved_steps(folder)
    if done:
        _print(f"training: {done} of {config.steps} steps are done: resumed from the checkpoint in {folder}")
        advance(0, note=f"resumed after step {done}", done=done)
    try:
        yield
    except KeyboardInterrupt:
        _print(describe_what_is_left(folder, config))
        raise


def count_saved_steps(folder: Path) -> int:
    """Return the number of steps in the newest checkpoint of a run folder, or 0 if there is none."""
    newest = Checkpoints.find_newest_below(folder / "checkpoints")
    return int(newest.name.removeprefix("step_")) if newest else 0


def step_note(metrics: Mapping[str, float], folder: Path) -> str:
    """Return the text next to a progress bar: the step's reward, and the number of steps in the newest checkpoint.

    After an interruption, the run continues from there. The checkpoint of a step is written while later steps run.
    """
    saved = count_saved_steps(folder)
    return ", ".join(
        filter(None, [format_note(metrics), f"checkpoint of {saved} steps" if saved else "no checkpoint yet"])
    )


def describe_what_is_left(folder: Path, config: TrainingConfig) -> str:
    """Return the line printed for an interrupted run: what its folder contains, and how to continue."""
    done = count_saved_steps(folder)
    if done:
        return (
            f"training: interrupted; {done} of {config.steps} steps are in the checkpoint in {folder}: the same "
            "command resumes there"
        )
    every = config.steps_between_checkpoints
    option = "checkpoint_every" if every == config.checkpoint_every else "recover_every"
    return (
        f"training: interrupted before the first checkpoint ({option} is {every}): the same "
        "command starts training again, and takes finished stages from the cache"
    )


def _print(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
