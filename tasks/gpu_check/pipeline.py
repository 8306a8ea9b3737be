"""Checks the whole pipeline on one GPU, from the first row to the report (part E), by `rlvr run`."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tasks.gpu_check.results import Findings
from tasks.gpu_check.small_run import prepare_run
from tasks.storage.locations import OUTPUTS, RUNS, SANDBOX
from tasks.tables.json_lines import read_json_lines

if TYPE_CHECKING:
    from tasks.gpu_check.part import PartTask

STEPS = 8
MEANS = {
    "trained_tokens_per_second": "trained tokens/s",
    "generated_tokens_per_second": "generated tokens/s",
    "learner_mfu": "MFU of the learner",
    "learner_idle": "learner idle",
    "actors_idle": "engine idle",
}
"""Metrics whose mean over all steps but the first is recorded, and their names."""
LARGEST = {
    "update_pause_seconds": "longest pause of the engine for an update, s",
    "mismatch": "largest mean difference of engine and learner, nats",
}
"""Metrics whose maximum is recorded, and their names."""


def make_checks(task: PartTask) -> dict[str, Callable[[Findings], None]]:
    """Return the check of part E, by name."""
    return {"pipeline": lambda findings: check_pipeline(findings, task)}


def check_pipeline(findings: Findings, task: PartTask) -> None:
    """Run the pipeline on a random model; copy its report and metrics to the folder of what stays."""
    home, files = prepare_run(task, "pipeline", STEPS)
    places = {OUTPUTS: home / "outputs", RUNS: home / "runs", SANDBOX: home / "flyte"}
    command = [sys.executable, "-m", "tasks.commands", "run"]
    for option, path in files.items():
        command += [f"--{option}", str(path)]
    environment = os.environ | {name: str(path) for name, path in places.items()}
    done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, check=False)  # noqa: S603
    findings.require(done.returncode == 0, f"rlvr run exited with {done.returncode}; see {task.log}.")
    results = home / "outputs" / "latest"
    if (results / "report.html").exists():
        for name in ("report.html", "metrics.jsonl", "summary.json"):
            shutil.copy(results / name, task.output / f"{task.part}-{name}")
        record_summary(findings, json.loads((results / "summary.json").read_text()))
        record_steps(findings, read_json_lines(results / "metrics.jsonl"), STEPS)
    else:
        findings.require(False, "The pipeline has written no report.")


def record_summary(findings: Findings, summary: dict[str, Any]) -> None:
    """Record the seconds of each stage, and the mean score on held-out prompts before and after."""
    for stage, about in summary["stages"].items():
        findings.figures[f"{stage}, s"] = about["seconds"]
    for when in ("before", "after"):
        findings.figures[f"held-out mean score, {when}"] = summary["mean_score"][when]


def record_steps(findings: Findings, steps: Sequence[dict[str, Any]], number: int) -> None:
    """Record the rewards and the speed of a run, and require that it has this number of steps, with gradients."""
    findings.require(len(steps) == number, f"The run has {len(steps)} steps, not {number}.")
    if not steps:
        return
    findings.figures["reward of the first step"] = steps[0]["batch_reward"]
    findings.figures["reward of the last step"] = steps[-1]["batch_reward"]
    for metric, name in MEANS.items():
        if values := [step[metric] for step in steps[1:] if metric in step]:
            findings.figures[name] = statistics.mean(values)
    for metric, name in LARGEST.items():
        if values := [step[metric] for step in steps if metric in step]:
            findings.figures[name] = max(values)
    findings.require(all(step["grad_norm"] > 0 for step in steps), "A step has no gradient.")
