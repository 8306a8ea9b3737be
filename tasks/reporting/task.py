"""Defines the Flyte tasks that write the report of a run or experiment and publish it."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml
from flytekit import Deck, Resources, current_context
from flytekit.types.file import FlyteFile

from images import DATA
from tasks.flyte.run_names import run_id
from tasks.flyte.stages import (
    Folder,
    Html,
    JsonLines,
    Parquet,
    content_digest,
    make_scratch_path,
    read_footer,
    read_input,
    read_input_batches,
    read_members,
    to_local,
    uncached_stage,
)
from tasks.inputs.experiments import Experiment
from tasks.inputs.files import DataFile, EvaluationFile, Recipe
from tasks.inputs.minimal_options import written_options
from tasks.storage.linked_copies import copy_folder
from tasks.tables.content_digest import file_digest
from tasks.tables.json_lines import read_json_lines
from tasks.tables.schemas import (
    EVALUATION,
    EVALUATION_ROLLOUTS,
    GRADED,
    LEDGER,
    MIXTURE,
    SET_ASIDE,
    StageSummary,
)
from tasks.tables.truncation import format_truncation_warnings

if TYPE_CHECKING:
    import pyarrow as pa

    from tasks.reporting.page import ReportInputs


class Reported(NamedTuple):
    """The outputs of reporting: the page, and the run's results as machine-readable JSON."""

    page: Html
    summary: FlyteFile


@uncached_stage(container_image=DATA, requests=Resources(cpu="1", mem="4Gi"), enable_deck=True, deck_fields=())
def report(
    data: DataFile,
    training: Recipe,
    written: dict,
    tables: dict[str, Parquet],
    folders: dict[str, Folder],
    metrics: JsonLines,
    summaries: list[StageSummary],
    evaluating: list[StageSummary],
) -> Reported:
    """Write the page with the outputs and the lineage of a run, and its `summary.json`.

    A local run also gets a folder with the page, `tables` as `<name>.parquet`, `folders` (models), the metrics and the
    three files as `<name>.yaml` (see `publish_run`), and prints the summary on the terminal.

    The task is never cached, because the page shows which stages of this run were cached.

    Args:
        data: the sources and the difficulty filter.
        training: the recipe.
        written: the non-default options of the three files, under `data`, `training` and `evaluation`.
        tables: every table of the run, by name. Tables named `set_aside*` contain dropped rows.
        folders: the initial model, the policy, and the responses as static files.
        metrics: training metrics, one line per step.
        summaries: summaries of the stages before the evaluation, in pipeline order.
        evaluating: summaries of the evaluation stages.
    """
    from tasks.reporting import lineage, sections
    from tasks.reporting.formats import to_utc
    from tasks.reporting.index import write_index
    from tasks.reporting.nearest_recipe import make_origin_json
    from tasks.reporting.page import render
    from tasks.reporting.publication import publish_run
    from tasks.reporting.terminal import headline, make_summary_json, print_summary
    from tasks.storage.locations import outputs_folder

    run, context = run_id(), current_context()
    policies = EvaluationFile.model_validate(written["evaluation"]).evaluated(training.model)
    summaries = sections.add_policy_names([*summaries, *evaluating], policies)
    # In a pod, the date of the execution is the start of the pod.
    began = min(map(to_utc, (context.execution_date, *(one.started_at for one in summaries if one.run == run))))
    inputs = _read_inputs(data, training, written, tables, folders, metrics, summaries)
    page = render(inputs)
    path = make_scratch_path("report.html")
    path.write_text(page)
    Deck("report", page)

    on_laptop = _is_local()
    runs = outputs_folder() if on_laptop else make_scratch_path("outputs")
    rates = [item.facts["tokens_per_second"] for item in summaries if item.stage == "training"]
    with publish_run(runs, began, file_digest(str(path))[:8]) as (folder, final):
        summary = make_summary_json(
            inputs.evaluation,
            summaries,
            run=run,
            seconds=(datetime.now(UTC) - began).total_seconds(),
            report=final / "report.html",
            tokens_per_second=rates[0] if rates else None,
            price_per_gpu_hour=training.cluster.price_per_gpu_hour,
        )
        origin = make_origin_json(training.model, written["training"])
        (folder / "summary.json").write_text(
            json.dumps({"title": data.name, **origin, "options": written, **summary}, indent=2) + "\n"
        )
        shutil.copy(path, folder / "report.html")
        if on_laptop:
            _copy_results(folder, written, tables, folders, metrics)
            files = {name: _to_yaml(lineage.drop_folders(options)) for name, options in written.items()}
            functions = {name for source in data.sources for name in source.code_of_the_user}
            functions |= {own.function for own in training.objective.own_functions.values()}
            card = lineage.render_model_card(
                inputs.title, training.model.name, str(headline(summary)), files, functions
            )
            (folder / "policy" / "README.md").write_text(card)
    if on_laptop:
        write_index(runs)
        print_summary(summary, final / "report.html", summaries, warn_if_lost=data.warn_if_lost)
    return Reported(FlyteFile(str(path)), FlyteFile(str(final / "summary.json")))


