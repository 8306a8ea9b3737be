"""What happened since the last step, and the metrics that come of it."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from tasks.generation.interface import UpdateTiming
from tasks.training.groups.group import JudgedGroup


@dataclass
class StepCounters:
    """Counts from one step to the next."""

    generated_tokens: int = 0
    generated_samples: int = 0
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
    updates: list[UpdateTiming] = field(default_factory=list)

    def unrecorded(self) -> dict[str, int]:
        """What no step's metrics have counted yet of responses that a checkpoint holds."""
        return {"generated_tokens": self.generated_tokens, "generated_samples": self.generated_samples}

    def restore(self, unrecorded: dict[str, int]) -> None:
        """Count on from what `unrecorded` gave."""
        self.generated_tokens = unrecorded["generated_tokens"]
        self.generated_samples = unrecorded["generated_samples"]

    def judged(self, group: JudgedGroup) -> None:
        """All responses of `group` have scores, and those that could not be judged have left it."""
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
        """Rewards of everything that was sampled, dropped groups included, by domain and in all; counts; rates.

        Of the judged groups, `zero_variance` is the share that carried no gradient; in `solved` all responses pass, in
        `unsolved` none does. `unjudged_samples` counts responses that could not be judged, those of failed groups
        included; no other figure of judgements counts them.
        `reward_std` is the standard deviation of a group's scores, mean over judged groups.
        `samples` and `generated_tokens` are those of all responses that were finished.
        `replayed_groups` were trained on before, and took the place of groups that teach nothing.
        `sampling_rounds` counts the rounds of prompts that dynamic sampling took, 0 where a surplus was enough.
        Where prompts have several rewards, `rewards/<name>/mean` and `/std` are those of each, before its weight.

        Args:
            seconds: wall time that this tally covers.
        """
        every = [score for scores in self.scores.values() for score in scores]
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
            **({"reward": statistics.fmean(every), "reward_std": statistics.fmean(self.spreads)} if every else {}),
            **rewards,
            **_by_name(self.rewards),
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
            **pauses,
        }


def _by_name(rewards: dict[str, list[float]]) -> dict[str, float]:
    figures = {}
    for name, values in sorted(rewards.items()):
        figures[f"rewards/{name}/mean"] = statistics.fmean(values)
        figures[f"rewards/{name}/std"] = statistics.pstdev(values)
    return figures


def batch_metrics(batch: list[JudgedGroup], version: int) -> dict[str, float]:
    """What was trained on by the step that started at policy `version`: rewards, staleness, and lengths in tokens.

    `response_length` is the mean; `_p50` and `_p99` are quantiles, `_correct` and `_wrong` the means of the responses
    that pass and of those that do not, where there are any.
    """
    completions = [completion for group in batch for completion in group.completions]
    passed = [passed for group in batch for passed in group.passed]
    lengths = [len(completion.token_ids) for completion in completions]
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
        "truncated": statistics.fmean(completion.truncated for completion in completions),
        "staleness": statistics.fmean(staleness),
        "staleness_max": max(staleness),
    }


def note(metrics: Mapping[str, float]) -> str:
    """What a progress bar says of a step; nothing where none of its responses could be judged."""
    return f"reward {metrics['reward']:.2f}" if "reward" in metrics else ""
