"""Aggregates the rollouts of a policy to one row of means per prompt, from which all metrics are computed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from tasks.evaluation.win_rates import DIFFERENCE, ROW
from tasks.failures import MistakeError
from tasks.statistics.majority import majority
from tasks.statistics.pass_at_k import estimate_pass_at_k
from tasks.tables.schemas import UNKNOWN_END

REWARD = "rewards/"
"""The prefix of the columns of rewards, followed by the reward's name."""
PASSES_OF = "pass@"
"""The prefix of the columns of pass@k, followed by k."""
MAJORITY_OF = "majority@"
"""The prefix of the columns of majority@k, followed by k."""
PROMPT_LOOSE = "prompt_loose"
"""The column with the share of responses that follow all instructions by the loose criterion."""
INSTRUCTIONS = "instructions"
"""The column with the number of a prompt's instructions."""
CHARACTERS = f"{REWARD}characters"
"""The column with the length of responses that were compared with a reference, in characters."""


class Asked:
    """The prompts of a benchmark by id: their domains, and information from their ground truths."""

    def __init__(self, prompts: pa.Table) -> None:
        """Read a table of `PROMPTS`, or of a schema that extends it."""
        names = ("prompt_id", "domain", "verifier", "ground_truth", "row", "metadata")
        rows = list(zip(*(prompts.column(name).to_pylist() for name in names), strict=True))
        self.domains = {prompt: domain for prompt, domain, *_ in rows}
        self.rows = {prompt: row for prompt, *_, row, _ in rows}
        self.with_answers = {prompt for prompt, _, verifier, *_ in rows if verifier == "math"}
        self.columns = {prompt: json.loads(metadata).get("columns", {}) for prompt, *_, metadata in rows}
        truths = {prompt: json.loads(truth) for prompt, _, verifier, truth, *_ in rows if verifier == "precise_if"}
        self.instructions = {prompt: len(truth["instruction_ids"]) for prompt, truth in truths.items()}
        asked = {prompt: json.loads(truth) for prompt, _, verifier, truth, *_ in rows if verifier == "chat_reference"}
        self.characters = {
            prompt: len(truth["reference"]) for prompt, truth in asked.items() if truth.get("mode") == "pairwise"
        }


def select_judged(rollouts: pa.Table, asked: Asked, which: str) -> pd.DataFrame:
    """Return the rollouts that have a score, after checking that all prompts are known and no sample occurs twice.

    Args:
        rollouts: `EVALUATION_ROLLOUTS` of one policy and one benchmark.
        asked: the prompts of the benchmark.
        which: the name of the rollouts in an error.

    Raises:
        MistakeError: an unknown prompt, or a sample that occurs twice.
    """
    columns = ["prompt_id", "sample", "score", "passed", "rewards", "num_tokens", "finish_reason"]
    frame = rollouts.select([*columns, "answer", "answer_class"]).to_pandas()
    unknown = sorted(set(frame["prompt_id"]) - set(asked.domains))
    if unknown:
        raise MistakeError(f"{which}: prompt {unknown[0]!r} is not among the evaluated prompts")
    twice = frame[frame.duplicated(["prompt_id", "sample"])]
    if len(twice):
        prompt, sample = twice.iloc[0][["prompt_id", "sample"]]
        raise MistakeError(f"{which}: sample {sample} of prompt {prompt!r} occurs twice")
    judged = frame[frame["score"].notna()].astype({"passed": float})
    return judged.sort_values(["prompt_id", "sample"])  # float sums, and so the bytes, must not depend on row order


