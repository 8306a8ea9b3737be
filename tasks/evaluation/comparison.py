"""Compares policies on the same prompts: metrics on every benchmark, and paired differences.

A prompt that has no scored rollout under one policy is excluded for all policies, and counted, so that all metrics of
a benchmark are computed over the same prompts. The statistics are defined in `tasks.statistics.intervals`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import reduce
from operator import add
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from tasks.evaluation.per_prompt import (
    INSTRUCTIONS,
    MAJORITY_OF,
    PASSES_OF,
    PROMPT_LOOSE,
    REWARD,
    Asked,
    compute_prompt_means,
    select_judged,
)
from tasks.evaluation.spec import ComparedBenchmark
from tasks.evaluation.win_rates import (
    DIFFERENCE,
    WIN_RATE,
    LengthControl,
    LengthControlledRate,
    check_difficulties,
)
from tasks.failures import MistakeError
from tasks.statistics.intervals import (
    Estimate,
    estimate_mean,
    estimate_mean_gain,
    estimate_rate,
    estimate_rate_gain,
    estimate_run_gain,
    has_only_rates,
)
from tasks.statistics.multiple_testing import holm, maintained
from tasks.statistics.pass_at_k import count_blocks
from tasks.tables.parquet import build_table
from tasks.tables.schemas import AFTER, BEFORE, DOMAINS, EVALUATION, EVERYTHING, HELDOUT

NO_CONTROLS: Mapping[str, LengthControl] = {}
"""Data for length-controlled win rates if no benchmark has any."""

OF_VALUES = ("pass_rate", "mean_score")
"""The metrics by the values of a benchmark's columns."""


@dataclass(frozen=True)
class Comparison:
    """The pass rates of two policies on a benchmark, in [0, 1], and their paired difference with its 95% interval.

    Attributes:
        baseline_rate: pass rate of the baseline.
        rate: pass rate of the policy.
        gain, gain_low, gain_high: the difference, and the bounds of its interval.
        p_value: two-sided p-value of the difference, which is below 0.05 exactly if the interval excludes 0.
        n: number of prompts.
        detectable: smallest gain that these prompts and samples detect with a probability of 80%, or None if one prompt
            has no interval.
        adjusted_p_value: the p-value after Holm's correction for the number of benchmarks, or None for a domain of the
            held-out prompts, which is a part of a benchmark.
        maintained: True if the interval is above the negative margin of the benchmark, or None if it has no margin.
        between_low, between_high: bounds of the gain's interval between training runs (`estimate_run_gain`), or None
            without several runs of both policies.
    """

    baseline_rate: float
    rate: float
    gain: float
    gain_low: float
    gain_high: float
    p_value: float
    n: int
    detectable: float | None = None
    adjusted_p_value: float | None = None
    maintained: bool | None = None
    between_low: float | None = None
    between_high: float | None = None


@dataclass(frozen=True)
class Evaluation:
    """The results of an evaluation.

    Attributes:
        comparisons: comparisons by (policy, baseline), then by benchmark.
        table: the `EVALUATION` table. Its metrics are documented in `docs/evaluation.md`.
        unjudged: the number of rollouts without a score, by policy.
        unpaired: the number of prompts excluded because some policy has no scored rollout of them.
    """

    comparisons: dict[tuple[str, str], dict[str, Comparison]]
    table: pa.Table
    unjudged: dict[str, int]
    unpaired: int

    def facts(self) -> dict[str, Any]:
        """Return the results as JSON values, for the facts of the stage's summary."""
        return {
            "comparisons": [
                {"policy": policy, "baseline": baseline, "benchmark": benchmark, **asdict(comparison)}
                for (policy, baseline), by_benchmark in self.comparisons.items()
                for benchmark, comparison in by_benchmark.items()
            ],
            "unjudged": self.unjudged,
            "unpaired": self.unpaired,
        }

    def headline(self) -> str:
        """Return a one-line summary of the first comparison: the trained policy with the initial checkpoint."""
        if not self.comparisons:
            return "only one policy, so there is nothing to compare"
        (policy, baseline), first = next(iter(self.comparisons.items()))
        overall = first[EVERYTHING]
        text = (
            f"held-out pass rate {overall.baseline_rate:.1%} ({baseline}) to {overall.rate:.1%} ({policy}), "
            f"gain {100 * overall.gain:+.1f} points [{100 * overall.gain_low:+.1f}, {100 * overall.gain_high:+.1f}]"
        )
        if not any(self.unjudged.values()):
            return text
        counts = " and ".join(f"{count:,} of {name}" for name, count in self.unjudged.items())
        return f"{text}; responses that could not be scored: {counts}"


