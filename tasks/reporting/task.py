"""Reporting as Flyte tasks: the page, cached, and its publication, which says how this very run went."""

from __future__ import annotations

import json
import os
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from flytekit import Deck, Resources, current_context, task
from flytekit.types.file import FlyteFile

from images import DATA
from tasks.platform import Folder, Html, JsonLines, Parquet, Stopwatch, content_digest, local, scratch, shown_stage
from tasks.schemas import (
    EVALUATION,
    GRADED,
    LEDGER,
    MIXTURE,
    REJECTED,
    ROLLOUTS,
    StageSummary,
    canonical_json,
    read_metadata,
    read_table,
)

OUTPUTS = "RLVR_OUTPUTS"
"""Environment variable: the folder in which each local run gets one, with its report, tables and policy."""


class Reported(NamedTuple):
    page: Html
    summary: StageSummary


@shown_stage(container_image=DATA, requests=Resources(cpu="1", mem="4Gi"))
def build_report(
    title: str,
    model: str,
    data: dict,
    training: dict,
    max_pass_rate: float,
    rejected: list[Parquet],
    graded: Parquet,
    mixture: Parquet,
    heldout: Parquet,
    ledger: Parquet,
    metrics: JsonLines,
    before: Parquet,
    after: Parquet,
    evaluation: Parquet,
    summaries: list[StageSummary],
) -> Reported:
    """One page that joins the lineage of a run; `data` and `training` are the specifications as they were given."""
    import pyarrow as pa

    from tasks.reporting import sections
    from tasks.reporting.page import ReportInputs, render

    watch = Stopwatch("report")
    lineage = {
        key: value if isinstance(value, str) else canonical_json(value)
        for key, value in read_metadata(local(mixture)).items()
    }
    page = render(
        ReportInputs(
            title=title,
            spec_yaml=_yaml(data),
            training_yaml=_yaml(training),
            rejected=pa.concat_tables([read_table(local(table), REJECTED) for table in rejected]),
            graded=read_table(local(graded), GRADED),
            max_pass_rate=max_pass_rate,
            mixture=read_table(local(mixture), MIXTURE),
            heldout=read_table(local(heldout), GRADED),
            metrics=[json.loads(line) for line in local(metrics).read_text().splitlines()],
            ledger=read_table(local(ledger), LEDGER),
            evaluation=read_table(local(evaluation), EVALUATION),
            before=read_table(local(before), ROLLOUTS),
            after=read_table(local(after), ROLLOUTS),
            summaries=sections.told_apart(summaries),
            lineage={"model": model, **lineage},
        )
    )
    path = scratch("report.html")
    path.write_text(page)
    Deck("report", page)
    return Reported(FlyteFile(str(path)), watch.summary(f"{len(page) / 1000:,.0f} kB", bytes=len(page)))


@task(container_image=DATA, requests=Resources(cpu="1", mem="2Gi"))
def publish(
    page: Html,
    tables: dict[str, Parquet],
    folders: dict[str, Folder],
    metrics: JsonLines,
    summaries: list[StageSummary],
) -> FlyteFile:
    """The run's `summary.json`; a local run also gets a folder to keep and the summary on the terminal.

    The folder holds the page, `tables` as `<name>.parquet`, `folders` (models) and the metrics; see `new_run`.

    Never cached: it tells which stages of this run came from the cache.
    """
    from tasks.reporting import sections
    from tasks.reporting.publication import new_run
    from tasks.reporting.terminal import print_summary, summary_json

    summaries = sections.told_apart(summaries)
    context = current_context()
    started = context.execution_date.replace(tzinfo=context.execution_date.tzinfo or UTC)
    on_laptop = context.execution_id is None or context.execution_id.project in ("local", "")
    outputs = Path(os.environ.get(OUTPUTS, "outputs")).absolute() if on_laptop else scratch("outputs")
    rates = [item.values["tokens_per_second"] for item in summaries if item.stage == "training"]
    with new_run(outputs, started, content_digest(page)) as (folder, final):
        summary = summary_json(
            read_table(local(tables["evaluation"]), EVALUATION),
            summaries,
            run_started_at=started,
            seconds=(datetime.now(UTC) - started).total_seconds(),
            report=final / "report.html",
            tokens_per_second=rates[0] if rates else None,
        )
        (folder / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
        shutil.copy(local(page), folder / "report.html")
        if on_laptop:
            for name, table in tables.items():
                shutil.copy(local(table), folder / f"{name}.parquet")
            for name, source in folders.items():
                shutil.copytree(local(source), folder / name)
            shutil.copy(local(metrics), folder / "metrics.jsonl")
    if on_laptop:
        print_summary(summary, final / "report.html", summaries)
    return FlyteFile(str(final / "summary.json"))


def _yaml(value: dict[str, Any]) -> str:
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=100)
