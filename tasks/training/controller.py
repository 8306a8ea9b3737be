"""The controller: decides which groups are trained on, when the learner steps, and what is remembered.

    prompts ──► in flight ──► judged ──► ready ──► batch ──► learner step ──► new weights ──► each actor, on its own
       ▲            │            │                   │
       └─ put back ◄┴ actor lost └ zero variance     └ stale: dropped, prompt put back
                                   or not judgeable: dropped

A single response that cannot be judged leaves its group, so that the groups of a batch differ in size.

What takes the place of a dropped group is `resampling`'s to say: the next prompt at once, or a prompt of a next round.
`Sampling` is everything up to `ready`; here is what follows. The controller sees token ids and scores, never a tensor
of the model.
"""

from __future__ import annotations

import asyncio
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tasks.failures import InfrastructureError, MistakeError
from tasks.training.actors import Actor
from tasks.training.checkpoint import Checkpoints
from tasks.training.config import ActiveSampling, DynamicSampling, NoResampling, TrainingConfig, learning_rate
from tasks.training.journal import Journal
from tasks.training.learner.client import Learner, StepReport
from tasks.training.ledger import Ledger
from tasks.training.packing import Sequence as TokenSequence
from tasks.training.rewards import Judge
from tasks.training.rollouts import Group
from tasks.training.sampling import Sampling
from tasks.training.stream import PromptStream
from tasks.training.tally import batch_metrics
from tasks.training.weights import WeightStore


class NoSignalError(MistakeError):
    """The prompts give the policy nothing to learn from: almost every group's scores are all equal."""


class StalledError(InfrastructureError):
    """No group was decided for too long; the message says who waits for whom."""


@dataclass
class Crew:
    """Everyone whom the controller directs, and what it writes to. Tests replace any of them."""

    make_actor: Callable[[int], Actor]
    judge: Judge
    learner: Learner
    weights: WeightStore
    ledger: Ledger
    journal: Journal
    checkpoints: Checkpoints
    on_step: Callable[[dict[str, float]], None] = field(default=lambda _: None)


