"""Draws charts as HTML fragments, in the same style for the report and the decks of stages.

Each function returns a `<figure class="chart">` that contains a caption with the unit, a legend and an inline SVG with
a title and a description for screen readers, or a `<p class="chart-absent">` message if there is nothing to draw.
Equal data gives equal bytes. Colours are CSS variables with mid-tone fallbacks, so that a chart is readable on light
and dark backgrounds. A page with charts must contain `STYLE` once (`add_styles` adds it to fragments without a page).
"""

from __future__ import annotations

import hashlib
import html
import io
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLORS = {
    "ink": "#767d8b",
    "grid": "#9da3b0",
    "muted": "#a7adb8",
    "before": "#8b919d",
    "after": "#179b8b",
    "blue": "#3f82cf",
    "orange": "#d97d2e",
    "violet": "#8d70d1",
    "pink": "#cf5f96",
    "red": "#d05656",
}
"""Mid-tone colours by role, for pages whose style sheet does not set them."""

_DARK = {
    "ink": "#a3aaba",
    "grid": "#6d7484",
    "muted": "#5f6675",
    "before": "#8e96a6",
    "after": "#35c2b0",
    "red": "#ef8080",
}
_LIGHT = {
    "ink": "#596070",
    "grid": "#b4b9c3",
    "muted": "#c3c8d1",
    "before": "#8b919d",
    "after": "#0c7a6d",
    "red": "#b94343",
}

_DOMAIN_COLORS = {"math": "blue", "precise_if": "orange", "code": "violet", "chat": "pink"}
_OTHER_COLORS = ("after", "blue", "orange", "violet", "pink", "red")

_WIDTH, _WIDE, _HEIGHT = 350, 470, 190  # CSS pixels at which the text has its nominal size
_SMOOTH_FROM = 40  # number of points above which a curve is drawn faintly under its moving average


def _format_variables(colors: Mapping[str, str]) -> str:
    return "".join(f"--chart-{role}:{color};" for role, color in colors.items())


# A page is dark only if it has a dark colour scheme, which the console's page around a deck does not have.
_THEMED = {role: f"light-dark({color},{_DARK[role]})" for role, color in _LIGHT.items()}


_RULES = Template((Path(__file__).parent / "templates" / "chart.css").read_text(encoding="utf-8"))
STYLE = f"<style>\n{_RULES.substitute(light=_format_variables(_LIGHT), themed=_format_variables(_THEMED))}</style>"


@dataclass(frozen=True)
class Series:
    """A curve of `draw_curves`: `points` are (x, y), and a point whose y is not finite is a gap.

    `bounds` are the lower and upper bounds of the points' intervals, for a band around the curve. Without them there is
    no band.
    """

    label: str
    points: Sequence[tuple[float, float]]
    color: str
    bounds: Sequence[tuple[float, float]] = ()


@dataclass(frozen=True)
class Interval:
    """One estimate of `draw_intervals`: `row` names its line, `label` its series."""

    row: str
    label: str
    value: float
    low: float
    high: float
    color: str


@dataclass(frozen=True)
class Stack:
    """One layer of stacked bars: a value for each bar."""

    label: str
    values: Sequence[float]
    color: str


def add_styles(*fragments: str) -> str:
    """Return HTML fragments with the charts' style sheet, for a page that does not contain it."""
    return STYLE + "".join(fragments)


def make_grid(fragments: Iterable[str], *, wide: bool = False) -> str:
    """Return HTML fragments side by side, as many as fit. `wide` is for two large ones."""
    return f'<div class="chart-grid{" chart-wide" if wide else ""}">{"".join(fragments)}</div>'


def choose_color(label: str, position: int = 0) -> str:
    """Return the colour role of a domain, which is always the same, or of another label by its position."""
    return _DOMAIN_COLORS.get(label, _OTHER_COLORS[position % len(_OTHER_COLORS)])


