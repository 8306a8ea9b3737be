"""Draws charts as HTML fragments for the report and the decks of stages.

Matplotlib is imported when the first chart is drawn.
"""

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
from tasks.charts.pages import document, page, prompt_samples, rates_so_far, rollout_samples, table
from tasks.charts.panels import before_after, mean_scores, mixture_difference, training_curves

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
    "document",
    "grid",
    "histogram",
    "intervals",
    "mean_scores",
    "mixture_difference",
    "page",
    "prompt_samples",
    "rates_so_far",
    "rollout_samples",
    "shares",
    "table",
    "training_curves",
]
