"""Defines the declaration of a metric. `docs/metrics.md` is generated from these declarations."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Metric:
    """A number that each step of a run may record.

    Attributes:
        name: its key in `metrics.jsonl`; `<...>` is a placeholder that the run fills in.
        unit: unit of the number, or empty if it has no unit.
        meaning: definition, and the option that the metric requires, if any.
    """

    name: str
    unit: str
    meaning: str
