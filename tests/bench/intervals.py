"""Coverage and width of intervals of rates and gains: `python -m tests.bench.intervals cells|blocks|power [FOLDER]`.

`cells` prints a line for each cell of `tests.statistics.populations.cells`, `blocks` for pass@k and majority@k, and
`power` for what `plan` promises. The last line has the extremes, as JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import product

from tasks.statistics.assumptions import CORRELATION, RATE, SHARED
from tasks.statistics.intervals import plan_gain
from tests.statistics.populations import (
    CORRELATIONS,
    GAINS,
    PROMPTS,
    RATES,
    SAMPLES,
    Cell,
    Found,
    cells,
    examine,
    majority_of,
    majority_truly,
    passes_at,
    passes_truly,
)

DRAWS = 4_000
"""Sets of prompts of a cell; a coverage of 0.94 has a standard error of 0.004."""
LEAST = 0.0199
"""Rates of which coverage is promised are at least this far from 0 and 1; that of pass@k can be nearer."""
HEAD = f"{'cell':52}{'rate':>8}{'gain':>8}{'width of rate':>15}{'of gain':>9}{'detected':>10}{'disagree':>10}"


def _examined(of_cell: Iterator[tuple[str, Cell, Found]]) -> dict[str, float]:
    """Print the cells, and return the extremes of them all."""
    print(HEAD)
    listed = []
    for name, cell, found in of_cell:
        label = f"{name}{cell.prompts} x {cell.samples}, {cell.rate:g}, {cell.correlation:g}, {100 * cell.gain:+.0f}"
        label += f", {cell.redrawn:.0%} redrawn" if cell.redrawn else ""
        print(
            f"{label:52}{found.rate:8.3f}{found.gain:8.3f}{found.rate_width:15.2f}{found.gain_width:9.2f}"
            f"{found.detected:10.3f}{found.disagree:10.3f}",
            flush=True,
        )
        listed.append((cell, found))
    wide = [found for cell, found in listed if cell.rate == 0.5 and cell.samples >= 4]
    return {
        "cells": len(listed),
        "rate": min(found.rate for _, found in listed if LEAST <= found.truth <= 1 - LEAST),
        "gain": min(found.gain for _, found in listed),
        "rate_width": max(found.rate_width for found in wide),
        "gain_width": max(found.gain_width for found in wide),
        "disagree": max(found.disagree for _, found in listed),
        "false": max(found.detected for cell, found in listed if not cell.gain),
    }


def of_samples() -> dict[str, float]:
    """Return the extremes of pass rates, with prompts of the same ranks and with half of them redrawn."""
    return _examined(
        ("", cell, examine(cell, DRAWS)) for whole in cells() for cell in (whole, replace(whole, redrawn=0.5))
    )


def of_blocks() -> dict[str, float]:
    """Return the extremes of pass@k and majority@k with one block of all samples, and with several."""

    def examined() -> Iterator[tuple[str, Cell, Found]]:
        for samples, k in ((16, 4), (32, 32)):
            kinds = {
                f"pass@{k}: ": (passes_at(k, samples), partial(passes_truly, k)),
                f"majority@{k}: ": (majority_of(k, samples), partial(majority_truly, k)),
            }
            for prompts, rate, correlation, gain in product(PROMPTS, RATES, CORRELATIONS, GAINS):
                cell = Cell(prompts, samples, rate, correlation, gain)
                for name, (metric, truly) in kinds.items():
                    yield name, cell, examine(cell, DRAWS // 2, block=k, sample=metric, truly=truly)

    return _examined(examined())


def of_power() -> dict[str, float]:
    """Return the lowest and highest share of draws that detect the gain which `plan` promises for 80% of them."""
    print(HEAD)
    shares = []
    for prompts, samples in product(PROMPTS, SAMPLES):
        gain = plan_gain(prompts, samples, RATE, CORRELATION, SHARED)
        # Half of the gain below the rate, half above it; a redrawn prompt has uncorrelated chances.
        cell = Cell(prompts, samples, RATE - gain / 2, CORRELATION, gain, redrawn=1 - SHARED)
        found = examine(cell, DRAWS)
        print(f"{prompts} x {samples}: a gain of {100 * gain:.1f} points is detected in {found.detected:.1%}")
        shares.append(found.detected)
    return {"lowest": min(shares), "highest": max(shares)}


if __name__ == "__main__":
    print(json.dumps({"cells": of_samples, "blocks": of_blocks, "power": of_power}[sys.argv[1]]()))