def draw_curves(
    title: str,
    unit: str,
    series: Sequence[Series],
    *,
    x_label: str = "training step",
    integer_x: bool = True,
    from_zero: bool = True,
) -> str:
    """Draw curves over steps, or over another quantity, which `integer_x` says is a whole number.

    `from_zero` starts the vertical axis at 0 if no value is negative.
    """
    drawn = [(one, [(x, y) for x, y in one.points if math.isfinite(y)]) for one in series]
    drawn = [(one, points) for one, points in drawn if points]
    if not drawn:
        return render_notice(f"{title}: nothing was recorded.")

    def draw(axes: Axes) -> None:
        for one, _ in drawn:
            _draw_curve(axes, one)
        if integer_x:
            _set_integer_axis(axes)
        axes.set_xlabel(x_label)
        values = [y for _, points in drawn for _, y in points]
        tops = [high for one, _ in drawn for _, high in one.bounds]
        if from_zero and min(values) >= 0:
            axes.set_ylim(bottom=0, top=max(values + tops) * 1.08 or 1)

    summary = [
        f"{one.label}: from {_shorten(points[0][1])} at {_shorten(points[0][0])} to {_shorten(points[-1][1])} "
        f"at {_shorten(points[-1][0])}"
        for one, points in drawn
    ]
    legend = [(one.label, one.color) for one, _ in drawn] if len(drawn) > 1 else []
    return _draw_chart(title, unit, f"Curves over {x_label}. {'; '.join(summary)}.", legend, draw)


def draw_histogram(
    title: str,
    unit: str,
    bins: Sequence[str],
    stacks: Sequence[Stack],
    *,
    x_label: str,
    threshold: tuple[float, str] | None = None,
) -> str:
    """Draw stacked columns over named bins. `threshold` is a position (in bins from the left edge) and its label."""
    totals = [sum(column) for column in zip(*(stack.values for stack in stacks), strict=True)]
    if not any(totals):
        return render_notice(f"{title}: nothing to count.")

    def draw(axes: Axes) -> None:
        base = [0.0] * len(bins)
        for stack in stacks:
            axes.bar(range(len(bins)), stack.values, 0.86, base, color=COLORS[stack.color], linewidth=0)
            base = [low + value for low, value in zip(base, stack.values, strict=True)]
        axes.set_xticks(range(len(bins)), bins)
        axes.set_xlabel(x_label)
        axes.set_xlim(-0.6, len(bins) - 0.4)
        axes.set_ylim(0, max(totals) * 1.15)
        if threshold:
            x = threshold[0] - 0.5
            axes.axvline(x, color=COLORS["red"], linewidth=1.4, linestyle=(0, (4, 2)))
            axes.text(x + 0.08, max(totals) * 1.14, threshold[1], color=COLORS["red"], va="top")

    summary = ", ".join(f"{name}: {_shorten(total)}" for name, total in zip(bins, totals, strict=True))
    legend = [(stack.label, stack.color) for stack in stacks if any(stack.values)]
    return _draw_chart(title, unit, f"Columns over {x_label}. {summary}.", legend, draw, width=_WIDE, height=250)


def draw_shares(title: str, unit: str, rows: Sequence[str], stacks: Sequence[Stack]) -> str:
    """Draw stacked horizontal bars, one for each of `rows`, first row on top."""
    totals = [sum(column) for column in zip(*(stack.values for stack in stacks), strict=True)]
    if not any(totals):
        return render_notice(f"{title}: nothing to show.")

    def draw(axes: Axes) -> None:
        base = [0.0] * len(rows)
        for stack in stacks:
            axes.barh(
                range(len(rows)), stack.values, 0.66, base, color=COLORS[stack.color], linewidth=0, label=stack.label
            )
            base = [left + value for left, value in zip(base, stack.values, strict=True)]
        _set_rows_axis(axes, rows)
        axes.set_xlim(0, max(totals) * 1.02)

    summary = "; ".join(
        f"{row}: " + ", ".join(f"{stack.label} {_shorten(stack.values[i])}" for stack in stacks if stack.values[i])
        for i, row in enumerate(rows)
    )
    legend = [(stack.label, stack.color) for stack in stacks if any(stack.values)]
    return _draw_chart(title, unit, f"Stacked bars. {summary}.", legend, draw, width=_WIDE, height=48 + 32 * len(rows))