class Controller:
    """One training run.

    Attributes:
        version: steps taken; the policy that the learner holds.
    """

    def __init__(self, config: TrainingConfig, prompts: PromptStream, crew: Crew) -> None:
        self._config = config
        self._prompts = prompts
        self._crew = crew
        self._started = time.monotonic()
        self._elapsed_before = 0.0
        self._recorded_at = 0.0
        self._sampling = Sampling(
            config, prompts, crew.make_actor, crew.judge, crew.weights, crew.ledger, clock=self._elapsed
        )
        self.version = 0

    async def resume(self, checkpoint: Path) -> None:
        """Put learner, prompts and finished groups back to where `checkpoint` was taken; before `run`.

        Raises:
            ValueError: the checkpoint is incomplete or belongs to another mixture.
        """
        state = Checkpoints.read_state(checkpoint)
        self._prompts.restore(state["prompts"])
        ready, lost = (
            [Group.from_json(record, self._prompts.by_id) for record in state[which]]
            for which in ("ready", "in_flight")
        )
        self._sampling.restore(ready, state["next_group"])
        for group in lost:  # their prompts are sampled again
            self._crew.ledger.close_group(group, "failed", detail="the run was interrupted")
        self._elapsed_before = self._recorded_at = state["elapsed"]
        self.version = state["version"]
        await self._crew.learner.load(checkpoint / "learner")

    async def run(self) -> None:
        """Train up to the last step.

        Raises:
            NoSignalError, StalledError: see there.
            ActorLostError: more actors were lost than `actors.max_restarts` allows.
            LearnerLostError: a learner rank was lost.
        """
        await self._publish()
        sampling = asyncio.create_task(self._sampling.run())
        learning = asyncio.create_task(self._learn())
        try:
            await asyncio.wait([learning, sampling], return_when=asyncio.FIRST_COMPLETED)
            for task in (sampling, learning):  # sampling never ends by itself: if it did, it has failed
                if task.done():
                    task.result()
        finally:
            for task in (learning, sampling):
                task.cancel()
            await asyncio.gather(learning, sampling, return_exceptions=True)
        for group in self._sampling.ready:
            self._crew.ledger.close_group(group, "unused", detail="the last step was taken")

    async def _learn(self) -> None:
        for step in range(self.version, self._config.steps):
            waiting = time.monotonic()
            batch = await self._next_batch()
            waited = time.monotonic() - waiting
            learned = await self._train(step, batch)
            self.version = step + 1
            await self._publish()
            judges = {f"verifiers/{name}": value for name, value in (await self._crew.judge.figures()).items()}
            await self._record(step, batch, {**learned, **judges, "wait_seconds": waited})
            if self.version % self._config.checkpoint_every == 0 or self.version == self._config.steps:
                await self._save()

    async def _next_batch(self) -> list[Group]:
        """`groups_per_step` groups, none of them stale, in the order in which their prompts were drawn."""
        sampling, wanted = self._sampling, self._config.groups_per_step
        dropped_before = self._dropped()
        while True:
            sampling.decided.clear()
            self._drop_stale()
            complete = not self._config.samples_in_rounds or sampling.undecided == 0
            if complete and len(sampling.ready) >= wanted:
                return sorted((sampling.ready.popleft() for _ in range(wanted)), key=lambda group: group.number)
            self._ask(self._dropped() - dropped_before)
            await self._wait()

    def _drop_stale(self) -> None:
        for group in list(self._sampling.ready):
            staleness = self.version - group.first_version
            if staleness > self._config.max_staleness:
                self._sampling.ready.remove(group)
                self._sampling.put_back(group)
                self._sampling.drop(group, "stale", f"{staleness} versions old")

    def _ask(self, dropped: int) -> None:
        """Ask for the groups that the batch lacks, unless so many were dropped for it that there is no signal."""
        sampling, resampling, wanted = self._sampling, self._config.resampling, self._config.groups_per_step
        match resampling:
            case DynamicSampling():
                if sampling.undecided > 0:
                    return
                rounds = sampling.tally.rounds or 0
                if rounds == resampling.max_rounds:
                    raise self._no_signal(dropped, f"in {rounds} rounds (resampling.max_rounds)")
                sampling.tally.rounds = rounds + 1
                sampling.ask(math.ceil(resampling.batch_multiplier * wanted))
            case ActiveSampling() | NoResampling():
                if dropped > resampling.max_dropped_groups:
                    limit = f"resampling.max_dropped_groups = {resampling.max_dropped_groups}"
                    raise self._no_signal(dropped, f"({limit})")
                window = wanted * max(self._config.async_steps, 1)
                sampling.ask(max(window - len(sampling.ready) - sampling.undecided, 0))

    def _no_signal(self, dropped: int, limit: str) -> NoSignalError:
        return NoSignalError(
            f"step {self.version}: {dropped} groups were dropped while {len(self._sampling.ready)} of "
            f"{self._config.groups_per_step} were found {limit}; fates so far: {dict(self._crew.ledger.fates)}. The "
            "prompts are too hard or too easy for this policy, or its responses are cut off (sampling.max_tokens)"
        )

    async def _wait(self) -> None:
        try:
            await asyncio.wait_for(self._sampling.decided.wait(), self._config.stall_seconds)
        except TimeoutError:
            in_flight = sorted(self._sampling.in_flight)
            raise StalledError(
                f"step {self.version}: nothing was decided for stall_seconds = {self._config.stall_seconds:g}; the "
                f"learner holds {len(self._sampling.ready)} of {self._config.groups_per_step} groups and waits for "
                f"{len(in_flight)} in flight (groups {in_flight[:8]})"
            ) from None

    def _dropped(self) -> int:
        return sum(self._crew.ledger.fates[fate] for fate in ("zero_variance", "failed", "stale"))

    async def _train(self, step: int, batch: list[Group]) -> dict[str, float]:
        if not self._config.takes_turns:
            self._sampling.ask(len(batch))  # the next groups are sampled while the learner works on these
        kl = self._config.objective.kl
        responses = await self._with_old_logprobs(_responses(batch, self._config))
        distances = await self._distances(responses) if kl.in_reward else [0.0] * len(responses)
        advantages = _advantages(batch, [kl.beta * distance for distance in distances], self._config)
        waiting = iter(responses)
        sequences = [[replace(next(waiting), advantage=advantage) for advantage in row] for row in advantages]
        rate = learning_rate(step, self._config.optimizer, self._config.steps)
        metrics = {**(await self._update(sequences, rate)).metrics, "learning_rate": rate}
        if kl.in_reward:
            metrics["kl"] = sum(distances) / max(sum(each.num_trained for each in responses), 1)
        for group, row in zip(batch, advantages, strict=True):
            self._crew.ledger.close_group(group, "trained", step=step, spread=statistics.pstdev(row))
        return metrics

    async def _with_old_logprobs(self, responses: list[TokenSequence]) -> list[TokenSequence]:
        """With the learner's log-probabilities before the first update, where a later update or the KL needs them."""
        updates = self._config.updates
        if updates.minibatches * updates.epochs == 1 and not self._config.objective.kl.in_reward:
            return responses
        old = await self._crew.learner.logprobs(responses)
        return [replace(each, old_logprobs=values) for each, values in zip(responses, old, strict=True)]

    async def _distances(self, responses: list[TokenSequence]) -> list[float]:
        """The KL of each response from the reference policy, nats."""
        from tasks.training.objective import kl_of_responses

        old = [each.old_logprobs or [] for each in responses]
        reference = await self._crew.learner.reference_logprobs(responses)
        distances: list[float] = kl_of_responses(old, reference, self._config.objective.kl).tolist()
        return distances

    async def _update(self, groups: list[list[TokenSequence]], rate: float) -> StepReport:
        """All optimizer steps on a batch; its groups stay together."""
        updates = self._config.updates
        size = len(groups) // updates.minibatches
        reports = []
        for _ in range(updates.epochs):
            for start in range(0, len(groups), size):
                part = [sequence for group in groups[start : start + size] for sequence in group]
                denominator = self._config.objective.denominator(sequence.num_trained for sequence in part)
                reports.append(await self._crew.learner.step(part, denominator, rate))
        return StepReport.of(reports)

    async def _publish(self) -> None:
        if self.version > 0 or self._config.lora:
            await self._crew.learner.write_weights(self._crew.weights.path(self.version))
        await self._crew.weights.publish(self.version)

    async def _save(self) -> None:
        state = {
            "version": self.version,
            "elapsed": self._elapsed(),
            "next_group": self._sampling.next_group,
            "ready": [group.to_json() for group in self._sampling.ready],
            "in_flight": [group.to_json() for group in self._sampling.in_flight.values()],
            "prompts": self._prompts.state(group.prompt for group in self._sampling.in_flight.values()),
            "ledger_bytes": self._crew.ledger.sync(),
            "journal_bytes": self._crew.journal.sync(),
            "dtype": self._config.learner.dtype,
        }
        await self._crew.checkpoints.save(self.version, state, self._crew.learner)

    async def _record(self, step: int, batch: list[Group], learned: dict[str, float]) -> None:
        now = self._elapsed()
        seconds = now - self._recorded_at
        self._recorded_at = now
        trained = learned.pop("num_tokens")
        metrics = {
            "step": step,
            "seconds": now,
            "step_seconds": seconds,
            "epoch": self._prompts.epoch,
            **self._sampling.take_tally().metrics(seconds),
            **batch_metrics(batch, version=step),
            "trained_tokens": trained,
            "trained_tokens_per_second": trained / seconds,
            **learned,
        }
        self._crew.journal.record(metrics)
        await asyncio.to_thread(self._crew.on_step, metrics)

    def _elapsed(self) -> float:
        """Seconds of work on this run, over all its attempts."""
        return self._elapsed_before + time.monotonic() - self._started


