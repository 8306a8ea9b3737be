r"""Which answers look as if algebra would take long over them: they ask before they begin.

The look decides only when they are judged, behind those that wait, and never how: `2^{2^{2^{2}}}` is judged like any
other. What looks harmless and is not is found out by its time, which costs the others some (`tasks.verifiers.jobs`).
"""

from __future__ import annotations

import re
from collections.abc import Callable

LONG_CHARS = 150
"""The grammar takes up to a millisecond for each character of a sum, so that more outlast a call's patience anyway."""
_LONG = re.compile(
    r"\^\s*(?:\{[^{}^]*[0-9)}]\s*\^|[0-9]\s*\^)"  # a number with an exponent in an exponent: a tower
    r"|\^\s*\{?\s*-?[0-9]{5,}"  # a power, sum or product up to a number of five digits
    r"|[0-9]{4,}\s*\}?\s*!|[!)]\s*!"  # the factorial of a thousand, or of a factorial
    r"|\\(?:int|lim|prod|sum)(?![A-Za-z])"  # worked out term by term, or numerically
)


class _Listener:
    """Who is asked in this process."""

    ask: Callable[[], object] | None = None


def configure(on_slow: Callable[[], object]) -> None:
    """Set what is called before an answer that looks long is computed; it returns when that may begin, or raises."""
    _Listener.ask = on_slow


def looks_long(text: str) -> bool:
    """Whether computing a LaTeX expression may take a good part of a second, or for ever."""
    return len(text) > LONG_CHARS or _LONG.search(text) is not None


def ask_before(text: str) -> None:
    """Ask, if the text looks long and there is somebody to ask."""
    if _Listener.ask is not None and looks_long(text):
        _Listener.ask()
