"""Defines the dependencies of a controller: the actors, the learner, the reward workers and the files of one run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tasks.training.actors.fleet import FleetCollaborators
from tasks.training.control.batch import Advantages, advantages
from tasks.training.control.validation_figures import Question
from tasks.training.groups.group import Prompt
from tasks.training.learner.restartable import RestartingLearner
from tasks.training.records.checkpoint import Checkpoints
from tasks.training.records.journal import Metrics
from tasks.training.records.ledger import Ledger
from tasks.training.telemetry.machine_use import MachineUse


@dataclass
class Collaborators(FleetCollaborators):
    """Everything that a `Controller` needs in addition to options and prompts. Tests replace any of it.

    `learner` uses the same `turns`.

    Attributes:
        learner: trains, and restarts lost ranks.
        ledger: records the outcome of every group.
        journal: records the metrics of every step.
        checkpoints: writes and uploads checkpoints.
        policies: folder of the policies that are exported during the run.
        on_step: called with the metrics of every step, in a thread.
        on_phase: called with what happens before the first step, such as how many groups are sampled.
        validation_prompts: prompts that are never trained on. Empty without validation.
        questions: benchmark questions, which validation uses too.
        advantages: computes the advantages of a batch.
        machine_use: measures how well the run uses its machines.
    """

    learner: RestartingLearner
    ledger: Ledger
    journal: Metrics
    checkpoints: Checkpoints
    policies: Path
    on_step: Callable[[dict[str, float]], None] = field(default=lambda _: None)
    on_phase: Callable[[str], None] = field(default=lambda _: None)
    validation_prompts: Sequence[Prompt] = ()
    questions: Sequence[Question] = ()
    advantages: Advantages = advantages
    machine_use: MachineUse = field(default_factory=MachineUse)
