"""Compares policies on the same prompts: metrics on every benchmark, and paired differences.

A prompt that has no scored rollout under one policy is excluded for all policies, and counted, so that all metrics of
a benchmark are computed over the same prompts. The statistics are defined in `tasks.evaluation.intervals`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from tasks.evaluation.intervals import (
    FLIP_SEED,
    Estimate,
    length_interval,
    rate_gain,
    rate_interval,
    sign_flip_p_value,
)
from tasks.evaluation.multiple_testing import holm, maintained
from tasks.evaluation.pass_at_k import block_count
from tasks.evaluation.per_prompt import (
    INSTRUCTIONS,
    MAJORITY_OF,
    PASSES_OF,
    PROMPT_LOOSE,
    REWARD,
    Asked,
    judged_rollouts,
    per_prompt,
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
from tasks.tables.parquet import table_from_rows
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
        p_value: two-sided p-value of the difference.
        n: number of prompts.
        adjusted_p_value: the p-value after Holm's correction for the number of benchmarks, or None for a domain of the
            held-out prompts, which is a part of a benchmark.
        maintained: True if the interval is above the negative margin of the benchmark, or None if it has no margin.
    """

    baseline_rate: float
    rate: float
    gain: float
    gain_low: float
    gain_high: float
    p_value: float
    n: int
    adjusted_p_value: float | None = None
    maintained: bool | None = None


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
    seed: int = FLIP_SEED,
) -> Evaluation:
    """Compare policies on the prompts that all of them answered.

    Args:
        rollouts: `EVALUATION_ROLLOUTS` by policy.
        prompts: the prompts of every benchmark, by benchmark name, for their domains (`PROMPTS` or a table that extends
            it). For `heldout`, metrics are also computed by domain.
        baseline: the policy that all others are compared with. In addition, `after` is compared with `before`.
        benchmarks: margins and the k of majority@k, for the benchmarks that have any.
        controls: the data for length-controlled win rates, by benchmark name, for the benchmarks that have any.
        seed: seed of the sign flips for the p-values.

    Raises:
        MistakeError: a rollout of an unknown prompt, a sample that occurs twice, or a benchmark without a prompt that
            was scored under all policies.
    """
    pairs = _pairs(list(rollouts), baseline)
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
        frames = _frames(rollouts, name, asked, votes.get(name, ()))
        common = next(iter(frames.values())).index
        unpaired += len(asked.domains) - len(common)
        for benchmark, chosen in _parts(name, [asked.domains[prompt] for prompt in common]):
            part = {policy: frame[chosen] for policy, frame in frames.items()}
            rows += _rows(benchmark, part, pairs, control)
            for policy, other in pairs:
                comparisons[policy, other][benchmark] = _comparison(part[policy], part[other], seed)
        for value, chosen in _values(name, by.get(name, ()), [asked.columns[prompt] for prompt in common]):
            part = {policy: frame[chosen] for policy, frame in frames.items()}
            rows += (row for row in _rows(value, part, pairs, None) if row["metric"] in OF_VALUES)
    margins = {benchmark.name: benchmark.margin for benchmark in benchmarks}
    return Evaluation(
        comparisons={pair: _corrected(found, prompts, margins) for pair, found in comparisons.items()},
        table=table_from_rows(rows, EVALUATION, "evaluation"),
        unjudged={policy: table.column("score").null_count for policy, table in rollouts.items()},
        unpaired=unpaired,
    )


def _pairs(policies: Sequence[str], baseline: str) -> list[tuple[str, str]]:
    """Return the pairs of (policy, baseline) to compare."""
    trained = [(AFTER, BEFORE)] if {AFTER, BEFORE} <= {*policies} else []
    return list(dict.fromkeys([*trained, *((policy, baseline) for policy in policies if policy != baseline)]))


def _frames(
    rollouts: Mapping[str, pa.Table], benchmark: str, asked: Asked, votes: Sequence[int]
) -> dict[str, pd.DataFrame]:
    """Return a row for each prompt of the benchmark that was scored under all policies, in the same order."""
    judged = {}
    for policy, table in rollouts.items():
        part = table.filter(pc.equal(table.column("benchmark"), benchmark))
        judged[policy] = judged_rollouts(part, asked, f"{benchmark}: rollouts of {policy}")
    common = sorted(set.intersection(*(set(frame["prompt_id"]) for frame in judged.values())))
    if not common:
        raise MistakeError(
            f"{benchmark}: no prompt has a scored rollout under all policies ({', '.join(rollouts)}): there is nothing "
            "to compare"
        )
    return {policy: per_prompt(frame, common, asked, votes) for policy, frame in judged.items()}


def _parts(benchmark: str, domains: Sequence[str]) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the names of a benchmark's rows in tables, with a mask of the prompts of each."""
    if benchmark != HELDOUT:
        yield benchmark, np.full(len(domains), True)
        return
    yield EVERYTHING, np.full(len(domains), True)
    for domain in dict.fromkeys((*DOMAINS, *sorted(set(domains)))):
        if domain in domains:
            yield domain, np.array(domains) == domain


