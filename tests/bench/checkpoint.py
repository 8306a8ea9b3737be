"""What a checkpoint takes of a learner step: written while the next step runs, and written before it."""

from __future__ import annotations

import itertools
import json
import shutil
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.bench import inputs
from tests.bench.learner import batches

WARM_UP = 1
ROUNDS = 3
POLL_SECONDS = 0.05


def share(folder: Path) -> dict[str, float]:
    """Shares of a step of the quickstart's learner, and the size of the checkpoint.

    Each batch is trained on three times: alone, while a checkpoint is written, and after one has been written.
    """
    from tasks.inputs.files import load_quickstart
    from tasks.training.learner.packing import pack
    from tasks.training.learner.rank import LearnerRank

    config = load_quickstart()[1].run
    rank = LearnerRank(config, str(inputs.model(folder)))
    rank.setup(0, 0, 1, rank.address())
    learner = rank.trainer
    saved = folder / "checkpoint"

    def written() -> None:
        while not learner.is_written():
            time.sleep(POLL_SECONDS)

    seconds: dict[str, list[float]] = {"alone": [], "held": [], "background": [], "before": []}
    for sequences in itertools.islice(batches(folder, config), WARM_UP + ROUNDS):
        trained = sum(sequence.num_trained for sequence in sequences)
        rows = pack(sequences, config.learner.micro_batch_tokens, share_prompts=True)[0]

        def step(rows=rows, trained=trained) -> None:
            learner.step(rows, trained, 1e-5)

        seconds["alone"].append(_seconds(step))
        shutil.rmtree(saved, ignore_errors=True)
        seconds["held"].append(_seconds(lambda: learner.save(str(saved))))
        seconds["background"].append(seconds["held"][-1] + _seconds(step))
        written()
        shutil.rmtree(saved)
        seconds["before"].append(_seconds(lambda: learner.save(str(saved)), written, step))
    size = sum(path.stat().st_size for path in saved.rglob("*") if path.is_file())
    shutil.rmtree(saved)
    median = {name: statistics.median(values[WARM_UP:]) for name, values in seconds.items()}
    alone = median["alone"]
    return {
        "mib": size / 2**20,
        "step_seconds": alone,
        "held": median["held"] / alone,
        "background": median["background"] / alone - 1,
        "before": median["before"] / alone - 1,
    }


def _seconds(*calls: Callable[[], object]) -> float:
    started = time.perf_counter()
    for call in calls:
        call()
    return time.perf_counter() - started


if __name__ == "__main__":
    print(json.dumps({"share": share}[sys.argv[1]](Path(sys.argv[2]))))
