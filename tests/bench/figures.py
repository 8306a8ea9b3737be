"""One measured figure, and the table and file that figures end in."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Figure:
    """A value beside what it is compared with.

    Attributes:
        name: what was measured.
        value, unit: ours.
        reference, reference_value: what it is compared with, in the same unit.
        ratio: value over reference value.
        target: the bound on the ratio, or on the value where the reference is a limit.
        met: whether the target is met; None where there is none.
    """

    name: str
    value: float
    unit: str
    reference: str
    reference_value: float
    ratio: float
    target: str
    met: bool | None

    @classmethod
    def at_least(
        cls, name: str, value: float, unit: str, reference: str, reference_value: float, ratio: float
    ) -> Figure:
        """`value` should be at least `ratio` times the reference."""
        found = value / reference_value
        return cls(name, value, unit, reference, reference_value, found, f"ratio >= {ratio:g}", found >= ratio)

    @classmethod
    def at_most(
        cls, name: str, value: float, unit: str, reference: str, reference_value: float, ratio: float
    ) -> Figure:
        """`value` should be at most `ratio` times the reference."""
        found = value / reference_value
        return cls(name, value, unit, reference, reference_value, found, f"ratio <= {ratio:g}", found <= ratio)

    @classmethod
    def below(cls, name: str, value: float, unit: str, limit: float) -> Figure:
        """`value` should be below a stated limit."""
        return cls(name, value, unit, "limit", limit, value / limit, f"< {limit:g} {unit}", value < limit)

    @classmethod
    def above(cls, name: str, value: float, unit: str, limit: float) -> Figure:
        """`value` should be at least a stated number."""
        return cls(name, value, unit, "floor", limit, value / limit, f">= {limit:g} {unit}", value >= limit)

    @classmethod
    def none(cls, name: str, value: float, unit: str, reference: str) -> Figure:
        """There should be none of these."""
        return cls(name, value, unit, reference, 0.0, 1.0, "none", not value)

    @classmethod
    def stated(cls, name: str, value: float, unit: str, reference: str, reference_value: float) -> Figure:
        """A figure that is stated and has no target."""
        return cls(name, value, unit, reference, reference_value, value / reference_value, "stated", None)


def publish(figures: list[Figure], path: Path) -> None:
    """Print the table and write the file."""
    table = Table(title="benchmarks", title_justify="left")
    for column in ("figure", "value", "unit", "against", "its value", "ratio", "target", ""):
        table.add_column(column)
    for each in figures:
        table.add_row(
            each.name,
            f"{each.value:.3g}",
            each.unit,
            each.reference,
            f"{each.reference_value:.3g}",
            f"{each.ratio:.2f}",
            each.target,
            {True: "met", False: "missed", None: ""}[each.met],
        )
    console = Console()
    console.width = max(console.width, 130)  # a narrower table breaks every name
    console.print(table)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([asdict(each) for each in figures], indent=2) + "\n")
    print(path.absolute())