def _values(
    benchmark: str, columns: Sequence[str], rows: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the names of a benchmark's rows by the values of kept columns, with a mask of the prompts of each.

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
        is_rate: True for a rate in [0, 1], False for a length or a reward.
        block: number of samples of a prompt that one observation needs: k of pass@k and majority@k.
        weight: the column of the prompts' weights in the mean. If empty, all prompts have the same weight.
    """

    name: str
    column: str
    prompts: np.ndarray
    is_rate: bool = True
    block: int = 1
    weight: str = ""

    def of(self, frame: pd.DataFrame) -> Estimate:
        """Return the metric of a policy."""
        values = self._values(frame)
        if not self.is_rate:
            return length_interval(values)
        return rate_interval(values, block_count(frame["judged"].to_numpy()[self.prompts], self.block))

    def difference(self, frame: pd.DataFrame, other: pd.DataFrame) -> Estimate:
        """Return the metric of a policy minus the metric of another."""
        values = self._values(frame) - self._values(other)
        return rate_gain(values) if self.is_rate else length_interval(values)

    def _values(self, frame: pd.DataFrame) -> np.ndarray:
        """Return the prompts' values, scaled so that their plain mean is the weighted mean."""
        values = frame[self.column].to_numpy()[self.prompts]
        if not self.weight:
            return values
        weights = frame[self.weight].to_numpy()[self.prompts]
        return values * weights / weights.mean()


def _metrics(frames: Sequence[pd.DataFrame], control: LengthControl | None) -> Iterator[_Metric | LengthControlledRate]:
    """Yield the metrics that all policies have, from their per-prompt tables of the same prompts."""
    everyone = np.full(len(frames[0]), True)
    fewest = np.min([frame["judged"].to_numpy() for frame in frames], axis=0)
    yield _Metric("pass_rate", "passed", everyone)
    yield _Metric("mean_score", "score", everyone)
    for _, given in _common(frames, DIFFERENCE):
        yield _Metric(WIN_RATE, "score", given)
        if control is not None:
            yield LengthControlledRate(given, control)
    for k in range(2, int(fewest.max()) + 1):
        yield _Metric(f"{PASSES_OF}{k}", f"{PASSES_OF}{k}", fewest >= k, block=k)
    for name, given in _common(frames, MAJORITY_OF):
        yield _Metric(name, name, given, block=int(name.removeprefix(MAJORITY_OF)))
    for name, given in _common(frames, PROMPT_LOOSE):
        yield _Metric(name, name, given)
        for way in ("strict", "loose"):
            yield _Metric(f"instruction_{way}", f"{REWARD}{way}", given, is_rate=False, weight=INSTRUCTIONS)
    for name, given in _common(frames, "no_answer"):
        yield _Metric(name, name, given)
    for name, given in _common(frames, "truncated"):
        yield _Metric(name, name, given)
    yield _Metric("mean_tokens", "num_tokens", everyone, is_rate=False)
    for name, given in _common(frames, REWARD):
        yield _Metric(name, name, given, is_rate=False)


def _common(frames: Sequence[pd.DataFrame], beginning: str) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the columns with this prefix that all policies have, and a mask of the prompts with a value in all."""
    for name in frames[0].columns:
        if name.startswith(beginning) and all(name in frame for frame in frames):
            given = np.logical_and.reduce([frame[name].notna().to_numpy() for frame in frames])
            if given.any():
                yield name, given


def _rows(
    benchmark: str,
    frames: Mapping[str, pd.DataFrame],
    pairs: Sequence[tuple[str, str]],
    control: LengthControl | None,
) -> Iterator[dict[str, Any]]:
    """Yield the rows of `EVALUATION` of one benchmark, by metric: policies, then differences."""
    for metric in _metrics(list(frames.values()), control):
        about = {"benchmark": benchmark, "metric": metric.name}
        for policy, frame in frames.items():
            yield {**about, "policy": policy, "baseline": None, **asdict(metric.of(frame))}
        for policy, other in pairs:
            difference = metric.difference(frames[policy], frames[other])
            yield {**about, "policy": policy, "baseline": other, **asdict(difference)}


def _comparison(frame: pd.DataFrame, other: pd.DataFrame, seed: int) -> Comparison:
    differences = (frame["passed"] - other["passed"]).to_numpy()
    gain = rate_gain(differences)
    rates = (float(other["passed"].mean()), float(frame["passed"].mean()))
    return Comparison(*rates, gain.value, gain.low, gain.high, sign_flip_p_value(differences, seed), gain.n)


def _corrected(
    comparisons: Mapping[str, Comparison], benchmarks: Collection[str], margins: Mapping[str, float | None]
) -> dict[str, Comparison]:
    """Return the comparisons of a pair with p-values corrected for the number of benchmarks, and with `maintained`."""
    tested = [name for name in comparisons if name == EVERYTHING or name in benchmarks]
    adjusted = dict(zip(tested, holm([comparisons[name].p_value for name in tested]).tolist(), strict=True))
    corrected = {}
    for name, comparison in comparisons.items():
        margin = margins.get(name)
        corrected[name] = replace(
            comparison,
            adjusted_p_value=adjusted.get(name),
            maintained=None if margin is None else maintained(comparison.gain_low, margin),
        )
    return corrected