def compare(
    rollouts: Mapping[str, pa.Table],
    prompts: Mapping[str, pa.Table],
    baseline: str,
    benchmarks: Sequence[ComparedBenchmark] = (),
    *,
    controls: Mapping[str, LengthControl] = NO_CONTROLS,
    runs: Mapping[str, Sequence[str]] | None = None,
    corrected_together: bool = False,
) -> Evaluation:
    """Compare policies on the prompts that all of them answered.

    Args:
        rollouts: `EVALUATION_ROLLOUTS` by policy.
        prompts: the prompts of every benchmark, by benchmark name, for their domains (`PROMPTS` or a table that extends
            it). For `heldout`, metrics are also computed by domain.
        baseline: the policy that all others are compared with. In addition, `after` is compared with `before`.
        benchmarks: margins and the k of majority@k, for the benchmarks that have any.
        controls: the data for length-controlled win rates, by benchmark name, for the benchmarks that have any.
        runs: the keys of `rollouts` whose results are averaged, by policy. Optional. If None, each is a policy.
        corrected_together: if True, p-values are corrected for the number of benchmarks and pairs of policies,
            otherwise for the number of benchmarks.

    Raises:
        MistakeError: a rollout of an unknown prompt, a sample that occurs twice, or a benchmark without a prompt that
            was scored under all policies.
    """
    runs = {policy: [policy] for policy in rollouts} if runs is None else runs
    pairs = _list_pairs(list(runs), baseline)
    votes = {benchmark.name: benchmark.majority for benchmark in benchmarks}
    by = {benchmark.name: benchmark.by for benchmark in benchmarks}
    comparisons: dict[tuple[str, str], dict[str, Comparison]] = {pair: {} for pair in pairs}
    rows: list[dict[str, Any]] = []
    unpaired = 0
    for name, table in prompts.items():
        asked = Asked(table)
        control = controls.get(name)
        if control is not None:
            check_difficulties(control, asked.rows, name)
        frames = _build_frames(rollouts, name, asked, votes.get(name, ()))
        common = next(iter(frames.values())).index
        unpaired += len(asked.domains) - len(common)
        for benchmark, chosen in _split_by_domain(name, [asked.domains[prompt] for prompt in common]):
            of_runs = {policy: [frames[run][chosen] for run in names] for policy, names in runs.items()}
            part = {policy: _compute_means(tables) for policy, tables in of_runs.items()}
            rows += _make_rows(benchmark, part, pairs, control)
            for policy, other in pairs:
                compared = _compare(part[policy], part[other])
                comparisons[policy, other][benchmark] = _add_run_interval(compared, of_runs[policy], of_runs[other])
        for value, chosen in _split_by_value(name, by.get(name, ()), [asked.columns[prompt] for prompt in common]):
            part = {policy: _compute_means([frames[run][chosen] for run in names]) for policy, names in runs.items()}
            rows += (row for row in _make_rows(value, part, pairs, None) if row["metric"] in OF_VALUES)
    margins = {benchmark.name: benchmark.margin for benchmark in benchmarks}
    families = [list(pairs)] if corrected_together else [[pair] for pair in pairs]
    return Evaluation(
        comparisons=_adjust_p_values(comparisons, families, prompts, margins),
        table=build_table(rows, EVALUATION, "evaluation"),
        unjudged={policy: table.column("score").null_count for policy, table in rollouts.items()},
        unpaired=unpaired,
    )


def _list_pairs(policies: Sequence[str], baseline: str) -> list[tuple[str, str]]:
    """Return the pairs of (policy, baseline) to compare."""
    trained = [(AFTER, BEFORE)] if {AFTER, BEFORE} <= {*policies} else []
    return list(dict.fromkeys([*trained, *((policy, baseline) for policy in policies if policy != baseline)]))