@uncached_stage(container_image=DATA, requests=Resources(cpu="1", mem="2Gi"), enable_deck=True, deck_fields=())
def report_experiment(
    experiment: Experiment,
    evaluation: Parquet,
    comparison: StageSummary,
    metrics: list[JsonLines],
    summaries: list[FlyteFile],
) -> Html:
    """Write the page of an experiment. A local one also gets a folder in `outputs/experiments`, and prints its lines.

    Args:
        experiment: the experiment.
        evaluation: results of the initial checkpoint and of the trained policies, which are named after their variants.
        comparison: the summary of their comparison.
        metrics: training metrics of each run, one line per step, in the order of the experiment's runs.
        summaries: the runs' results as JSON, in the same order.
    """
    from tasks.reporting.experiment import format_lines, render
    from tasks.reporting.index import EXPERIMENTS, write_index
    from tasks.reporting.publication import publish_run
    from tasks.storage.locations import outputs_folder

    written = {
        name: {part: written_options(getattr(files, part)) for part in type(files).model_fields}
        for name, files in experiment.variants.items()
    }
    names = [name for name, _ in experiment.runs]
    table, compared = read_input(evaluation, EVALUATION), comparison.facts["comparisons"]
    results = [json.loads(Path(to_local(file)).read_text()) for file in summaries]
    reports = [f"../../{report.parent.name}/{report.name}" for report in (Path(one["report"]) for one in results)]
    page = render(
        experiment.name,
        written,
        _collect_by_name(names, [read_json_lines(to_local(file)) for file in metrics]),
        table,
        compared,
        _collect_by_name(names, results),
        _collect_by_name(names, reports) if _is_local() else {},
    )
    path = make_scratch_path("experiment.html")
    path.write_text(page)
    Deck("experiment", page)
    if _is_local():
        folders = outputs_folder() / EXPERIMENTS
        with publish_run(folders, datetime.now(UTC), file_digest(str(path))[:8]) as (folder, final):
            shutil.copy(path, folder / "experiment.html")
            shutil.copy(to_local(evaluation), folder / "experiment.parquet")
            (folder / "variants.yaml").write_text(_to_yaml(written))
        write_index(folders.parent)
        warnings = [f"warning     {message}" for message in format_truncation_warnings(table)]
        print("\n".join(["", *format_lines(compared), *warnings, f"experiment  {final / 'experiment.html'}"]))
    return FlyteFile(str(path))


def _collect_by_name(names: list[str], values: list[Any]) -> dict[str, list[Any]]:
    """Return the values of runs as lists by the names of their variants."""
    grouped: dict[str, list[Any]] = {}
    for name, value in zip(names, values, strict=True):
        grouped.setdefault(name, []).append(value)
    return grouped


def _is_local() -> bool:
    """Return whether this is a local execution, which has a folder of results, and not one on a cluster."""
    execution = current_context().execution_id
    return execution is None or execution.project in ("local", "")


def _read_inputs(
    data: DataFile,
    training: Recipe,
    written: dict[str, Any],
    tables: dict[str, Parquet],
    folders: dict[str, Folder],
    metrics: JsonLines,
    summaries: list[StageSummary],
) -> ReportInputs:
    """Read the arguments of `report` into the inputs of the page."""
    import pyarrow as pa

    from tasks.reporting import lineage
    from tasks.reporting.heldout_rollouts import select_heldout_rollouts
    from tasks.reporting.page import ReportInputs

    def table(name: str, schema: pa.Schema) -> pa.Table:
        return read_input(tables[name], schema)

    run = run_id()
    origins = {name: read_footer(table) for name, table in tables.items()}
    before, after = select_heldout_rollouts(read_input_batches(tables["evaluation_rollouts"], EVALUATION_ROLLOUTS))
    # The same task writes the ledger and the policy.
    origins |= {"model": {}, "policy": origins["ledger"], "view": origins["evaluation"]}
    outputs = [
        lineage.Output(name, content_digest(value), origins[name]) for name, value in {**folders, **tables}.items()
    ]
    return ReportInputs(
        title=f"rlvr-flyte: {data.name}",
        spec_yaml=_to_yaml(written["data"]),
        training_yaml=_to_yaml(written["training"]),
        evaluation_yaml=_to_yaml(written["evaluation"]),
        set_aside=pa.concat_tables([table(name, SET_ASIDE) for name in tables if name.startswith("set_aside")]),
        graded=table("graded", GRADED),
        max_mean_score=data.difficulty.max_mean_score if data.difficulty else None,
        min_mean_score=data.difficulty.min_mean_score if data.difficulty else None,
        mixture=table("mixture", MIXTURE),
        heldout=table("heldout", GRADED),
        metrics=read_json_lines(to_local(metrics)),
        ledger=table("ledger", LEDGER),
        evaluation=table("evaluation", EVALUATION),
        before=before,
        after=after,
        summaries=summaries,
        run=run,
        outputs=lineage.rows(outputs),
        price_per_gpu_hour=training.cluster.price_per_gpu_hour,
        warn_if_lost=data.warn_if_lost,
        files=[*(f"{name}.yaml" for name in written), *(f"{name}.parquet" for name in tables)] if _is_local() else [],
        has_view=bool(read_members(folders["view"], ["index.html"])),
        lineage={
            "model": training.model.name,
            "image": lineage.images(summaries),
            "seeds": f"data {data.seed}, mixture {data.mixture.seed}, training {training.seed}",
            "run": run,
        },
    )


def _copy_results(
    folder: Path, written: dict[str, Any], tables: dict[str, Parquet], folders: dict[str, Folder], metrics: JsonLines
) -> None:
    """Copy the files that a local run has in addition to its page to `folder`."""
    for name, given in written.items():
        (folder / f"{name}.yaml").write_text(_to_yaml(given))
    for name, table in tables.items():
        shutil.copy(to_local(table), folder / f"{name}.parquet")
    for name, source in folders.items():
        copy_folder(to_local(source), folder / name)
    shutil.copy(to_local(metrics), folder / "metrics.jsonl")


def _to_yaml(value: dict[str, Any]) -> str:
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=100)
