"""Downloads the results of an execution into `outputs`, in the layout of a local run."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tasks.flyte import executions
from tasks.flyte.training_responses import RESPONSES, fetch_responses
from tasks.inputs.experiments import MODELS
from tasks.inputs.minimal_options import written_options
from tasks.reporting.index import write_index
from tasks.reporting.publication import publish_run
from tasks.storage.locations import outputs_folder


def fetch_outputs(
    remote: Any, execution: str, outputs: tuple[str, ...], steps: tuple[int, int] | None = None
) -> Iterator[tuple[str, Path]]:
    """Download outputs of an execution, and yield the name and the path of each.

    Outputs that an earlier call downloaded into the folder are kept and not downloaded again.

    Args:
        remote: a client of the backend, a `FlyteRemote`.
        execution: name of the execution.
        outputs: names of the outputs, or none for all. `responses`, the files of training's responses, are only
            downloaded if they are named.
        steps: the first and the last step of the files of `responses`, or None for all.
    """
    runs = outputs_folder()
    ended = executions.find(remote, execution)
    named = tuple(name for name in outputs if name != RESPONSES)
    wanted = executions.choose_outputs(ended, named) if named or not outputs else []
    with publish_run(runs, ended.began, execution) as (folder, final):
        if final.exists():
            shutil.copytree(final, folder, dirs_exist_ok=True, copy_function=os.link)
        for output in wanted:
            target = folder / output.file_name
            if not target.exists():
                executions.download(remote, output, target)
            yield output.name, final / output.file_name
        for path in fetch_responses(remote, ended, folder / RESPONSES, steps) if RESPONSES in outputs else ():
            yield RESPONSES, final / RESPONSES / path.name
        for name, file in executions.load_input_files(ended, MODELS):
            options = written_options(file, absolute=False)
            (folder / f"{name}.yaml").unlink(missing_ok=True)  # a link to the file of the earlier call
            (folder / f"{name}.yaml").write_text(yaml.safe_dump(options, sort_keys=False, allow_unicode=True))
    write_index(runs)