def draw_intervals(title: str, unit: str, estimates: Sequence[Interval], *, zero: bool = False) -> str:
    """Draw estimates with their intervals, one line per row and series. `zero` marks the value of no difference."""
    rows = list(dict.fromkeys(one.row for one in estimates))
    labels = list(dict.fromkeys(one.label for one in estimates))
    if not rows:
        return render_notice(f"{title}: nothing was estimated.")

    def draw(axes: Axes) -> None:
        if zero:
            axes.axvline(0, color=COLORS["ink"], linewidth=1)
        for one in estimates:
            y = rows.index(one.row) + 0.3 * (labels.index(one.label) - (len(labels) - 1) / 2)
            color = COLORS[one.color]
            if math.isfinite(one.low) and math.isfinite(one.high):
                axes.plot([one.low, one.high], [y, y], color=color, linewidth=2.6, solid_capstyle="round")
            axes.plot([one.value], [y], marker="o", markersize=7.5, color=color, linestyle="none")
        _set_rows_axis(axes, rows)

    summary = "; ".join(
        f"{one.row}, {one.label}: {_shorten(one.value)}, from {_shorten(one.low)} to {_shorten(one.high)}"
        for one in estimates
    )
    legend = list({one.label: (one.label, one.color) for one in estimates}.values())
    description = f"Estimates with 95% intervals. {summary}."
    return _draw_chart(title, unit, description, legend, draw, width=_WIDE, height=58 + 42 * len(rows))


def render_notice(sentence: str) -> str:
    """Return a message instead of a chart without data."""
    return f'<p class="chart-absent">{html.escape(sentence)}</p>'


def _draw_curve(axes: Axes, series: Series) -> None:
    x, y = [point[0] for point in series.points], [point[1] for point in series.points]
    color = COLORS[series.color]
    if series.bounds:
        low, high = zip(*series.bounds, strict=True)
        axes.fill_between(x, low, high, color=color, alpha=0.15, linewidth=0)
    if len(x) <= _SMOOTH_FROM:
        axes.plot(x, y, color=color, linewidth=1.8, marker="o", markersize=3.2)
        return
    axes.plot(x, y, color=color, linewidth=1, alpha=0.3)
    axes.plot(x, _smooth(y), color=color, linewidth=2)


def _smooth(values: Sequence[float], keep: float = 0.9) -> list[float]:
    """Return the exponential moving average without start-up bias. Gaps are kept."""
    total = weight = 0.0
    smoothed = []
    for value in values:
        if math.isfinite(value):
            total, weight = keep * total + (1 - keep) * value, keep * weight + (1 - keep)
        smoothed.append(total / weight if math.isfinite(value) else math.nan)
    return smoothed


def _set_integer_axis(axes: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, min_n_ticks=1))


def _set_rows_axis(axes: Axes, rows: Sequence[str]) -> None:
    axes.set_yticks(range(len(rows)), [row if len(row) <= 26 else f"{row[:25]}…" for row in rows])
    axes.set_ylim(len(rows) - 0.45, -0.55)
    axes.grid(visible=False, axis="y")
    axes.grid(visible=True, axis="x")


