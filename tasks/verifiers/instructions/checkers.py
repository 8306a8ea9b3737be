"""Constraint id -> its check: ours where there is one, else the published one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from tasks.verifiers.instructions import ifbench, ifeval, published, training_forms, training_words

OURS: dict[str, Callable[..., bool]] = training_words.CHECKS | training_forms.CHECKS | ifeval.CHECKS | ifbench.CHECKS


def check(name: str, arguments: Mapping[str, Any]) -> Callable[[str], bool]:
    """The check of a known constraint, from a response without its thinking part to whether it holds."""
    if name in OURS:
        return partial(OURS[name], **arguments)
    return published.check(name, arguments)