def compute_prompt_means(
    judged: pd.DataFrame, prompts: list[str], asked: Asked, votes: Sequence[int] = ()
) -> pd.DataFrame:
    """Return one row for each of `prompts`, in order: means over its scored rollouts, and their number `judged`.

    A column is NaN if it does not apply to a prompt: `rewards/<name>` if the reward applies to none of its responses,
    `pass@<k>` and `majority@<k>` if it has fewer than k scored rollouts, `no_answer` (the share of responses without an
    answer) if the verifier extracts no answer, `truncated` if it is not known how responses ended, and `prompt_loose`
    and `instructions` if the verifier is not `precise_if` in mode `both`.

    Args:
        judged: the output of `select_judged`.
        prompts: ids of prompts with a scored rollout.
        asked: the prompts of the benchmark.
        votes: the k of majority@k.
    """
    judged = judged[judged["prompt_id"].isin(prompts)]
    reads_answers = judged["prompt_id"].isin(asked.with_answers)
    grouped = judged.assign(
        truncated=(judged["finish_reason"] == "length").astype(float).where(judged["finish_reason"] != UNKNOWN_END),
        no_answer=judged["answer"].isna().astype(float).where(reads_answers),
    ).groupby("prompt_id")
    means = grouped[["passed", "score", "truncated", "num_tokens", "no_answer"]].mean().assign(judged=grouped.size())
    estimates = estimate_pass_at_k(means["judged"].to_numpy(), grouped["passed"].sum().to_numpy())
    passes = {f"{PASSES_OF}{k}": estimates[:, k - 1] for k in range(2, estimates.shape[1] + 1)}
    majorities = {f"{MAJORITY_OF}{k}": [_compute_majority(samples, k) for _, samples in grouped] for k in votes}
    columns = pd.DataFrame({**passes, **majorities}, index=means.index)
    table = means.join(columns).join(_compute_mean_rewards(judged)).loc[prompts]
    return table.assign(
        **_compute_loose_rates(table, judged, asked.instructions), **_compute_length_differences(table, asked)
    )


def _compute_length_differences(table: pd.DataFrame, asked: Asked) -> dict[str, pd.Series]:
    """Return how much longer each prompt's reference is than its responses, with the prompt's row in the win rate data.

    Returns no columns if no response was compared with a reference.
    """
    if not asked.characters or CHARACTERS not in table.columns:
        return {}
    references = pd.Series(asked.characters, dtype=float).reindex(table.index)
    return {DIFFERENCE: references - table[CHARACTERS], ROW: pd.Series(asked.rows).reindex(table.index)}


def _compute_majority(samples: pd.DataFrame, k: int) -> float:
    labels = [None if np.isnan(label) else int(label) for label in samples["answer_class"].astype(float)]
    return majority(labels, [bool(passed) for passed in samples["passed"]], k)


def _compute_mean_rewards(judged: pd.DataFrame) -> pd.DataFrame:
    """Return the mean of each reward, before its weight, by prompt, as columns `rewards/<name>`."""
    rows = [(prompt, f"{REWARD}{part['name']}", part["value"]) for prompt, part in _list_rewards(judged)]
    frame = pd.DataFrame(rows, columns=["prompt_id", "name", "value"]).astype({"value": float})
    return frame.pivot_table(index="prompt_id", columns="name", values="value", aggfunc="mean")


def _list_rewards(judged: pd.DataFrame) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the rewards that apply, with the prompts of their responses."""
    prompts = judged["prompt_id"].to_numpy(object)  # pandas would convert each text to a scalar on iteration
    for prompt, parts in zip(prompts, judged["rewards"], strict=True):
        for part in () if parts is None else parts:
            if part["value"] is not None:
                yield prompt, part


def _compute_loose_rates(table: pd.DataFrame, judged: pd.DataFrame, counts: Mapping[str, int]) -> dict[str, pd.Series]:
    """Return the rate of responses that follow all instructions loosely, and each prompt's number of instructions.

    Returns no columns if no prompt was scored by both criteria, strict and loose.
    """
    strict, loose = (f"{REWARD}{name}" for name in ("strict", "loose"))
    if not counts or not {strict, loose} <= set(table.columns):
        return {}
    follows_all = [(prompt, part["value"] == 1.0) for prompt, part in _list_rewards(judged) if part["name"] == "loose"]
    by_prompt = pd.DataFrame(follows_all, columns=["prompt_id", "all"]).groupby("prompt_id")["all"].mean()
    number = pd.Series(counts, dtype=float).reindex(table.index)
    return {PROMPT_LOOSE: by_prompt.reindex(table.index), INSTRUCTIONS: number.where(table[strict].notna())}