def _build_frames(
    rollouts: Mapping[str, pa.Table], benchmark: str, asked: Asked, votes: Sequence[int]
) -> dict[str, pd.DataFrame]:
    """Return a row for each prompt of the benchmark that was scored under all policies, in the same order."""
    judged = {}
    for policy, table in rollouts.items():
        part = table.filter(pc.equal(table.column("benchmark"), benchmark))
        judged[policy] = select_judged(part, asked, f"{benchmark}: rollouts of {policy}")
    common = sorted(set.intersection(*(set(frame["prompt_id"]) for frame in judged.values())))
    if not common:
        raise MistakeError(
            f"{benchmark}: no prompt has a scored rollout under all policies ({', '.join(rollouts)}): there is nothing "
            "to compare"
        )
    return {policy: compute_prompt_means(frame, common, asked, votes) for policy, frame in judged.items()}


def _split_by_domain(benchmark: str, domains: Sequence[str]) -> Iterator[tuple[str, np.ndarray]]:
    """Yield a benchmark, and for the held-out prompts also each domain, as a name and a mask of its prompts."""
    if benchmark != HELDOUT:
        yield benchmark, np.full(len(domains), True)
        return
    yield EVERYTHING, np.full(len(domains), True)
    for domain in dict.fromkeys((*DOMAINS, *sorted(set(domains)))):
        if domain in domains:
            yield domain, np.array(domains) == domain


def _split_by_value(
    benchmark: str, columns: Sequence[str], rows: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[str, np.ndarray]]:
    """Divide a benchmark by the values of kept columns: yield the name of each part and a mask of its prompts.

    Args:
        benchmark: name of the benchmark.
        columns: the columns.
        rows: the kept columns of each prompt. A prompt without a value is in none of the rows of its column.
    """
    for column in columns:
        values = [None if row.get(column) is None else str(row[column]) for row in rows]
        for value in sorted({value for value in values if value is not None}):
            yield f"{benchmark}, {column} {value}", np.array([other == value for other in values])


@dataclass(frozen=True)
class _Metric:
    """A metric of per-prompt tables.

    Attributes:
        name: its name in `EVALUATION`.
        column: the column of the tables.
        prompts: mask of the prompts that it is computed over.
        is_rate: True for a rate in [0, 1], False for a length or another reward.
        block: number of samples of a prompt that one observation needs: k of pass@k and majority@k.
        weight: the column of the prompts' weights in the mean of a rate. If empty, all prompts have the same weight.
    """

    name: str
    column: str
    prompts: np.ndarray
    is_rate: bool = True
    block: int = 1
    weight: str = ""

    def estimate(self, frame: pd.DataFrame) -> Estimate:
        """Return the metric of a policy."""
        values = self._get_column(frame, self.column)
        if not self.is_rate:
            return estimate_mean(values)
        return estimate_rate(values, count_blocks(self._get_column(frame, "judged"), self.block), self._weights(frame))

    def difference(self, frame: pd.DataFrame, other: pd.DataFrame) -> Estimate:
        """Return the metric of a policy minus the metric of another."""
        values = self._get_column(other, self.column), self._get_column(frame, self.column)
        return estimate_rate_gain(*values, self._weights(frame)) if self.is_rate else estimate_mean_gain(*values)

    def _weights(self, frame: pd.DataFrame) -> np.ndarray | None:
        return self._get_column(frame, self.weight) if self.weight else None

    def _get_column(self, frame: pd.DataFrame, name: str) -> np.ndarray:
        """Return the values of the metric's prompts in a column."""
        return frame[name].to_numpy()[self.prompts]


def _list_metrics(
    frames: Sequence[pd.DataFrame], control: LengthControl | None
) -> Iterator[_Metric | LengthControlledRate]:
    """Yield the metrics that all policies have, from their per-prompt tables of the same prompts."""
    everyone = np.full(len(frames[0]), True)
    yield _Metric("pass_rate", "passed", everyone)
    yield _Metric(
        "mean_score", "score", everyone, is_rate=all(has_only_rates(frame["score"].to_numpy()) for frame in frames)
    )
    for _, given in _find_common(frames, DIFFERENCE):
        yield _Metric(WIN_RATE, "score", given)
        if control is not None:
            yield LengthControlledRate(given, control)
    for prefix in (PASSES_OF, MAJORITY_OF):
        for name, given in _find_common(frames, prefix):
            yield _Metric(name, name, given, block=int(name.removeprefix(prefix)))
    for name, given in _find_common(frames, PROMPT_LOOSE):
        yield _Metric(name, name, given)
        for way in ("strict", "loose"):
            yield _Metric(f"instruction_{way}", f"{REWARD}{way}", given, weight=INSTRUCTIONS)
    for rate in ("no_answer", "truncated"):
        for name, given in _find_common(frames, rate):
            yield _Metric(name, name, given)
    yield _Metric("mean_tokens", "num_tokens", everyone, is_rate=False)
    for name, given in _find_common(frames, REWARD):
        yield _Metric(name, name, given, is_rate=all(has_only_rates(frame[name][given].to_numpy()) for frame in frames))


