"""Launches a registered launch plan with files of the user."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from tasks.config.loading import parse
from tasks.flyte import executions
from tasks.flyte.labels import make_labels
from tasks.inputs.experiments import MODELS
from tasks.inputs.files import DataFile, EvaluationFile, Recipe
from tasks.inputs.sending import with_sent_files
from tasks.inputs.user_modules import MODULES, compute_digests


def launch_plan(
    remote: Any,
    name: str,
    files: Mapping[str, str],
    *,
    version: str | None,
    execution: str | None,
    overwrite_cache: bool,
    say: Callable[[str], None],
) -> str:
    """Launch a registered launch plan, and return the address of the execution in the console.

    Args:
        remote: a client of the backend, a `FlyteRemote`.
        name: name of the launch plan.
        files: names or paths of the files to replace the plan's, by input. Without a data or evaluation file, those
            that the recipe names are used.
        version: version of the launch plan, or None for the one registered last.
        execution: name of the execution, or None for a random one.
        overwrite_cache: whether every stage runs again, even if its result is cached.
        say: called with a line for each uploaded file.

    Raises:
        SpecError: a file cannot be read or is invalid.
        ExecutionError: no such launch plan is registered.
    """
    inputs: dict[str, Any] = {key: parse(MODELS[key], text) for key, text in files.items()}
    recipe = inputs.get("training")
    if isinstance(recipe, Recipe):
        inputs = {
            "data": recipe.load_companion(DataFile),
            "evaluation": recipe.load_companion(EvaluationFile),
            **inputs,
        }
    digests = compute_digests(inputs.values())
    plan = executions.fetch_plan(remote, name, version)  # before any file is uploaded
    return executions.launch(
        remote,
        plan,
        with_sent_files(remote, inputs, say=say),
        labels=make_labels(dict(files), recipe if isinstance(recipe, Recipe) else None),
        execution=execution,
        overwrite_cache=overwrite_cache,
        environment={MODULES: json.dumps(digests)} if digests else {},
    )
