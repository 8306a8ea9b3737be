"""The driver of a run on the Ray cluster of its host: `python -m tests.training.driven_on_hosts ORDER`, a JSON file.

A step takes `STEP_SECONDS` at least, so that what happens to hosts for minutes happens during the run, on any machine;
until the run folder has a file `hurry`. With an address on S3, the run is kept there.
"""

import json
import sys
import time
from dataclasses import replace
from pathlib import Path

from tasks.recipe.run import TrainingConfig
from tasks.training.records.run_storage import open_run_storage
from tasks.training.run import RunInputs, train

STEP_SECONDS = 1.0


def main(order: dict) -> None:
    """Train as the order says: `recipe`, and paths `model`, `prompts` and `folder`; perhaps `address` and `storage`."""
    import ray
    import s3fs

    folder = Path(order["folder"])
    began = time.monotonic()

    def slowly(_metrics):
        nonlocal began
        if not (folder / "hurry").exists():
            time.sleep(max(0.0, began + STEP_SECONDS - time.monotonic()))
        began = time.monotonic()

    ray.init(address="auto", log_to_driver=False)
    recipe = TrainingConfig.model_validate(order["recipe"])
    inputs = RunInputs(recipe, Path(order["model"]), Path(order["prompts"]), folder, on_step=slowly)
    address, every = order.get("address"), recipe.checkpoint_every
    with open_run_storage(folder, address, lambda _: s3fs.S3FileSystem(**order["storage"]), every) as held:
        result = train(replace(inputs, lease=held.lease, on_saved=held.on_saved, uploads=held.uploads))
    (folder / "resumed_from").write_text(str(result.resumed_from))


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
