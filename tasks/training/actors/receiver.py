"""Defines the interface through which a fleet notifies the controller."""

from __future__ import annotations

from typing import Protocol

from tasks.generation.interface import Completion, WeightUpdate
from tasks.training.groups.group import Group, Sample


class Receiver(Protocol):
    """Receives the events of a fleet. In a run this is `GroupLifecycle`."""

    def on_generated(self, sample: Sample, completion: Completion) -> None:
        """Handle the response `completion` that an actor generated for `sample`."""

    def on_impossible(self, group: Group, reason: str) -> None:
        """Handle a group whose prompt no engine can answer, for `reason`."""

    def on_actor_lost(self) -> None:
        """Handle the loss of an actor, whose unfinished samples are in the window again."""

    def on_update(self, timing: WeightUpdate) -> None:
        """Handle the end of a weight update of one actor, which took `timing`."""
