"""What a prompt's earlier groups say: that it is solved, and retires, or that it is worth another try later."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from tasks.training.prompt_options import PromptsConfig


class PromptHistory:
    """The memory of a run about its prompts, as far as `config` asks for one.

    Args:
        steps: of the run, for `reroll.start_fraction`.

    Attributes:
        retired: prompts that are solved, by id.
    """

    def __init__(self, config: PromptsConfig, steps: int) -> None:
        self._retirement = config.retirement
        self._reroll = config.reroll
        self._steps = steps
        self._step = 0
        self._allowed = 0
        self._solved: dict[str, int] = {}  # visits in a row
        self._failed: dict[str, list[int]] = {}  # the steps at which no response passed
        self._deferred: deque[str] = deque()  # by the time of the last try
        self._retried = self._recovered = 0
        self.retired: set[str] = set()

    def begin(self, step: int) -> None:
        """The batch of `step` is sampled from now on."""
        self._step = step
        reroll = self._reroll
        self._allowed = reroll.max_groups if reroll and step >= reroll.start_fraction * self._steps else 0

    def judged(self, prompt: str, passed: Sequence[bool]) -> str:
        """A group of `prompt` has its judgements; returns what becomes of the prompt, empty where nothing special."""
        return self._may_retire(prompt, passed) or self._may_wait(prompt, any(passed))

    def take_deferred(self) -> str | None:
        """A prompt to try again now, if one waits and this batch may have one more."""
        if not self._allowed or not self._deferred or self._failed[self._deferred[0]][-1] >= self._step:
            return None
        self._allowed -= 1
        return self._deferred.popleft()

    def drawn(self, prompt: str) -> None:
        """Its epoch has drawn the prompt: it need not wait for another try."""
        if prompt in self._failed and prompt in self._deferred:
            self._deferred.remove(prompt)

    def take_figures(self) -> dict[str, float]:
        """Of the options that are on.

        `retired_prompts`, and `deferred_prompts`, which wait for another try; since the last call `retried_groups`,
        which were one, and `recovered_groups`, those of them with a response that passes.
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
        """What a restart needs."""
        return {
            "solved": self._solved,
            "retired": sorted(self.retired),
            "failed": self._failed,
            "deferred": list(self._deferred),
            "retried": self._retried,
            "recovered": self._recovered,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue where `state` was taken."""
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
        if self._solved[prompt] < options.visits:
            return ""
        del self._solved[prompt]
        self._forget_failures(prompt)
        self.retired.add(prompt)
        return "the prompt is solved, and retires"

    def _may_wait(self, prompt: str, some_passed: bool) -> str:
        options = self._reroll
        if not options:
            return ""
        tries = self._failed.get(prompt, [])
        self._retried += bool(tries)
        if some_passed:
            self._recovered += bool(tries)
            self._forget_failures(prompt)
            return ""
        self._failed[prompt] = [*tries, self._step]
        if len(tries) + 1 >= options.max_tries or prompt in self._deferred:
            return f"no response passed at steps {self._failed[prompt]}"
        self._deferred.append(prompt)
        return f"no response passed at steps {self._failed[prompt]}; the prompt waits for another try"

    def _forget_failures(self, prompt: str) -> None:
        self.drawn(prompt)
        self._failed.pop(prompt, None)
