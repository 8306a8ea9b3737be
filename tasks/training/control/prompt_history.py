"""Keeps the results of every prompt in a run, to retire solved prompts and re-roll unsolved ones."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from tasks.recipe.prompts import PromptsConfig


class PromptHistory:
    """Per-prompt results so far. Decides which prompts retire and which are retried before their next epoch.

    It records only what the enabled options need.

    Attributes:
        retired: ids of the prompts that are solved and not sampled any more.
    """

    def __init__(self, config: PromptsConfig, steps: int) -> None:
        """Create an empty history for a run of `steps` steps. `reroll.start_fraction` is a share of them."""
        self._retirement = config.retirement
        self._reroll = config.reroll
        self._steps = steps
        self._step = 0
        self._allowed = 0
        self._solved: dict[str, int] = {}  # number of consecutive groups that count as solved, by prompt
        self._failed: dict[str, list[int]] = {}  # steps at which no response had a reward, by prompt
        self._deferred: deque[str] = deque()  # prompts that wait for a retry, tried longest ago first
        self._retried = self._recovered = 0
        self.retired: set[str] = set()

    def begin(self, step: int) -> None:
        """Begin to sample the batch of `step`, which may contain up to `reroll.max_groups` retried prompts."""
        self._step = step
        reroll = self._reroll
        self._allowed = reroll.max_groups if reroll and step >= reroll.start_fraction * self._steps else 0

    def judged(self, prompt: str, passed: Sequence[bool], rewards: Sequence[float]) -> str:
        """Record the scores of one group of `prompt`: which responses pass, and their rewards before shaping.

        Returns the consequence for the prompt as text for the ledger: it retires, or waits for a retry. Returns an
        empty string if nothing changes.
        """
        return self._may_retire(prompt, passed) or self._may_wait(prompt, any(reward > 0 for reward in rewards))

    def take_deferred(self) -> str | None:
        """Remove and return a prompt to retry now, or None if none waits or this batch has its share of retries."""
        if not self._allowed or not self._deferred or self._failed[self._deferred[0]][-1] >= self._step:
            return None
        self._allowed -= 1
        return self._deferred.popleft()

    def record_drawn(self, prompt: str) -> None:
        """Record that the epoch has sampled the prompt, so that it no longer waits for a retry."""
        if prompt in self._failed and prompt in self._deferred:
            self._deferred.remove(prompt)

    def take_figures(self) -> dict[str, float]:
        """Return the metrics of the enabled options, and reset the counts of groups to 0.

        `retired_prompts` and `deferred_prompts` are the numbers of prompts that are retired and that wait for a retry.
        `retried_groups` counts the scored groups of retries since the last call. `recovered_groups` counts how many of
        them have a response with a reward.
        """
        figures: dict[str, float] = {}
        if self._retirement:
            figures["retired_prompts"] = len(self.retired)
        if self._reroll:
            figures["deferred_prompts"] = len(self._deferred)
            figures["retried_groups"] = self._retried
            figures["recovered_groups"] = self._recovered
        self._retried = self._recovered = 0
        return figures

    def state(self) -> dict[str, Any]:
        """Return the history as JSON values, for a checkpoint."""
        return {
            "solved": self._solved,
            "retired": sorted(self.retired),
            "failed": self._failed,
            "deferred": list(self._deferred),
            "retried": self._retried,
            "recovered": self._recovered,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue with the history that `state` returned."""
        self._solved = dict(state["solved"])
        self.retired = set(state["retired"])
        self._failed = {prompt: list(steps) for prompt, steps in state["failed"].items()}
        self._deferred = deque(state["deferred"])
        self._retried, self._recovered = state["retried"], state["recovered"]

    def _may_retire(self, prompt: str, passed: Sequence[bool]) -> str:
        options = self._retirement
        if not options:
            return ""
        if sum(passed) < options.pass_rate * len(passed):
            self._solved.pop(prompt, None)
            return ""
        self._solved[prompt] = self._solved.get(prompt, 0) + 1
        if self._solved[prompt] < options.consecutive_groups:
            return ""
        del self._solved[prompt]
        self._forget_failures(prompt)
        self.retired.add(prompt)
        return "the prompt is solved, and is retired"

    def _may_wait(self, prompt: str, some_rewarded: bool) -> str:
        options = self._reroll
        if not options:
            return ""
        tries = self._failed.get(prompt, [])
        self._retried += bool(tries)
        if some_rewarded:
            self._recovered += bool(tries)
            self._forget_failures(prompt)
            return ""
        self._failed[prompt] = [*tries, self._step]
        if len(tries) + 1 >= options.max_tries or prompt in self._deferred:
            return f"no response had a reward at steps {self._failed[prompt]}"
        self._deferred.append(prompt)
        return f"no response had a reward at steps {self._failed[prompt]}; the prompt waits for another try"

    def _forget_failures(self, prompt: str) -> None:
        self.record_drawn(prompt)
        self._failed.pop(prompt, None)
