"""Seconds until a mistake or fault stands on the terminal, for every case of `tests/mistakes`."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from tests.mistakes import commands, files, training
from tests.mistakes.case import run, wrong
from tests.tiny_model import build
from tests.training.mixtures import mixture

TABLES = {"commands": commands.CASES, "files": files.CASES, "training": training.CASES}
"""The tables by name; faults of machines are left out, whose time is that of what is done before them."""


def main(name: str) -> dict[str, float]:
    """Meet every mistake of a table, and return the seconds of each; one that is not as it should be is left out."""
    seconds = {}
    with tempfile.TemporaryDirectory() as shared:
        model = build(Path(shared) / "model")
        prompts = mixture(Path(shared), [f"Write a sentence about the {word}" for word in ("sea", "river")])
        for case in TABLES[name]:
            with tempfile.TemporaryDirectory() as folder:
                outcome = run(case, Path(folder), model, prompts, seconds=300)
                if not wrong(outcome, case, Path(folder)):
                    seconds[case.name] = outcome.seconds
    return seconds


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
