"""Compares two policies' rollouts on the same prompts: estimates, intervals and a paired test of the gain.

The prompt is the unit of observation. Samples of one prompt are correlated, so every figure is a mean over prompts of
per-prompt means, and its 95% interval treats prompts as clusters (Miller 2024, "Adding Error Bars to Evals",
arXiv:2411.00640). Rollouts without a score were not judged: they are left out and counted. A prompt that lacks a judged
rollout under one policy is left out under both and counted too, so each figure compares the same prompts.

Intervals:

- *Rates* (`pass_rate`, `mean_score`, `pass@k`, `truncated`): the Wilson score interval at the effective sample size
  `n_eff = p (1 - p) / var(p)` with a t quantile on `prompts - 1` degrees of freedom (Dean and Pagano 2015, J. Surv.
  Stat. Methodol. 3(4)), `n_eff` bounded to [prompts, rollouts]. For 0/1 scores both bounds are facts: the variance of
  a per-prompt mean lies between `p (1 - p) / samples` and `p (1 - p)`. At 0 and 1, where the variance is estimated as
  0, the lower bound applies and the interval keeps its width.
- *Gains of rates*: the t interval of per-prompt differences after adding two pseudo-prompts, one unchanged and one
  split evenly between +1 and -1 (Agresti and Min 2005, Stat. Med. 24, for paired proportions). It never collapses when
  all prompts agree, at the price of a slightly wider interval than the plain one. The gain itself is not adjusted.
- *Lengths and rewards* (`mean_tokens`, `rewards/<name>`): the plain t interval over prompts. One prompt has no
  interval: its bounds are NaN.

The p-value of a gain is two-sided, from flipping the signs of per-prompt differences: exact up to 13 prompts, from
9,999 seeded flips beyond.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from scipy import stats

from tasks.failures import MistakeError
from tasks.tables.parquet import table_from_rows
from tasks.tables.schemas import DOMAINS, EVALUATION

CONFIDENCE = 0.95
"""Confidence level of all intervals."""
FLIPS = 9_999
"""Sign flips that are drawn for a p-value where not all are enumerated."""
FLIPPED_AT_ONCE = 1 << 24
"""Differences whose signs are drawn at one time, 16 bytes each."""
FLIP_SEED = 0
"""Seed of the sign flips."""
_REWARD = "rewards/"
"""The beginning of the metrics of rewards by name."""
EVERYTHING = "all"
"""The benchmark of all domains together."""


@dataclass(frozen=True)
class Estimate:
    """A mean over `n` prompts with its 95% confidence interval."""

    value: float
    low: float
    high: float
    n: int


@dataclass(frozen=True)
class Comparison:
    """Pass rates of one benchmark before and after, in [0, 1], and their paired difference with its 95% interval."""

    benchmark: str
    before: float
    after: float
    gain: float
    gain_low: float
    gain_high: float
    p_value: float
    n: int


@dataclass(frozen=True)
class Evaluation:
    """The results of an evaluation.

    Attributes:
        comparisons: by benchmark; `all` first, then the domains that have paired prompts.
        table: the `EVALUATION` table; metrics are `pass_rate` (the share of responses that pass, whatever other rewards
            pay), `mean_score`, `pass@k` (for the k that was sampled, from 2 on), `mean_tokens`, `truncated` and, where
            prompts have several rewards, `rewards/<name>`: the mean of each, before its weight.
        unjudged_before: rollouts of the first policy without a score.
        unjudged_after: rollouts of the second policy without a score.
        unpaired: prompts left out because one policy has no judged rollout of them.
    """

    comparisons: dict[str, Comparison]
    table: pa.Table
    unjudged_before: int
    unjudged_after: int
    unpaired: int

    def facts(self) -> dict[str, Any]:
        """Return the results as JSON values, for the facts of the stage's summary."""
        return {
            "comparisons": {name: asdict(comparison) for name, comparison in self.comparisons.items()},
            "unjudged_before": self.unjudged_before,
            "unjudged_after": self.unjudged_after,
            "unpaired": self.unpaired,
        }


