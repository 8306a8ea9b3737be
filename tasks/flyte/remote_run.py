"""Checks and labels the launches of `pyflyte run --remote` on a backend."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import rich_click as click
from flytekit import FlyteContextManager
from flytekit.constants import CopyFileDetection

from tasks.config.loading import RecipeFile
from tasks.flyte.archive import collect_sent_files
from tasks.flyte.executions import check_project
from tasks.flyte.labels import GIVEN, make_labels

CHECK_SENT = "tasks.inputs.user_modules:check_sent"
"""Name of the function that checks that a launch's archive has the user's modules.

It is not imported, because its package depends on this one."""
SEND_FILES = "tasks.inputs.sending:with_sent_files"
"""Name of the function that uploads the files named in the inputs of a launch."""


def check_launches(run_command: Callable[..., Any]) -> Callable[..., Any]:
    """Patch flytekit's `run_command` to check a launch before anything is uploaded, and to upload the files it names.

    Addresses among its inputs are read with the storage options of `--config`.
    """

    @wraps(run_command)
    def command(ctx: Any, entity: Any) -> Any:
        run, params = run_command(ctx, entity), ctx.obj
        if not params.is_remote:
            return run
        remote = params.remote_instance()
        check_project(remote)
        FlyteContextManager.push_context(remote.context)
        ctx.call_on_close(FlyteContextManager.pop_context)

        @wraps(run)
        def check_and_run(*args: Any, **inputs: Any) -> Any:
            sent = collect_sent_files(Path(params.computed_params.project_root))
            whole = params.copy_all or params.copy is CopyFileDetection.ALL
            if params.copy is not CopyFileDetection.NO_COPY:
                pkgutil.resolve_name(CHECK_SENT)(sent, inputs.values(), whole=whole)
            in_place = whole and sent.folder.resolve() == Path.cwd()
            carried = {path.resolve() for path in sent.files} if in_place else ()
            return run(*args, **pkgutil.resolve_name(SEND_FILES)(remote, inputs, carried, click.echo))

        return check_and_run

    return command


def add_labels(run_remote: Callable[..., Any]) -> Callable[..., Any]:
    """Patch flytekit's `run_remote` to label executions by their files, unless `--labels` sets the labels."""

    @wraps(run_remote)
    def run(
        remote: Any, entity: Any, project: str, domain: str, inputs: Any, run_level_params: Any, **kwargs: Any
    ) -> Any:
        recipe = next((value for value in inputs.values() if isinstance(value, RecipeFile)), None)
        context = click.get_current_context(silent=True)
        given = context.meta.get(GIVEN, {}) if context else {}
        run_level_params.labels = make_labels(given, recipe) | (run_level_params.labels or {})
        return run_remote(remote, entity, project, domain, inputs, run_level_params, **kwargs)

    return run
