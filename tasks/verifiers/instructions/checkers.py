"""Selects the check of each constraint: our own implementation if there is one, else the published one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from tasks.verifiers.instructions import ifbench, ifeval, published, training_forms, training_words

OURS: dict[str, Callable[..., bool]] = training_words.CHECKS | training_forms.CHECKS | ifeval.CHECKS | ifbench.CHECKS
"""Our own checks by constraint id: functions of the response and the constraint's arguments."""


def check(name: str, arguments: Mapping[str, Any]) -> Callable[[str], bool]:
    """Return the check of a known constraint, a function that returns True if a response satisfies it.

    The response must be passed without its thinking part.
    """
    if name in OURS:
        return partial(OURS[name], **arguments)
    return published.check(name, arguments)
