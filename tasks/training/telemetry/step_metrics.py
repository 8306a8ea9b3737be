"""Counts events between two optimizer steps, and computes the metrics of a step from the counts."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tasks.generation.interface import Completion, WeightUpdate
from tasks.training.groups.group import JudgedGroup
from tasks.training.runtime.metric import Metric

SAMPLED = (
    Metric(
        "reward",
        "",
        "mean score over all scored responses, including dropped groups; "
        "absent if none was scored, as in a step that a resumed run takes on the groups of its checkpoint",
    ),
    Metric("reward/<domain>", "", "the same of one domain"),
    Metric("reward_std", "", "standard deviation of a group's scores, mean over scored groups"),
    Metric("rewards/<name>/mean", "", "mean of one of several rewards, before its weight"),
    Metric("rewards/<name>/std", "", "standard deviation of that reward over responses"),
    Metric("groups", "groups", "scored groups"),
    Metric("zero_variance", "share of scored groups", "groups whose scores are all equal, which give no gradient"),
    Metric("solved", "share of scored groups", "groups all of whose responses pass"),
    Metric("unsolved", "share of scored groups", "groups none of whose responses passes"),
    Metric("stale_groups", "groups", "groups dropped because they were older than `max_staleness`"),
    Metric("failed_groups", "groups", "groups dropped because they could not be generated or scored"),
    Metric(
        "unjudged_samples",
        "responses",
        "responses that could not be scored, including failed groups; no other metric of scores counts them",
    ),
    Metric("samples", "responses", "finished responses"),
    Metric("generated_tokens", "tokens", "tokens of the finished responses"),
    Metric("generated_tokens_per_second", "tokens/s", "the same by the wall time of the step"),
    Metric(
        "environment_seconds",
        "s",
        "time in which the environment, not the policy, had an episode, its waits for a process, a judgement or the "
        "sandbox included, mean over finished episodes; absent if no episode was finished",
    ),
    Metric(
        "environment_failures",
        "episodes",
        "finished episodes whose environment failed; absent if no episode was finished",
    ),
    Metric("environment_failures/<environment>", "episodes", "the same of one environment, by its import path"),
    Metric(
        "sampling_rounds",
        "rounds",
        "rounds of prompts that dynamic resampling took; 0 if the surplus of an earlier step was enough",
    ),
    Metric("replayed_groups", "groups", "groups trained on again in place of groups without a gradient (`replay`)"),
    Metric("actors_lost", "actors", "actors whose engine died or hung"),
    Metric("update_pause_seconds", "s", "longest time that an engine generated nothing because of a weight update"),
    Metric("update_seconds", "s", "longest time from the beginning to the end of an engine's weight update"),
)
"""Metrics of the samples since the previous step (`StepCounters.metrics`)."""

TRAINED = (
    Metric("batch_reward", "", "mean score of the batch that was trained on"),
    Metric("response_length", "tokens", "mean length of the batch's responses"),
    Metric("response_length_p50", "tokens", "median of these lengths"),
    Metric("response_length_p99", "tokens", "99th percentile of these lengths"),
    Metric("response_length_correct", "tokens", "mean length of the responses that pass, if there are any"),
    Metric("response_length_wrong", "tokens", "mean length of the responses that do not pass, if there are any"),
    Metric("episode_turns", "turns", "turns of the policy in an episode, mean over the batch's episodes, if any"),
    Metric(
        "episode_pieces",
        "sequences",
        "sequences of tokens of an episode, more than 1 if its conversation was started again, mean over the same",
    ),
    Metric(
        "environment_tokens",
        "share of tokens",
        "tokens that environments inserted into the batch's episodes, with the chat template's tokens around them",
    ),
    Metric("truncated", "share of responses", "responses of the batch that were cut off at `sampling.max_tokens`"),
    Metric(
        "staleness",
        "versions",
        "age of the batch's groups: the step's policy version less the oldest one that "
        "sampled a group, mean over groups",
    ),
    Metric("staleness_max", "versions", "the largest of these ages"),
)
"""Metrics of the batch that the step trained on (`compute_batch_metrics`)."""


@dataclass
class StepCounters:
    """Counters since the last optimizer step, and the step's metrics computed from them (`SAMPLED`)."""

    generated_tokens: int = 0
    generated_samples: int = 0
    environment_seconds: list[float] = field(default_factory=list)
    environment_failures: Counter[str] = field(default_factory=Counter)
    scores: dict[str, list[float]] = field(default_factory=dict)
    spreads: list[float] = field(default_factory=list)
    rewards: dict[str, list[float]] = field(default_factory=dict)
    rounds: int | None = None
    replayed_groups: int | None = None
    judged_groups: int = 0
    zero_variance_groups: int = 0
    solved_groups: int = 0
    unsolved_groups: int = 0
    unjudged_samples: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    actors_lost: int = 0
    updates: list[WeightUpdate] = field(default_factory=list)

    def unrecorded(self) -> dict[str, int]:
        """Return the counts of finished responses that are not in the metrics of a step yet, for a checkpoint."""
        return {"generated_tokens": self.generated_tokens, "generated_samples": self.generated_samples}

    def restore(self, unrecorded: dict[str, int]) -> None:
        """Set the counts to the values that `unrecorded` returned before the checkpoint."""
        self.generated_tokens = unrecorded["generated_tokens"]
        self.generated_samples = unrecorded["generated_samples"]

    def generated(self, completion: Completion, environment_seconds: float) -> None:
        """Count a finished response. For an episode, also count its environment's seconds and failure."""
        self.generated_tokens += completion.num_tokens
        self.generated_samples += 1
        if completion.is_episode:
            self.environment_seconds.append(environment_seconds)
            if completion.end and completion.end.failure:
                self.environment_failures[completion.end.failure.function] += 1

    def judged(self, group: JudgedGroup) -> None:
        """Count `group`, whose responses all have scores. Responses that could not be scored are not in it."""
        self.judged_groups += 1
        self.unjudged_samples += len(group.unjudged)
        self.solved_groups += all(group.passed)
        self.unsolved_groups += not any(group.passed)
        self.spreads.append(statistics.pstdev(group.scores))
        self.scores.setdefault(group.prompt.domain, []).extend(group.scores)
        for part in (part for sample in group.samples for part in sample.rewards):
            if part.value is not None:
                self.rewards.setdefault(part.name, []).append(part.value)

    def metrics(self, seconds: float) -> dict[str, float]:
        """Return the metrics of `SAMPLED`.

        Args:
            seconds: wall time since the counters were reset.
        """
        all_scores = [score for scores in self.scores.values() for score in scores]
        rewards = {f"reward/{domain}": statistics.fmean(scores) for domain, scores in sorted(self.scores.items())}
        pauses = (
            {
                "update_pause_seconds": max(timing.pause_seconds for timing in self.updates),
                "update_seconds": max(timing.total_seconds for timing in self.updates),
            }
            if self.updates
            else {}
        )
        return {
            **(
                {"reward": statistics.fmean(all_scores), "reward_std": statistics.fmean(self.spreads)}
                if all_scores
                else {}
            ),
            **rewards,
            **_compute_reward_metrics(self.rewards),
            **({"sampling_rounds": self.rounds} if self.rounds is not None else {}),
            **({"replayed_groups": self.replayed_groups} if self.replayed_groups is not None else {}),
            "groups": self.judged_groups,
            "zero_variance": self.zero_variance_groups / max(self.judged_groups, 1),
            "solved": self.solved_groups / max(self.judged_groups, 1),
            "unsolved": self.unsolved_groups / max(self.judged_groups, 1),
            "stale_groups": self.dropped["stale"],
            "failed_groups": self.dropped["failed"],
            "unjudged_samples": self.unjudged_samples,
            "actors_lost": self.actors_lost,
            "samples": self.generated_samples,
            "generated_tokens": self.generated_tokens,
            "generated_tokens_per_second": self.generated_tokens / seconds,
            **self._environments(),
            **pauses,
        }

    def _environments(self) -> dict[str, float]:
        if not self.environment_seconds:
            return {}
        return {
            "environment_seconds": statistics.fmean(self.environment_seconds),
            "environment_failures": self.environment_failures.total(),
            **{f"environment_failures/{path}": count for path, count in sorted(self.environment_failures.items())},
        }


