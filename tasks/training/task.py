"""Training as one long Flyte task on a Ray cluster."""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path
from typing import Annotated, NamedTuple

from flytekit import Resources, current_context
from flytekit.exceptions.user import FlyteRecoverableException
from flytekit.types.directory import FlyteDirectory
from flytekit.types.file import FlyteFile

from images import TRAINING
from tasks.config import decisive
from tasks.contents import seal
from tasks.digest import code_digest
from tasks.platform import (
    RESULT,
    Folder,
    JsonLines,
    Parquet,
    Stopwatch,
    content_digest,
    local,
    progress,
    show,
    shown_stage,
)
from tasks.ray_job import HeadNodeConfig, RayJobConfig, WorkerNodeConfig
from tasks.schemas import StageSummary, canonical_json
from tasks.training.config import TrainingConfig
from tasks.verifiers.config import DEFAULTS, VerifiersConfig

RUNS = "RLVR_RUNS"
"""Environment variable: the folder of run folders, on storage that all nodes see and that outlives them."""

DECK_SECONDS = 30.0
"""The live curves are drawn at most this often: drawing takes a second of a core."""

CLUSTER = RayJobConfig(
    head_node_config=HeadNodeConfig(requests=Resources(cpu="4", mem="32Gi")),
    worker_node_config=[
        WorkerNodeConfig(group_name="learner", replicas=1, requests=Resources(cpu="16", mem="128Gi", gpu="8")),
        WorkerNodeConfig(group_name="actors", replicas=1, requests=Resources(cpu="16", mem="128Gi", gpu="8")),
    ],
    shutdown_after_job_finishes=True,
)


class Trained(NamedTuple):
    policy: Folder
    ledger: Parquet
    metrics: JsonLines
    tensorboard: Folder
    summary: StageSummary


@shown_stage(
    container_image=TRAINING,
    task_config=CLUSTER,
    requests=Resources(cpu="4", mem="32Gi"),
    retries=3,
)
def train_policy(
    model: Folder,
    mixture: Parquet,
    config: Annotated[TrainingConfig, RESULT],
    verifiers: Annotated[VerifiersConfig, RESULT] = DEFAULTS,
) -> Trained:
    """Train the initial checkpoint on the mixture; an interrupted run goes on from its last checkpoint.

    The run folder's name is a digest of everything that the run depends on, so that a retry, or a second start on the
    same machine after a crash or Ctrl-C, finds it.
    """
    from tasks import charts
    from tasks.training.actors import ActorLostError
    from tasks.training.controller import StalledError
    from tasks.training.learner.client import LearnerLostError
    from tasks.training.run import train

    watch = Stopwatch("training")
    folder = run_folder(content_digest(model), content_digest(mixture), config, verifiers)
    restore_from_flyte(folder)
    judged_by = verifiers.with_initial(local(model))
    drawn_at = 0.0

    with progress("training: steps", config.steps) as advance:

        def on_step(metrics: dict[str, float]) -> None:
            nonlocal drawn_at
            note = f"reward {metrics['reward']:.2f}" if "reward" in metrics else ""
            advance(note=note, done=int(metrics["step"]) + 1)
            if time.monotonic() - drawn_at >= DECK_SECONDS:
                drawn_at = time.monotonic()
                show("training", charts.deck(charts.training_curves(rows_of(folder / "metrics.jsonl"))))

        try:
            result = train(
                config, local(model), local(mixture), folder, judged_by, on_step=on_step, on_saved=save_to_flyte
            )
        except (ActorLostError, LearnerLostError, StalledError) as error:
            raise FlyteRecoverableException(f"{error} (run folder {folder})") from error

    rows = rows_of(result.metrics)
    show("training", charts.deck(charts.training_curves(rows)))
    trained = sum(row["trained_tokens_per_second"] * row["step_seconds"] for row in rows)
    seconds = sum(row["step_seconds"] for row in rows)
    generated = sum(row["generated_tokens"] for row in rows)
    summary = watch.summary(
        f"{config.steps} steps, {trained:,.0f} tokens trained, "
        f"{generated / max(seconds, 1e-9):,.0f} tokens/s generated",
        steps=config.steps,
        resumed_from=result.resumed_from,
        trained_tokens=trained,
        generated_tokens=generated,
        tokens_per_second=generated / max(seconds, 1e-9),
        run_folder=folder.name,
    )
    return Trained(
        FlyteDirectory(str(seal(result.policy))),
        FlyteFile(str(result.ledger)),
        FlyteFile(str(result.metrics)),
        FlyteDirectory(str(result.tensorboard)),
        summary,
    )


def rows_of(metrics: Path) -> list[dict[str, float]]:
    """The metrics of all steps of a run so far, those of earlier attempts included."""
    return [json.loads(line) for line in metrics.read_text().splitlines()]


def run_folder(model: str, mixture: str, config: TrainingConfig, verifiers: VerifiersConfig) -> Path:
    """Where the run of these inputs, by their digests, keeps its memory under this code.

    As in the cache's keys, run-time options have no part in it, but for those that its checkpoints are made for.
    """
    options = [decisive(config), decisive(verifiers), config.learner.ranks, config.learner.zero_stage]
    identity = [model, mixture, *options, code_digest(__name__)]
    name = hashlib.sha256(canonical_json(identity).encode()).hexdigest()[:16]
    return Path(os.environ.get(RUNS, "outputs/runs")).absolute() / name


def save_to_flyte(checkpoint: Path) -> None:
    """Tell Flyte's checkpoint where the newest complete checkpoint lies: a pointer, the data stay where they are."""
    pointer = checkpoint.parent / "newest.txt"
    pointer.write_text(str(checkpoint))
    current_context().checkpoint.save(pointer)


def restore_from_flyte(folder: Path) -> None:
    """Raise when an earlier attempt saved a checkpoint that this machine cannot see: starting anew would lose it."""
    content = current_context().checkpoint.read()
    if content is None:
        return
    checkpoint = Path(content.decode())
    if checkpoint.parent.parent != folder or not checkpoint.is_dir():
        raise ValueError(
            f"the earlier attempt's checkpoint {checkpoint} is not in {folder}: set {RUNS} to a folder on storage "
            "that every attempt sees"
        )