def compare(before: pa.Table, after: pa.Table, prompts: pa.Table, *, seed: int = FLIP_SEED) -> Evaluation:
    """Compare two policies on the same prompts.

    Args:
        before: `ROLLOUTS` of the first policy.
        after: `ROLLOUTS` of the second policy.
        prompts: the evaluated prompts, for their domains (`PROMPTS` or any table that extends it).
        seed: of the sign flips behind the p-values.

    Raises:
        ValueError: a rollout of an unknown prompt, a sample that occurs twice, or no prompt judged under both policies.
    """
    domains = dict(zip(prompts.column("prompt_id").to_pylist(), prompts.column("domain").to_pylist(), strict=True))
    first, second = _judged(before, domains, "before"), _judged(after, domains, "after")
    k = max(_samples(before), _samples(after))
    paired = sorted(set(first["prompt_id"]) & set(second["prompt_id"]))
    if not paired:
        raise MistakeError("no prompt has a judged rollout under both policies: there is nothing to compare")
    per_prompt = (_per_prompt(first, paired, k), _per_prompt(second, paired, k))

    domain_of = np.array([domains[prompt] for prompt in paired])
    comparisons, rows = {}, []
    for benchmark in (EVERYTHING, *dict.fromkeys((*DOMAINS, *sorted(set(domains.values()))))):
        chosen = np.full(len(paired), True) if benchmark == EVERYTHING else domain_of == benchmark
        if not chosen.any():
            continue
        figures = {
            metric: estimates for metric, *estimates in _figures(per_prompt[0][chosen], per_prompt[1][chosen], k)
        }
        for metric, estimates in figures.items():
            for policy, estimate in zip(("before", "after", "gain"), estimates, strict=True):
                rows.append({"benchmark": benchmark, "metric": metric, "policy": policy, **asdict(estimate)})
        old, new, gain = figures["pass_rate"]
        difference = (per_prompt[1]["passed"] - per_prompt[0]["passed"]).to_numpy()[chosen]
        comparisons[benchmark] = Comparison(
            benchmark,
            old.value,
            new.value,
            gain.value,
            gain.low,
            gain.high,
            sign_flip_p_value(difference, seed),
            gain.n,
        )
    return Evaluation(
        comparisons=comparisons,
        table=table_from_rows(rows, EVALUATION, "evaluation"),
        unjudged_before=before.column("score").null_count,
        unjudged_after=after.column("score").null_count,
        unpaired=len(domains) - len(paired),
    )


def rate_interval(means: np.ndarray, rollouts: int) -> Estimate:
    """Return the mean of per-prompt rates with its Wilson interval (see the module's docstring).

    One prompt does not reveal the spread over prompts: its interval is [0, 1].

    Args:
        means: mean score of each prompt, `[prompts]` in [0, 1].
        rollouts: samples of all prompts together.
    """
    n, value = len(means), _mean(means)
    if n == 1:
        return Estimate(value, 0.0, 1.0, n)
    spread = value * (1 - value)
    variance = float(np.var(means, ddof=1)) / n
    # A vanishing variance at 0 or 1 is ignorance, elsewhere it is agreement: few observations there, many here.
    observations = (
        float(np.clip(spread / variance, n, rollouts)) if variance > 0 else float(n if spread == 0 else rollouts)
    )
    t = _t_quantile(n)
    shrink = 1 + t**2 / observations
    centre = (value + t**2 / (2 * observations)) / shrink
    half = t * np.sqrt(spread / observations + t**2 / (4 * observations**2)) / shrink
    return Estimate(value, float(min(value, max(0.0, centre - half))), float(max(value, min(1.0, centre + half))), n)


def rate_gain(differences: np.ndarray) -> Estimate:
    """Return the mean of per-prompt differences of rates, `[prompts]` in [-1, 1], with its Agresti-Min interval."""
    n = len(differences)
    if n == 1:
        return Estimate(_mean(differences), -1.0, 1.0, n)
    centre = float(np.sum(differences)) / (n + 2)
    variance = (float(np.sum(differences**2)) + 1) / (n + 2) - centre**2
    half = _t_quantile(n) * float(np.sqrt(variance / (n + 2)))
    return Estimate(_mean(differences), max(-1.0, centre - half), min(1.0, centre + half), n)


def length_interval(means: np.ndarray) -> Estimate:
    """Return the mean of per-prompt lengths or of their differences, `[prompts]` in tokens, with its t interval."""
    n, value = len(means), _mean(means)
    if n == 1:
        return Estimate(value, float("nan"), float("nan"), n)
    half = _t_quantile(n) * float(np.std(means, ddof=1)) / float(np.sqrt(n))
    return Estimate(value, value - half, value + half, n)


