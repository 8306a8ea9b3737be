"""Precision and recall of the rules that find talk to the grader, over all rules and for each, and their speed.

The texts are written by hand: honest ones that speak of grades, judges and instructions, and hostile ones. Precision is
stated for as many honest texts as there are hostile ones; among real answers both are rarer.
"""

from __future__ import annotations

import json
import time

from tasks.verifiers.chat.config import RULES
from tasks.verifiers.chat.injection import find_injections
from tests.verifiers.chat.honest_answers import HONEST
from tests.verifiers.chat.hostile_answers import HOSTILE

ALL = "all rules"
LONG = " ".join(HONEST)[:20_000]
ROUNDS = 20


def measure() -> dict[str, float]:
    """`<rule>/precision` and `<rule>/recall`, the counts of texts, and milliseconds for a text of 20,000 characters."""
    honest, hostile = ([set(find_injections(text)) for text in texts] for texts in (HONEST, HOSTILE))
    figures: dict[str, float] = {"honest": len(honest), "hostile": len(hostile)}
    for name in (ALL, *RULES):
        rules = set(RULES) if name == ALL else {name}
        false, true = (sum(bool(found & rules) for found in each) for each in (honest, hostile))
        weighted = false * len(hostile) / len(honest)
        figures[f"{name}/precision"] = true / (true + weighted)
        figures[f"{name}/recall"] = true / len(hostile)
    started = time.perf_counter()
    for _ in range(ROUNDS):
        find_injections(LONG)
    figures["long_ms"] = 1e3 * (time.perf_counter() - started) / ROUNDS
    return figures


if __name__ == "__main__":
    print(json.dumps(measure()))