def _responses(batch: Sequence[Group], config: TrainingConfig) -> list[TokenSequence]:
    """All responses of a batch, group by group, their advantages still to come."""
    filtering = config.objective.shaping.filter_truncated
    return [
        TokenSequence(
            group.prompt.token_ids,
            completion.token_ids,
            completion.logprobs,
            advantage=0.0,
            mask=[False] * len(completion.token_ids) if filtering and completion.truncated else None,
        )
        for group in batch
        for completion in group.completions
    ]


def _advantages(batch: Sequence[Group], penalties: list[float], config: TrainingConfig) -> list[list[float]]:
    """For each group those of its responses; `penalties`, one for each response, are taken from the rewards."""
    import torch

    from tasks.training.objective import compute_advantages, normalize_then_sum

    present = _padded([[True] * len(group.completions) for group in batch], torch.bool)  # [groups, samples]
    if config.objective.reward_aggregation == "normalize_then_sum":
        advantages = normalize_then_sum(*_components(batch), present)
    else:
        rewards = _padded([group.scores for group in batch], torch.float64)
        rewards[present] -= torch.tensor(penalties, dtype=torch.float64)
        num_tokens = _padded([[len(c.token_ids) for c in group.completions] for group in batch], torch.long)
        advantages = compute_advantages(rewards, num_tokens, config.objective, present)
    return [row[mask].tolist() for row, mask in zip(advantages, present, strict=True)]


def _padded(rows: Sequence[list[Any]], dtype: Any) -> Any:
    """Rows of different lengths as a tensor `[rows, longest]`, 0 where a row has ended."""
    import torch

    return torch.nn.utils.rnn.pad_sequence([torch.tensor(row, dtype=dtype) for row in rows], batch_first=True)


def _components(batch: Sequence[Group]) -> tuple[Any, Any]:
    """Rewards `[groups, samples, rewards]`, NaN where there is none, and their weights `[groups, rewards]`."""
    import torch

    components = [group.components() for group in batch]  # prompts differ in which rewards they have, and how many
    samples = max(len(group) for group in components)
    most = max(len(rewards) for group in components for rewards in group)
    values = torch.full((len(batch), samples, most), torch.nan, dtype=torch.float64)
    weights = torch.zeros(len(batch), most, dtype=torch.float64)
    for g, group in enumerate(components):
        for s, rewards in enumerate(group):
            for k, part in enumerate(rewards):
                weights[g, k] = part.weight
                if part.value is not None:
                    values[g, s, k] = part.value
    return values, weights
