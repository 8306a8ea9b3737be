"""Publish and print the results of a task or workflow that `pyflyte run` calls on this machine."""

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

from tasks.config import Extendable
from tasks.storage.outputs import at_work, size_line
from tasks.tables.schemas import StageSummary

PUBLISHER = "tasks.reporting.parts:publish"
"""Name of the function that publishes a `PartRun`.

A name and not an import: reporting stands above this package, and no stage's result depends on it.
"""

INTERRUPTED = "interrupted: finished stages and sampled responses are cached; the same command goes on from them"
"""The line that is printed when Ctrl-C ends a run."""

PUBLISHED_BY_ITSELF = "report"
"""Name of the output by which a workflow is known whose last stage publishes all results."""


@dataclass(frozen=True)
class PartRun:
    """A part of the pipeline that ran by itself on this machine, a single stage or several.

    Attributes:
        name: of the task, without its module.
        title: the name of the data file, where the part takes one.
        run: the name of this run (`tasks.flyte.stages.run_id`).
        began: the start of this process.
        given: paths of the files and folders that the part was given, by the name of the input.
        files: paths of the files and folders that it made, by the name of the output.
        summaries: of its stages, in pipeline order.
        values: all other outputs, by name.
        specs: the files that it was given, such as the recipe, by the name of the input.
    """

    name: str
    title: str
    run: str
    began: datetime
    given: Mapping[str, Path]
    files: Mapping[str, Path]
    summaries: list[StageSummary]
    values: Mapping[str, Any]
    specs: Mapping[str, Extendable]


class LocalRun:
    """A task or workflow as `pyflyte run` calls it: the result of a call is the text to print."""

    def __init__(self, entity: Any) -> None:
        self.name = entity.name
        self.python_interface = entity.python_interface
        self._entity = entity

    def __call__(self, **inputs: Any) -> str:
        """Run the entity, publish what it made, and return the lines that name its results, and the size of all."""
        with at_work():
            lines = self._run(inputs)
        with contextlib.suppress(OSError):
            lines = "\n".join(filter(None, (lines, size_line())))
        return lines

    def _run(self, inputs: dict[str, Any]) -> str:
        from tasks.flyte.stages import run_id

        name = self.name.rpartition(".")[-1]
        # Flytekit's handler ends the process by `exit`, so that nothing is told what is left of a run.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            made = self._entity(**inputs)
        except KeyboardInterrupt:
            print(INTERRUPTED, file=sys.stderr, flush=True)
            raise
        results = made._asdict() if hasattr(made, "_asdict") else {} if made is None else {name: made}
        if PUBLISHED_BY_ITSELF in results:
            return f"results     {', '.join(results)}"
        part = PartRun(
            name=name,
            title=str(getattr(inputs.get("data"), "name", name)),
            run=run_id(),
            began=current_context().execution_date,
            given=_paths(inputs),
            files=_paths(results, downloaded=True),
            summaries=[item for value in results.values() for item in _items(value) if isinstance(item, StageSummary)],
            values={key: value for key, value in results.items() if not _is_summary_or_file(value)},
            specs={key: value for key, value in inputs.items() if isinstance(value, Extendable)},
        )
        text: str = pkgutil.resolve_name(PUBLISHER)(part)
        return text


def _is_summary_or_file(value: Any) -> bool:
    values = _items(value)
    return bool(values) and all(isinstance(item, StageSummary | FlyteFile | FlyteDirectory) for item in values)


def _items(value: Any) -> list[Any]:
    """Return the items of an output that is a list, and any other output as the only one."""
    return value if isinstance(value, list) else [value]


def _paths(named: Mapping[str, Any], *, downloaded: bool = False) -> dict[str, Path]:
    """Return the paths on this machine of the files and folders among inputs or outputs; those of a list have numbers.

    Args:
        named: the inputs or outputs by name.
        downloaded: True: those on blob storage are downloaded; False: they are left out.
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


def published_results(run_command: Callable[..., Any]) -> Callable[..., Any]:
    """Have `pyflyte run` publish and name the results of a run on this machine: a patch of flytekit's `run_command`."""

    @wraps(run_command)
    def command(ctx: Any, entity: Any) -> Any:
        return run_command(ctx, entity if ctx.obj.is_remote else LocalRun(entity))

    return command