def _find_common(frames: Sequence[pd.DataFrame], beginning: str) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the columns with this prefix that all policies have, and a mask of the prompts with a value in all."""
    for name in frames[0].columns:
        if name.startswith(beginning) and all(name in frame for frame in frames):
            given = np.logical_and.reduce([frame[name].notna().to_numpy() for frame in frames])
            if given.any():
                yield name, given


def _make_rows(
    benchmark: str,
    frames: Mapping[str, pd.DataFrame],
    pairs: Sequence[tuple[str, str]],
    control: LengthControl | None,
) -> Iterator[dict[str, Any]]:
    """Yield the rows of `EVALUATION` of one benchmark, by metric: policies, then differences."""
    for metric in _list_metrics(list(frames.values()), control):
        about = {"benchmark": benchmark, "metric": metric.name}
        for policy, frame in frames.items():
            yield {**about, "policy": policy, "baseline": None, **asdict(metric.estimate(frame))}
        for policy, other in pairs:
            difference = metric.difference(frames[policy], frames[other])
            yield {**about, "policy": policy, "baseline": other, **asdict(difference)}


def _compare(frame: pd.DataFrame, other: pd.DataFrame) -> Comparison:
    before, after = other["passed"].to_numpy(), frame["passed"].to_numpy()
    gain = estimate_rate_gain(before, after)
    assert gain.p_value is not None  # each gain of rates has one
    rates = float(before.mean()), float(after.mean())
    return Comparison(*rates, gain.value, gain.low, gain.high, gain.p_value, gain.n, gain.detectable)


def _compute_means(frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Return the means of the per-prompt tables of several runs. The number of scored responses is their sum."""
    if len(frames) == 1:
        return frames[0]
    total = reduce(add, (frame.select_dtypes("number") for frame in frames))
    return frames[0].assign(**(total / len(frames)).drop(columns="judged"), judged=total["judged"])


def _add_run_interval(
    comparison: Comparison, frames: Sequence[pd.DataFrame], others: Sequence[pd.DataFrame]
) -> Comparison:
    """Return a comparison with the interval of its gain between runs, from the per-prompt tables of their runs."""
    before, after = (np.array([frame["passed"].mean() for frame in tables]) for tables in (others, frames))
    between = estimate_run_gain(before, after)
    if between is None:
        return comparison
    return replace(comparison, between_low=between.low, between_high=between.high)


def _adjust_p_values(
    comparisons: Mapping[tuple[str, str], Mapping[str, Comparison]],
    families: Sequence[Sequence[tuple[str, str]]],
    benchmarks: Collection[str],
    margins: Mapping[str, float | None],
) -> dict[tuple[str, str], dict[str, Comparison]]:
    """Return the comparisons by pair and benchmark with corrected p-values, and with `maintained`.

    The p-values of the pairs of a family are corrected together. P-values of domains are not corrected.
    """
    adjusted: dict[tuple[tuple[str, str], str], float] = {}
    for family in families:
        tested = [(pair, name) for pair in family for name in comparisons[pair] if name in {EVERYTHING, *benchmarks}]
        p_values = [comparisons[pair][name].p_value for pair, name in tested]
        adjusted |= dict(zip(tested, holm(p_values).tolist(), strict=True))
    return {
        pair: {
            name: replace(
                found,
                adjusted_p_value=adjusted.get((pair, name)),
                maintained=None if margins.get(name) is None else maintained(found.gain_low, margins[name] or 0.0),
            )
            for name, found in by_benchmark.items()
        }
        for pair, by_benchmark in comparisons.items()
    }
