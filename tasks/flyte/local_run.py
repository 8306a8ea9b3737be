"""Publishes and prints the results of a task or workflow that `pyflyte run` runs on this machine."""

from __future__ import annotations

import contextlib
import pkgutil
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import wraps
from pathlib import Path
from typing import Any

from flytekit import FlyteContextManager, current_context
from flytekit.types.directory import FlyteDirectory
from flytekit.types.file import FlyteFile

from tasks.config.loading import Config
from tasks.flyte.run_names import run_id
from tasks.storage.locations import check_sandbox
from tasks.storage.outputs import describe_size, prevent_pruning
from tasks.tables.schemas import StageSummary

PUBLISHER = "tasks.reporting.parts:publish"
"""Name of the function that publishes a `PartRun`.

It is a name and not an import, because reporting depends on this package, and no stage's result depends on reporting.
"""

INTERRUPTED = "interrupted: finished stages and sampled responses are cached; the same command continues from them"
"""Message printed when a run is ended by Ctrl-C."""

PUBLISHED_BY_ITSELF = "report"
"""Name of the output that identifies a workflow whose last stage publishes all results and prints their location."""


@dataclass(frozen=True)
class PartRun:
    """A part of the pipeline, of one or more stages, that ran alone on this machine.

    Attributes:
        name: name of the task, without its module.
        title: the name of the data file, if the part takes one.
        run: the name of this run (`tasks.flyte.run_names.run_id`).
        began: the start of this process.
        given: paths of the input files and folders, by the name of the input.
        files: paths of the output files and folders, by the name of the output.
        summaries: summaries of its stages, in pipeline order.
        values: all other outputs, by name.
        specs: the specifications among its inputs, such as the recipe, by the name of the input.
    """

    name: str
    title: str
    run: str
    began: datetime
    given: Mapping[str, Path]
    files: Mapping[str, Path]
    summaries: list[StageSummary]
    values: Mapping[str, Any]
    specs: Mapping[str, Config]


class LocalRun:
    """Wraps a task or workflow for `pyflyte run`. Calling it returns the text to print."""

    def __init__(self, entity: Any) -> None:
        self.name = entity.name
        self.python_interface = entity.python_interface
        self._entity = entity

    def __call__(self, **inputs: Any) -> str:
        """Run the entity, publish its outputs, and return the lines that list its results and the total size."""
        check_sandbox()
        with prevent_pruning():
            lines = self._run(inputs)
            with contextlib.suppress(OSError):
                lines = "\n".join(filter(None, (lines, describe_size())))
        return lines

    def _run(self, inputs: dict[str, Any]) -> str:
        name = self.name.rpartition(".")[-1]
        # Flytekit's handler exits the process at once, without a message about the interrupted run.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            made = self._entity(**inputs)
        except KeyboardInterrupt:
            print(INTERRUPTED, file=sys.stderr, flush=True)
            raise
        results = made._asdict() if hasattr(made, "_asdict") else {} if made is None else {name: made}
        if PUBLISHED_BY_ITSELF in results:
            return ""
        part = PartRun(
            name=name,
            title=str(getattr(inputs.get("data"), "name", name)),
            run=run_id(),
            began=current_context().execution_date,
            given=_collect_paths(inputs),
            files=_collect_paths(results, downloaded=True),
            summaries=[
                item for value in results.values() for item in _list_items(value) if isinstance(item, StageSummary)
            ],
            values={key: value for key, value in results.items() if not _is_summary_or_file(value)},
            specs={key: value for key, value in inputs.items() if isinstance(value, Config)},
        )
        text: str = pkgutil.resolve_name(PUBLISHER)(part)
        return text


def _is_summary_or_file(value: Any) -> bool:
    values = _list_items(value)
    return bool(values) and all(isinstance(item, StageSummary | FlyteFile | FlyteDirectory) for item in values)


def _list_items(value: Any) -> list[Any]:
    """Return the items of an output that is a list, and wrap any other output in a list."""
    return value if isinstance(value, list) else [value]


def _collect_paths(named: Mapping[str, Any], *, downloaded: bool = False) -> dict[str, Path]:
    """Return the local paths of the files and folders among inputs or outputs. Items of a list are numbered.

    Args:
        named: the inputs or outputs by name.
        downloaded: whether to download files on blob storage. If false, they are left out.
    """
    is_remote = FlyteContextManager.current_context().file_access.is_remote
    paths = {}
    for name, value in named.items():
        items = {f"{name}-{number}": item for number, item in enumerate(value)} if isinstance(value, list) else {}
        for key, item in (items or {name: value}).items():
            if isinstance(item, FlyteFile | FlyteDirectory):
                address = str(item.remote_source or item.path)
                if downloaded or not is_remote(address):
                    paths[key] = Path(item.download() if is_remote(address) else address)
    return paths


def publish_results(run_command: Callable[..., Any]) -> Callable[..., Any]:
    """Patch flytekit's `run_command` so that `pyflyte run` publishes and lists the results of a local run."""

    @wraps(run_command)
    def command(ctx: Any, entity: Any) -> Any:
        return run_command(ctx, entity if ctx.obj.is_remote else LocalRun(entity))

    return command
