"""Charts as HTML fragments, for the report and for every stage's deck; Matplotlib loads when the first is drawn."""

from tasks.charts.drawing import (
    STYLE,
    Interval,
    Series,
    Stack,
    absent,
    color_of,
    curves,
    deck,
    grid,
    histogram,
    intervals,
    shares,
)
from tasks.charts.panels import before_after, pass_rates, training_curves

__all__ = [
    "STYLE",
    "Interval",
    "Series",
    "Stack",
    "absent",
    "before_after",
    "color_of",
    "curves",
    "deck",
    "grid",
    "histogram",
    "intervals",
    "pass_rates",
    "shares",
    "training_curves",
]
