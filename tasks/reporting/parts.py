"""Publishes the results of one part of the pipeline that ran alone on this machine, as `report` does for a whole run.

The folder of a part starts as a copy of the folder of the run that its inputs come from, without the results that the
part makes again and without anything derived from them. After `data` it contains the model and the data tables, after
`train` also the policy. The next part therefore finds all its inputs in `outputs/latest`, with a consistent lineage.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import yaml
from rich.console import Console
from rich.text import Text

from tasks.inputs.files import DataFile, EvaluationFile, Recipe
from tasks.inputs.minimal_options import written_options
from tasks.reporting.earlier_rows import write_with_earlier
from tasks.reporting.formats import count, duration, to_utc
from tasks.reporting.index import write_index
from tasks.reporting.nearest_recipe import make_origin_json
from tasks.reporting.publication import publish_run
from tasks.reporting.sections import add_policy_names
from tasks.reporting.terminal import (
    make_stages_json,
    make_summary_json,
    print_gain,
    print_losses,
    print_responses,
    print_stages,
    print_warnings,
)
from tasks.storage.linked_copies import copy_folder
from tasks.storage.locations import outputs_folder
from tasks.tables.losses import WARN_IF_LOST
from tasks.tables.parquet import read_table
from tasks.tables.schemas import EVALUATION

if TYPE_CHECKING:
    from tasks.flyte.local_run import PartRun

ORDER = (
    ("model",),
    ("prompts",),
    ("rollouts",),
    ("graded", "selected", "compared"),
    ("mixture", "heldout", "set_aside"),
    ("policy", "ledger", "metrics", "tensorboard"),
    ("evaluation_prompts", "evaluation_rollouts", "evaluation", "set_aside_evaluation", "view"),
)
"""Names of a run's results, in the order the pipeline makes them. Results in the same group are made together."""

POSITIONS = {name: number for number, names in enumerate(ORDER) for name in names}
"""The position of each result's group in `ORDER`."""

SUMMARY = "summary.json"
"""Name of the file with a run's results. Its presence marks a folder as a run."""


def publish(part: PartRun) -> str:
    """Publish the outputs of a part, print its stages and its gain, and return the lines that list its results.

    If the part made no files, as a check does, no folder is created.
    """
    values = [f"{name:<11} {value}" for name, value in part.values.items()]
    summaries = add_policy_names(part.summaries, _list_evaluated(part))
    began = min(map(to_utc, (part.began, *(one.started_at for one in summaries if one.run == part.run))))
    options = {name: written_options(spec) for name, spec in part.specs.items()}
    recipe = part.specs.get("training")
    figures = {
        "title": part.title,
        "part": part.name,
        **(make_origin_json(recipe.model, options["training"]) if isinstance(recipe, Recipe) else {}),
        "options": options,
        "seconds": (datetime.now(UTC) - began).total_seconds(),
        **make_stages_json(summaries, part.run),
    }
    if "evaluation" in part.files:
        table = read_table(part.files["evaluation"], EVALUATION)
        figures |= make_summary_json(table, summaries, run=part.run, seconds=figures["seconds"], report="")
        del figures["report"]
    console = Console(highlight=False, soft_wrap=True)
    if summaries:
        print_stages(console, figures, summaries)
        data = part.specs.get("data")
        print_losses(console, summaries, data.warn_if_lost if isinstance(data, DataFile) else WARN_IF_LOST)
    if "gain" in figures:
        print_warnings(console, figures)
        print_gain(console, figures)
    if not part.files:
        return "\n".join(values)
    outputs = outputs_folder()
    with publish_run(outputs, began, f"{part.name}-{os.getpid()}") as (folder, final):
        taken_over = collect_carried(part.given, part.files)
        for name, path in taken_over.items():
            _copy(path, folder / name)
        figures = find_responses(taken_over) | figures
        names = [_copy(path, folder / _make_name(name, path)) for name, path in part.files.items()]
        if "set_aside" in part.files:
            of_runs = [path for path in part.given.values() if _is_of_a_run(path)]
            write_with_earlier(part.files["set_aside"], of_runs, folder / "set_aside.parquet")
        for name, written in options.items():
            if written:
                text = yaml.safe_dump(written, sort_keys=False, allow_unicode=True, width=100)
                (folder / f"{name}.yaml").write_text(text)
        (folder / SUMMARY).write_text(json.dumps(figures, indent=2) + "\n")
    write_index(outputs)
    console.print(Text(f"{'wall time':12}{duration(figures['seconds'])}"))
    print_responses(console, summaries)
    console.print(Text(f"{'results':12}{final}"), soft_wrap=True)
    return "\n".join([*(_format_line(final / name) for name in names), *values])


def _list_evaluated(part: PartRun) -> list[str]:
    """Return the policies that the part evaluated, which may be none."""
    evaluation, training = part.specs.get("evaluation"), part.specs.get("training")
    if not isinstance(evaluation, EvaluationFile) or not isinstance(training, Recipe):
        return []
    return evaluation.evaluated(training.model)


def collect_carried(given: Mapping[str, Path], made: Mapping[str, Path]) -> dict[str, Path]:
    """Return the results to copy into the folder of a part, by the name of the file or folder there.

    These are the inputs of the part that are results in `ORDER`, and for each run that an input comes from, the run's
    results up to the position of that input. Results that come after anything the part has made are excluded.

    Args:
        given: paths of the part's inputs by name.
        made: paths of the part's outputs by name.
    """
    first_made = min((POSITIONS[name] for name in made if name in POSITIONS), default=len(ORDER))
    direct: dict[str, Path] = {}
    of_runs: list[tuple[int, Path]] = []
    for name, path in given.items():
        result = path.stem if _is_of_a_run(path) else name
        if result in POSITIONS:
            direct[_make_name(result, path)] = path
            if _is_of_a_run(path):
                of_runs.append((POSITIONS[result], path.resolve().parent))
    entries = {entry.name: entry for position, folder in sorted(of_runs) for entry in _list_results(folder, position)}
    return {
        name: path
        for name, path in (entries | direct).items()
        if Path(name).stem not in made and POSITIONS[Path(name).stem] <= first_made
    }


def find_responses(taken_over: Mapping[str, Path]) -> dict[str, str]:
    """Return the address of training's responses from the summary of the run whose ledger is taken over, if any."""
    ledger = taken_over.get("ledger.parquet")
    if ledger is None or not _is_of_a_run(ledger):
        return {}
    summary = json.loads((ledger.resolve().parent / SUMMARY).read_text())
    return {"responses": summary["responses"]} if "responses" in summary else {}


def _make_name(result: str, path: Path) -> str:
    """Return the name of a result in a run's folder, with the extension if it is a file."""
    return result if path.is_dir() else f"{result}{path.suffix}"


def _is_of_a_run(path: Path) -> bool:
    return (path.resolve().parent / SUMMARY).is_file()


def _list_results(run: Path, last: int) -> Iterator[Path]:
    """Yield the results in a run's folder whose position in `ORDER` is at most `last`."""
    for entry in sorted(run.iterdir()):
        if POSITIONS.get(entry.stem, len(ORDER)) <= last:
            yield entry


def _copy(path: Path, target: Path) -> str:
    """Copy a file or folder, and return the name of the copy."""
    if path.is_dir():
        copy_folder(path, target)
    else:
        shutil.copy(path, target)
    return target.name


def _format_line(path: Path) -> str:
    """Return a line that names a result, with the number of rows if it is a table."""
    rows = f"  {count(pq.read_metadata(path).num_rows)} rows" if path.suffix == ".parquet" else ""
    return f"{path.stem:<11} {path}{rows}"
