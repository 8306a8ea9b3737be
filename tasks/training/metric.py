"""The declaration of a metric, from which `docs/metrics.md` is made."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Metric:
    """A number that each step of a run may record.

    Attributes:
        name: its key in `metrics.jsonl`; `<...>` stands for a name that the run fills in.
        unit: of the number; empty for one without a unit.
        meaning: definition, and the option without which it is not recorded.
    """

    name: str
    unit: str
    meaning: str