def sign_flip_p_value(differences: np.ndarray, seed: int = FLIP_SEED) -> float:
    """Return the two-sided p-value of the hypothesis that the differences, `[prompts]`, are symmetric about 0."""
    if len(differences) == 1 or not np.any(differences):
        return 1.0

    def total(flipped: np.ndarray, axis: int = -1) -> np.ndarray:
        return np.sum(flipped, axis=axis)

    outcome = stats.permutation_test(
        (differences,),
        total,
        permutation_type="samples",
        n_resamples=FLIPS,
        vectorized=True,
        rng=seed,
        batch=max(1, FLIPPED_AT_ONCE // len(differences)),
    )
    return float(outcome.pvalue)


def _figures(before: pd.DataFrame, after: pd.DataFrame, k: int) -> Iterator[tuple[str, Estimate, Estimate, Estimate]]:
    """Each metric with its estimates before, after and of the gain, from per-prompt rows of the same prompts."""

    def rate(column: str, rows: np.ndarray, metric: str, *, clustered: bool = True) -> tuple:
        old, new = before[rows], after[rows]
        sizes = (int(old["judged"].sum()), int(new["judged"].sum())) if clustered else (len(old), len(new))
        return (
            metric,
            rate_interval(old[column].to_numpy(), sizes[0]),
            rate_interval(new[column].to_numpy(), sizes[1]),
            rate_gain((new[column] - old[column]).to_numpy()),
        )

    everyone = np.full(len(before), True)
    complete = (before["judged"].to_numpy() == k) & (after["judged"].to_numpy() == k)
    yield rate("passed", everyone, "pass_rate")
    yield rate("score", everyone, "mean_score")
    if k > 1 and complete.any():
        yield rate("best", complete, f"pass@{k}", clustered=False)
    yield rate("truncated", everyone, "truncated")
    old, new = before["num_tokens"].to_numpy(), after["num_tokens"].to_numpy()
    yield "mean_tokens", length_interval(old), length_interval(new), length_interval(new - old)
    for name in before.columns.intersection(after.columns):
        if name.startswith(_REWARD) and (both := before[name].notna() & after[name].notna()).any():
            old, new = before.loc[both, name].to_numpy(), after.loc[both, name].to_numpy()
            yield name, length_interval(old), length_interval(new), length_interval(new - old)


def _judged(rollouts: pa.Table, domains: dict[str, str], which: str) -> pd.DataFrame:
    """The rollouts that have a score, after checking that every one is of a known prompt and none occurs twice."""
    columns = ["prompt_id", "sample", "score", "passed", "rewards", "num_tokens", "finish_reason"]
    frame = rollouts.select(columns).to_pandas()
    unknown = sorted(set(frame["prompt_id"]) - set(domains))
    if unknown:
        raise MistakeError(f"rollouts {which}: prompt {unknown[0]!r} is not among the evaluated prompts")
    twice = frame[frame.duplicated(["prompt_id", "sample"])]
    if len(twice):
        prompt, sample = twice.iloc[0][["prompt_id", "sample"]]
        raise MistakeError(f"rollouts {which}: sample {sample} of prompt {prompt!r} occurs twice")
    judged = frame[frame["score"].notna()]
    return judged.astype({"passed": float})


def _samples(rollouts: pa.Table) -> int:
    """The most samples of any one prompt, judged or not."""
    counts = rollouts.column("prompt_id").value_counts().field("counts")
    return max(counts.to_pylist(), default=0)


def _per_prompt(judged: pd.DataFrame, prompts: list[str], k: int) -> pd.DataFrame:
    """One row per prompt of `prompts`, in their order: means, best verdict and number of its judged rollouts.

    The mean of a reward has a column `rewards/<name>`, NaN where it applies to none of the prompt's responses. The best
    of k 0/1 verdicts is pass@k as Chen et al. (2021, arXiv:2107.03374) estimate it when k samples were drawn.
    """
    judged = judged.sort_values(["prompt_id", "sample"])  # float sums, and so the bytes, must not depend on row order
    grouped = judged.assign(truncated=(judged["finish_reason"] == "length").astype(float)).groupby("prompt_id")
    table = grouped[["passed", "score", "truncated", "num_tokens"]].mean()
    table = table.assign(best=grouped["passed"].max(), judged=grouped.size())
    return table.join(_mean_rewards(judged)).loc[prompts]


def _mean_rewards(judged: pd.DataFrame) -> pd.DataFrame:
    """The mean of each reward, before its weight, by prompt: a column `rewards/<name>` each."""
    rows = [
        (prompt, f"{_REWARD}{part['name']}", part["value"])
        for prompt, parts in zip(judged["prompt_id"], judged["rewards"], strict=True)
        for part in (() if parts is None else parts)
        if part["value"] is not None
    ]
    frame = pd.DataFrame(rows, columns=["prompt_id", "name", "value"]).astype({"value": float})
    return frame.pivot_table(index="prompt_id", columns="name", values="value", aggfunc="mean")


def _mean(values: np.ndarray) -> float:
    return float(np.mean(values))


def _t_quantile(n: int) -> float:
    return float(stats.t.ppf((1 + CONFIDENCE) / 2, n - 1))
