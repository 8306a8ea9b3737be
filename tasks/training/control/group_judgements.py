"""Scores groups whose prompts have a reward that compares all responses, while they are generated.

a response is generated ──► its other rewards ───────────────────────┐
the last one is generated ──► the group's rewards, one call ─────────┴──► a score for each response
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from tasks.training.actors.rewards import RewardClient, make_scorer
from tasks.training.groups.group import Group, Sample
from tasks.training.runtime.timeouts import cancel
from tasks.verifiers import Score
from tasks.verifiers.grouped import GroupRewards


@dataclass
class _Pending:
    """The rewards of one group: an event that is set when the last response is generated, and the call."""

    generated: asyncio.Event
    call: asyncio.Task[list[Score]]


class GroupJudgements:
    """Computes the rewards of groups in flight with one call for each group. All samples of the group wait for it."""

    def __init__(self, judge: RewardClient) -> None:
        self._judge = judge
        self._pending: dict[int, _Pending] = {}

    async def score(self, sample: Sample) -> Score:
        """Return the score of a response, once all responses of its group are generated.

        If one of the response's other rewards fails, its score is that error, which is returned earlier. The response
        is still passed to the rewards of the group.
        """
        group, completion = sample.group, sample.completion
        assert completion is not None
        rewards = GroupRewards.from_ground_truth(group.prompt.verifier, group.prompt.ground_truth)
        pending = self._ensure_pending(group, rewards)
        alone = await rewards.score_alone(make_scorer(self._judge, group.prompt), completion.text)
        if alone is not None and alone.error is not None:
            return alone
        return rewards.combined(sample.index, alone, await asyncio.shield(pending.call))

    def leave(self, group: Group) -> None:
        """Forget a group whose samples are scored or no longer wait."""
        if pending := self._pending.pop(group.number, None):
            pending.call.cancel()

    async def close(self) -> None:
        """Cancel all calls."""
        await cancel([pending.call for pending in self._pending.values()])

    def _ensure_pending(self, group: Group, rewards: GroupRewards) -> _Pending:
        pending = self._pending.get(group.number)
        if pending is None:
            generated = asyncio.Event()
            call = asyncio.create_task(self._score_together(group, rewards, generated))
            pending = self._pending[group.number] = _Pending(generated, call)
        if all(sample.completion is not None for sample in group.samples):
            pending.generated.set()
        return pending

    async def _score_together(self, group: Group, rewards: GroupRewards, generated: asyncio.Event) -> list[Score]:
        await generated.wait()
        texts = [completion.text for completion in group.completions]
        return await rewards.score_together(make_scorer(self._judge, group.prompt), texts)
