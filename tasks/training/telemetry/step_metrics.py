"""Counts events between two optimizer steps, and computes the metrics of a step from the counts."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tasks.generation.interface import Completion, WeightUpdate
from tasks.training.groups.group import JudgedGroup


@dataclass
class StepCounters:
    """Counters since the last optimizer step, and the step's metrics computed from them."""

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
        """Return the metrics of what was sampled.

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
    """Return the metrics of the batch for the step that started at policy `version` and trained on `batch`."""
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
