"""Compares the policies of several runs, from the tables in their folders, on the prompts that all of them answered."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tasks.evaluation.comparison import Evaluation, compare
from tasks.evaluation.per_prompt import MAJORITY_OF, REWARD
from tasks.evaluation.spec import ComparedBenchmark
from tasks.evaluation.win_rates import LENGTH_CONTROLLED, WIN_RATE, load_length_controls
from tasks.failures import MistakeError
from tasks.storage.run_folders import check_run, make_hint
from tasks.tables.parquet import read_metadata, validate
from tasks.tables.schemas import AFTER, EVALUATION_PROMPTS, EVALUATION_ROLLOUTS

FURTHER = (MAJORITY_OF, WIN_RATE, LENGTH_CONTROLLED, "mean_score", REWARD)
"""Beginnings of the names of the metrics that are compared next to pass rates."""


def read_table(run: Path, name: str) -> pa.Table:
    """Return the table `evaluation_prompts` or `evaluation_rollouts` of a run's folder.

    Raises:
        MistakeError: the folder does not exist or does not contain the table.
    """
    check_run(run)
    path = run / f"{name}.parquet"
    if not path.is_file():
        elsewhere = make_hint(run, path.name)
        raise MistakeError(f"{run} contains no {path.name}: name the folder of a whole run{elsewhere}")
    schema = EVALUATION_PROMPTS if name == "evaluation_prompts" else EVALUATION_ROLLOUTS
    return validate(pq.read_table(path), schema, str(path))


def read_options(run: Path) -> Mapping[str, Any]:
    """Return the options of a run that differ from their defaults, by file. It is empty if the summary has none."""
    try:
        summary = json.loads((run / "summary.json").read_text())
    except (OSError, ValueError):
        return {}
    return summary.get("options", {}) if isinstance(summary, dict) else {}


class SharedOptions(NamedTuple):
    """The comparison options of the benchmarks of several runs, and messages on options that cannot be used."""

    benchmarks: list[ComparedBenchmark]
    messages: list[str]


def read_benchmark_options(runs: Sequence[Path]) -> SharedOptions:
    """Return the margins, the k of majority@k and the win rate data of the runs' benchmarks.

    They are taken from the first run that evaluated a benchmark. A file of win rate data that cannot be read any more
    is left out, with a message.
    """
    benchmarks: dict[str, ComparedBenchmark] = {}
    for run in runs:
        path = run / "evaluation.parquet"
        spec = read_metadata(path).get("spec", {}) if path.is_file() else {}
        for options in spec.get("benchmarks", {}).get("benchmarks", []):
            known = {name: value for name, value in options.items() if name in ComparedBenchmark.model_fields}
            benchmarks.setdefault(options["name"], ComparedBenchmark.model_validate(known))
    messages = []
    for name, benchmark in benchmarks.items():
        try:
            load_length_controls([benchmark])
        except MistakeError as error:
            messages.append(f"{name}: no length-controlled win rate: {error}")
            benchmarks[name] = benchmark.model_copy(update={"length_control": None})
    return SharedOptions(list(benchmarks.values()), messages)


def compare_runs(runs: Sequence[Path], policy: str = AFTER, benchmarks: Sequence[ComparedBenchmark] = ()) -> Evaluation:
    """Compare one policy of every run, for example `after`, with the policy of the first run.

    Benchmarks and prompts that a run does not have are excluded, so that runs with different mixtures are compared on
    the prompts that they share.

    Args:
        runs: folders of runs; in tables a run has the name of its folder.
        policy: the name of the policy in all of them.
        benchmarks: as for `compare_answers`.

    Raises:
        MistakeError: a folder without the tables, two runs with the same name, a run without this policy, or runs that
            share no prompt.
    """
    names = [run.resolve().name for run in runs]
    if len(set(names)) < len(names):
        raise MistakeError(f"runs to compare must have different folders, got {', '.join(names)}")
    answered = {name: _read_policy(run, policy) for name, run in zip(names, runs, strict=True)}
    return compare_answers(answered, read_table(runs[0], "evaluation_prompts"), names[0], benchmarks)


def select_further_metrics(evaluation: Evaluation) -> list[dict[str, Any]]:
    """Return the rows of majority@k, win rates, mean scores and means of rewards, which are shown next to pass rates.

    Pass rates by the values of kept columns, which have no p-values, are among them.

    A row has the keys `benchmark`, `metric`, `policy`, `row` (of `EVALUATION`), and `difference`, which is None for the
    baseline. A metric that has the values of the pass rate for all policies is left out.
    """
    values: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    differences = {}
    tested = {name for by_benchmark in evaluation.comparisons.values() for name in by_benchmark}
    for row in evaluation.table.to_pylist():
        if row["baseline"] is None:
            values.setdefault((row["benchmark"], row["metric"]), {})[row["policy"]] = row
        else:
            differences[row["benchmark"], row["metric"], row["policy"]] = row
    return [
        {
            "benchmark": benchmark,
            "metric": metric,
            "policy": policy,
            "row": row,
            "difference": differences.get((benchmark, metric, policy)),
        }
        for (benchmark, metric), by_policy in values.items()
        if (metric == "pass_rate" and benchmark not in tested)
        or (metric.startswith(FURTHER) and _get_values(by_policy) != _get_values(values[benchmark, "pass_rate"]))
        for policy, row in by_policy.items()
    ]


def _get_values(by_policy: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    return {policy: row["value"] for policy, row in by_policy.items()}


def compare_answers(
    answered: Mapping[str, pa.Table],
    prompts: pa.Table,
    baseline: str,
    benchmarks: Sequence[ComparedBenchmark] = (),
    averaged: Mapping[str, Sequence[str]] | None = None,
) -> Evaluation:
    """Compare policies of several runs on the prompts that all of them answered.

    P-values are corrected for the number of benchmarks and of runs that are compared with the baseline.

    Args:
        answered: the `EVALUATION_ROLLOUTS` of one policy of each run, by run.
        prompts: the `EVALUATION_PROMPTS` of one of the runs.
        baseline: the run that all others are compared with, or the name of the baseline in `averaged`.
        benchmarks: margins and the k of majority@k, for the benchmarks that have any.
        averaged: names of runs whose results are averaged, by the name of their policy. Optional.

    Raises:
        MistakeError: runs that share no prompt.
    """
    shared = reduce(set.__and__, (set(_list_rows(table)) for table in answered.values()))
    asked = prompts.filter(pa.array([pair in shared for pair in _list_rows(prompts)], pa.bool_()))
    if not asked.num_rows:
        raise MistakeError(f"no prompt was answered in all of {', '.join(answered)}: there is nothing to compare")
    common = {
        name: table.filter(pa.array([pair in shared for pair in _list_rows(table)], pa.bool_()))
        for name, table in answered.items()
    }
    by_benchmark = {
        benchmark: asked.filter(pc.equal(asked["benchmark"], benchmark))
        for benchmark in dict.fromkeys(asked["benchmark"].to_pylist())
    }
    controls = load_length_controls(benchmarks)
    return compare(
        common, by_benchmark, baseline, benchmarks, controls=controls, runs=averaged, corrected_together=True
    )


def _read_policy(run: Path, policy: str) -> pa.Table:
    rollouts = read_table(run, "evaluation_rollouts")
    chosen = rollouts.filter(pc.equal(rollouts["policy"], policy))
    if not chosen.num_rows:
        known = ", ".join(sorted(set(rollouts["policy"].to_pylist())))
        raise MistakeError(f"{run}: no policy is called {policy!r}; there are: {known}")
    return chosen


def _list_rows(table: pa.Table) -> list[tuple[str, str]]:
    """Return the benchmark and the prompt of every row."""
    return list(zip(table["benchmark"].to_pylist(), table["prompt_id"].to_pylist(), strict=True))