def _draw_chart(
    title: str,
    unit: str,
    description: str,
    legend: Sequence[tuple[str, str]],
    draw: Callable[[Axes], None],
    *,
    width: int = _WIDTH,
    height: int = _HEIGHT,
) -> str:
    """Draw on fresh axes of `width` x `height` pixels and wrap the SVG in a figure element."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.ticker import Formatter, ScalarFormatter

    class Distinct(Formatter):
        """Formats the labels of an axis with as few digits as are needed to distinguish them."""

        def __call__(self, value: float, pos: int | None = None) -> str:
            return _shorten(value)

        def format_ticks(self, values: list[float]) -> list[str]:
            return _format_distinct(values)

    with rc_context(_make_settings()):
        figure = Figure(figsize=(width / 72, height / 72), layout="constrained")
        axes = figure.add_subplot()
        draw(axes)
        for axis in (axes.xaxis, axes.yaxis):
            if isinstance(axis.get_major_formatter(), ScalarFormatter):
                axis.set_major_formatter(Distinct())
        svg = _render_svg(figure, title, description, width)
    keys = "".join(
        f'<span><i style="background:var(--chart-{color},{COLORS[color]})"></i>{html.escape(label)}</span>'
        for label, color in legend
    )
    return (
        f'<figure class="chart"><figcaption>{html.escape(title)}'
        f'<span class="chart-unit">{html.escape(unit)}</span></figcaption>'
        f'<div class="chart-legend">{keys}</div>{svg}</figure>'
    )


def _render_svg(figure: Figure, title: str, description: str, width: int) -> str:
    """Return the figure as an inline SVG element with themed colours, unique ids and no external references.

    It scales with its column as long as its text stays readable. A narrower column scrolls.
    """
    buffer = io.StringIO()
    figure.savefig(
        buffer, format="svg", transparent=True, metadata=dict.fromkeys(("Creator", "Date", "Format", "Type"))
    )
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<style.*?</style>", "", svg, flags=re.DOTALL)  # it would apply to the whole page
    svg = re.sub(r"font-family: [^;\"]+; ?", "", svg)
    for role, color in COLORS.items():
        svg = svg.replace(color, f"var(--chart-{role},{color})")
    own = "c" + hashlib.sha256((title + description + svg).encode()).hexdigest()[:10]
    svg = re.sub(r'(?<= id=")|(?<="#)|(?<=url\(#)', f"{own}-", svg)
    head = re.search(r'viewBox="([^"]*)"[^>]*>', svg)
    assert head is not None
    size = f"min-width:{0.72 * width:.0f}px;max-width:{1.2 * width:.0f}px"
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'viewBox="{head.group(1)}" style="{size}" role="img" aria-labelledby="{own}-title {own}-desc">'
        f'<title id="{own}-title">{html.escape(title)}</title><desc id="{own}-desc">{html.escape(description)}</desc>'
        f"{svg[head.end() :].strip()}"
    )


def _make_settings() -> Any:
    """Return Matplotlib's settings for a chart. Text is not converted to paths, and equal data gives equal bytes."""
    from matplotlib import rc_params_from_file

    settings = rc_params_from_file(Path(__file__).with_name("chart.mplstyle"), use_default_template=False)
    inked = ("text.color", "axes.labelcolor", "xtick.labelcolor", "ytick.labelcolor")
    lines = ("axes.edgecolor", "grid.color", "xtick.color", "ytick.color")
    return settings | dict.fromkeys(inked, COLORS["ink"]) | dict.fromkeys(lines, COLORS["grid"])


def _format_distinct(values: Sequence[float]) -> list[str]:
    """Format the numbers of an axis with four significant digits, or more if needed to distinguish them."""
    for digits in range(4, 9):
        labels = [_shorten(value, digits) for value in values]
        if len(set(labels)) == len(set(values)):
            break
    return labels


def _shorten(value: float, digits: int = 4) -> str:
    """Format a number for an axis or a description: 12345 is 12.3k. Below 10,000 it has four significant digits."""
    if not math.isfinite(value):
        return "unknown"
    if abs(value) >= 1e6:
        return f"{value / 1e6:.{digits - 1}g}M"
    if abs(value) >= 1e4:
        return f"{value / 1e3:.{digits - 1}g}k"
    return f"{value:.{digits}g}".replace("e-0", "e-")
