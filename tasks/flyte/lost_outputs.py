"""Reports outputs that are in Flyte's cache but no longer on blob storage, such as after a lifecycle rule deleted them.

A stage notices this when it opens an input, and a dynamic task when it passes an input on. With the patches in
`tasks.flyte.patches`, flytekit's local cache checks for the files before a hit. The cache of a backend does not.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import wraps
from pathlib import PurePosixPath
from typing import Any, Concatenate, ParamSpec, TypeVar

from tasks.failures import MistakeError, list_class_names

P = ParamSpec("P")
T = TypeVar("T")

GONE = frozenset(
    {
        "botocore.errorfactory.NoSuchKey",
        "builtins.FileNotFoundError",
        "flytekit.exceptions.user.FlyteDataNotFoundException",
    }
)
"""Full names of the errors raised if a file or folder does not exist."""

WRITERS = {
    "model": "tasks/generation/task.py prepare_model",
    "prompts.parquet": "tasks/cleaning/task.py merge_sources",
    "graded.parquet": "tasks/difficulty/task.py select_prompts",
    "selected.parquet": "tasks/difficulty/task.py select_prompts",
    "compared.parquet": "tasks/difficulty/task.py compare_variants",
    "mixture.parquet": "tasks/mixing/task.py mix_prompts",
    "heldout.parquet": "tasks/mixing/task.py mix_prompts",
    "policy": "tasks/training/task.py train_policy",
    "ledger.parquet": "tasks/training/task.py train_policy",
    "metrics.jsonl": "tasks/training/task.py train_policy",
    "evaluation.parquet": "tasks/evaluation/task.py compare_policies",
    "evaluation_prompts.parquet": "tasks/evaluation/task.py compare_policies",
    "evaluation_rollouts.parquet": "tasks/evaluation/task.py compare_policies",
    "benchmarks": "tasks/evaluation/task.py compare_policies",
}
"""The module and the task that write an output, by the name of its file or folder, if only one task does."""

COMPOSE_AGAIN = "pyflyte run --remote tasks/inputs/composed_again.py compose_again"
"""The command that makes a backend compose the parts of the pipeline again, from cached stages."""

_POD = re.compile(r"/([a-z][a-z0-9-]*-\d+)/[^/]+/[^/]+$")
"""The end of a Flyte address: the pod's name (execution, node and attempt), a hash, and the output's name."""


class LostOutputError(MistakeError):
    """Raised if an input of a stage is the output of an earlier stage and is no longer on blob storage."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence)
        self._sentence = sentence

    def __str__(self) -> str:
        return self._sentence  # flytekit adds the name of a variable before the arguments of an error


def opens(function: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], T]:
    """Decorate a function whose first argument is a Flyte file or folder to report missing ones.

    The returned function raises `LostOutputError` if the file or folder is remote and does not exist.
    """

    @wraps(function)
    def open_output(value: Any, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(value, *args, **kwargs)
        except Exception as error:
            location = str(value.remote_source or value.path)
            if not list_class_names(error) & GONE or "://" not in location:
                raise
            raise LostOutputError(describe_lost_output(location)) from None

    return open_output


def describe_lost_output(location: str) -> str:
    """Return the message about an output that no longer exists at the address `location`."""
    pod, task = _POD.search(location), WRITERS.get(PurePosixPath(location).name)
    writer = f", which pod {pod[1]} wrote," if pod else ""
    alone = (
        f"; `pyflyte run --remote --overwrite-cache {task}` on its inputs makes it alone, and after "
        f"`{COMPOSE_AGAIN}` the next launch takes it"
    )
    return (
        f"{location}{writer} is no longer on the storage: if it was cached, a lifecycle rule has deleted it, and "
        f"Flyte's cache still names it{alone if task else ''}; a launch with --overwrite-cache makes all stages again"
    )