def _compute_reward_metrics(rewards: dict[str, list[float]]) -> dict[str, float]:
    figures = {}
    for name, values in sorted(rewards.items()):
        figures[f"rewards/{name}/mean"] = statistics.fmean(values)
        figures[f"rewards/{name}/std"] = statistics.pstdev(values)
    return figures


def compute_batch_metrics(batch: list[JudgedGroup], version: int) -> dict[str, float]:
    """Return the metrics of `TRAINED` for the step that started at policy `version` and trained on `batch`."""
    completions = [completion for group in batch for completion in group.completions]
    passed = [passed for group in batch for passed in group.passed]
    lengths = [completion.num_tokens for completion in completions]
    by_correctness: dict[str, list[int]] = {"correct": [], "wrong": []}
    for length, right in zip(lengths, passed, strict=True):
        by_correctness["correct" if right else "wrong"].append(length)
    quantiles = statistics.quantiles(lengths, n=100, method="inclusive")
    staleness = [version - group.first_version for group in batch]
    return {
        "batch_reward": statistics.fmean(score for group in batch for score in group.scores),
        "response_length": statistics.fmean(lengths),
        "response_length_p50": quantiles[49],
        "response_length_p99": quantiles[98],
        **{f"response_length_{name}": statistics.fmean(part) for name, part in by_correctness.items() if part},
        **_compute_episode_metrics(completions),
        "truncated": statistics.fmean(completion.truncated for completion in completions),
        "staleness": statistics.fmean(staleness),
        "staleness_max": max(staleness),
    }


def _compute_episode_metrics(completions: Sequence[Completion]) -> dict[str, float]:
    episodes = [completion for completion in completions if completion.is_episode]
    if not episodes:
        return {}
    tokens = sum(len(episode.token_ids) for episode in episodes)
    sampled = sum(episode.num_tokens for episode in episodes)
    return {
        "episode_turns": statistics.fmean(len(episode.turns) for episode in episodes),
        "episode_pieces": statistics.fmean(len(episode.pieces) for episode in episodes),
        "environment_tokens": (tokens - sampled) / max(tokens, 1),
    }


def format_note(metrics: Mapping[str, float]) -> str:
    """Return the text next to a progress bar: the step's reward, or an empty string if no response could be scored."""
    return f"reward {metrics['reward']:.2f}" if "reward" in metrics else ""
