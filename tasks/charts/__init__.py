"""Draws charts as HTML fragments for the report and the decks of stages.

Matplotlib is imported when the first chart is drawn.
"""

from tasks.charts.drawing import (
    STYLE,
    Interval,
    Series,
    Stack,
    add_styles,
    choose_color,
    draw_curves,
    draw_histogram,
    draw_intervals,
    draw_shares,
    make_grid,
    render_notice,
)
from tasks.charts.pages import document, page, render_prompt_samples, render_rates, render_rollout_samples, render_table
from tasks.charts.panels import draw_before_after, draw_mixture_difference, draw_training_curves, mean_scores

__all__ = [
    "STYLE",
    "Interval",
    "Series",
    "Stack",
    "add_styles",
    "choose_color",
    "document",
    "draw_before_after",
    "draw_curves",
    "draw_histogram",
    "draw_intervals",
    "draw_mixture_difference",
    "draw_shares",
    "draw_training_curves",
    "make_grid",
    "mean_scores",
    "page",
    "render_notice",
    "render_prompt_samples",
    "render_rates",
    "render_rollout_samples",
    "render_table",
]
