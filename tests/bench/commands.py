"""CPU seconds of help and completion of `rlvr`, beside those of importing click."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys

from tests.programs import RLVR

ROUNDS = 10
COMPLETED = {"a recipe": "rlvr run --training qu", "an option": "rlvr plan grpo objective.cl"}


def cpu_seconds(command: tuple[str, ...], **variables: str) -> float:
    """The mean CPU seconds of a process that succeeds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    for _ in range(ROUNDS):
        subprocess.run(command, env=os.environ | variables, stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / ROUNDS


def main() -> dict[str, float]:
    """Return the seconds by what is shown."""
    shown = {
        "click": cpu_seconds((sys.executable, "-c", "import click")),
        "rlvr --help": cpu_seconds((*RLVR, "--help")),
        "rlvr run --help": cpu_seconds((*RLVR, "run", "--help")),
    }
    for name, words in COMPLETED.items():
        asked = {"_RLVR_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
        shown[f"completion of {name}"] = cpu_seconds(RLVR, **asked)
    return shown


if __name__ == "__main__":
    print(json.dumps(main()))
