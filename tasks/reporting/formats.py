"""Formats numbers with their units for the report; a value that is not finite becomes a word."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tasks.reporting.sections import Cost

UNKNOWN = "unknown"


def percent(rate: float | None) -> str:
    """Format a rate in [0, 1] as a percentage: 0.234 is 23.4%. None becomes "unknown"."""
    return f"{100 * rate:.1f}%" if rate is not None and math.isfinite(rate) else UNKNOWN


def points(difference: float) -> str:
    """Format a difference of rates in percentage points, signed: 0.211 is +21.1 points."""
    return f"{100 * difference:+.1f} points" if math.isfinite(difference) else UNKNOWN


def duration(seconds: float) -> str:
    """Format a duration in seconds in its two largest units: 252 is 4 min 12 s."""
    if not math.isfinite(seconds):
        return UNKNOWN
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def count(number: float) -> str:
    """Format an integer with thousands separators."""
    return f"{number:,.0f}"


def format_hours(spent: float) -> str:
    """Format core hours or GPU hours, with two significant digits below ten: 0.35, 4.2, 1,250."""
    return f"{spent:,.0f}" if spent >= 10 else f"{spent:.2g}"


def cost(spent: Cost) -> str:
    """Format a cost as GPU hours (if GPUs were used), core hours, and the total at the given prices."""
    if not spent.core_hours:
        return UNKNOWN if spent.seconds else "nothing"
    cores = f"{format_hours(spent.core_hours)} core hours"
    held = f"{format_hours(spent.gpu_hours)} GPU hours, {cores}" if spent.gpu_hours else cores
    if spent.total is None:
        return held
    judging = f", {money(spent.judging)} of it for judging" if spent.judging else ""
    return f"{money(spent.total)} by the given prices{judging}; {held}"


def money(amount: float) -> str:
    """Format an amount of money in the currency of the prices: 1,234.50, and 0.0042 below 0.01."""
    return f"{amount:,.2f}" if amount >= 0.01 or not amount else f"{amount:.2g}"


def decimal(number: float | None) -> str:
    """Format a measurement with one decimal and thousands separators. None becomes "unknown"."""
    return f"{number:,.1f}" if number is not None and math.isfinite(number) else UNKNOWN


def metric(name: str) -> str:
    """Return the name of a metric as words: `pass_rate` is pass rate. The name that a user gave a reward is kept."""
    return name if "/" in name else name.replace("_", " ")


def p_value(probability: float) -> str:
    """Format a p-value in two significant digits, or as a bound below 0.001."""
    return "p < 0.001" if probability < 0.001 else f"p = {probability:.2g}"


def detectable(gain: float | None, metric: str = "pass_rate") -> str:
    """Format the smallest detectable gain of a metric, without a sign: 0.052 of a rate is 5.2 points."""
    if gain is None or not math.isfinite(gain):
        return UNKNOWN
    return f"{gain:.1f} tokens" if metric == "mean_tokens" else f"{100 * gain:.1f} points"


def moment(when: datetime) -> str:
    """Format a time in UTC, to the second."""
    return f"{to_utc(when):%Y-%m-%d %H:%M:%S} UTC"


def to_utc(when: datetime) -> datetime:
    """Return the time in UTC. A naive time is taken as UTC, because every stage records UTC."""
    return when.replace(tzinfo=UTC) if when.tzinfo is None else when.astimezone(UTC)


def estimate(row: Mapping[str, Any]) -> str:
    """Format a row of the `EVALUATION` table with its value, unit and interval."""
    tokens = row["metric"] == "mean_tokens"
    gain = row["baseline"] is not None
    value, low, high = row["value"], row["low"], row["high"]
    if not math.isfinite(low) or not math.isfinite(high):
        bounds = "no interval from one prompt"
    elif tokens:
        bounds = f"{low:+.1f} to {high:+.1f}" if gain else f"{low:.1f} to {high:.1f}"
    elif gain:
        bounds = f"{100 * low:+.1f} to {100 * high:+.1f}"
    else:
        bounds = f"{100 * low:.1f} to {100 * high:.1f}"
    if tokens:
        return f"{value:+.1f} tokens ({bounds})" if gain else f"{value:.1f} tokens ({bounds})"
    return f"{points(value) if gain else percent(value)} ({bounds})"
