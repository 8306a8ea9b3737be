"""Measures how a run uses its machines: engine utilisation, shares of generation, training and scoring, and waste."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil

from tasks.kubernetes.pods import CORES_A_GPU
from tasks.recipe.run import TrainingConfig
from tasks.sizing.roofline import (
    Architecture,
    compute_bandwidth_utilization,
    compute_tokens_before,
    find_gpu,
)
from tasks.training.actors.decoding import Decoding
from tasks.training.actors.slot import ActorSlot
from tasks.training.groups.group import JudgedGroup
from tasks.verifiers.registry import CHAT, REWARD_MODEL

QUANTIZED = ("quantization", "kv_cache_dtype")
"""vLLM arguments that change the number of bytes of weights or KV cache from 16 bits."""


@dataclass
class MachineUse:
    """The use of a run's machines, step by step.

    Attributes:
        shape: shape of the policy, or None if it is not known.
        gpu: whether learner and engines compute on GPUs.
        judge_gpus: number of GPUs of the LLM judge that the run serves.
        reward_model_gpus: number of GPUs of the reward models that the run serves, one per model.
    """

    shape: Architecture | None = None
    gpu: bool = False
    judge_gpus: int = 0
    reward_model_gpus: int = 0
    _judged: dict[str, float] = field(default_factory=dict, init=False)  # busy seconds at the previous step, by metric

    def metrics(
        self,
        config: TrainingConfig,
        batch: Sequence[JudgedGroup],
        step: Mapping[str, float],
        slots: Sequence[ActorSlot],
    ) -> dict[str, float]:
        """Return the metrics of the use of machines for one step, except the learner's.

        Args:
            config: the run's options, with the dtypes of learner and engines resolved.
            batch: the groups that the step trained on.
            step: the other metrics of the step. Idle shares, seconds and the verifiers' busy seconds are used.
            slots: the actors. Their readings since the previous step are taken.
        """
        decoding = [slot.take_decoding() for slot in slots]
        lengths = [(len(g.prompt.token_ids), len(c.token_ids)) for g in batch for c in g.completions]
        mbu = self._compute_mbu(config, decoding, lengths)
        return {
            **({} if mbu is None else {"engines_mbu": mbu}),
            **self._compute_shares(config, step),
            "static_batching_waste": static_batching_waste([response for _, response in lengths], config),
        }

    def _compute_mbu(
        self, config: TrainingConfig, decoding: Sequence[Decoding], lengths: Sequence[tuple[int, int]]
    ) -> float | None:
        engine = config.actors.engine
        if self.shape is None or engine.dtype == "float32" or any(name in engine.vllm for name in QUANTIZED):
            return None
        known = [(work, find_gpu(work.gpu)) for work in decoding if work.tokens]
        rates = [
            compute_bandwidth_utilization(
                work.tokens / work.busy_seconds,
                self.shape,
                gpu,
                gpus=engine.gpus,
                # each replica of a data parallel engine reads the weights separately, for its sequences
                sequences=work.sequences / engine.replicas,
                context=compute_tokens_before(lengths),
            )
            for work, gpu in known
            if gpu
        ]
        busy = [work.busy_seconds for work, gpu in known if gpu]
        return statistics.fmean(rates, weights=busy) if rates else None

    def _compute_shares(self, config: TrainingConfig, step: Mapping[str, float]) -> dict[str, float]:
        seconds, learner, actors = step["step_seconds"], config.learner, config.actors
        engines = actors.count * (actors.engine.gpus if self.gpu else actors.cpus)
        ranks = learner.ranks * (1 if self.gpu else learner.cpus)
        spent = {
            "generation_share": seconds * (1 - step["actors_idle"]) * engines,
            "training_share": seconds * (1 - step["learner_idle"]) * ranks,
            "judging_share": self._judging(step),
        }
        total = sum(spent.values())
        return {name: time / total for name, time in spent.items()} if total else {}

    def _judging(self, step: Mapping[str, float]) -> float:
        """Return the GPU time spent on scoring since the last call, or the core time if there are no GPUs."""
        spent = 0.0
        for metric, busy in step.items():
            if not metric.endswith("/busy_seconds"):
                continue
            before, self._judged[metric] = self._judged.get(metric, 0.0), busy
            passed = busy - before if busy >= before else busy  # a new reward process counts from 0
            if metric.split("/")[1] in CHAT:
                spent += passed * self.judge_gpus
            elif metric.split("/")[1] == REWARD_MODEL and self.reward_model_gpus:
                spent += passed  # already the sum over the models
            else:
                spent += passed / (CORES_A_GPU if self.gpu else 1)
        return spent


def static_batching_waste(lengths: Sequence[int], config: TrainingConfig) -> float:
    """Return the share of engine time that static batching of these responses would waste.

    The responses are distributed evenly and in order over the engines of `config`, in batches of the number that an
    engine runs at a time. A batch occupies the engine until its longest response ends.
    """
    engine = config.actors.engine
    size = min(engine.max_num_seqs * engine.replicas, ceil(len(lengths) / config.actors.count))
    batches = [lengths[start : start + size] for start in range(0, len(lengths), size)]
    taken = sum(max(batch) * len(batch) for batch in batches)
    return 1 - sum(lengths) / taken if taken else 0.0


def compute_judging_cost(rows: Sequence[Mapping[str, float]]) -> float:
    """Return the cost of the LLM judge's tokens over a run's steps, in the currency of its prices.

    The judge's counter restarts from 0 with each attempt and with each new reward process.
    """
    total = before = 0.0
    for row in rows:
        now = row.get("verifiers/judge/cost", before)
        total += now - before if now >= before else now
        before = now
    return total


def compute_machine_use(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the means of these metrics and of the idle shares over a run, weighted by the duration of steps."""
    names = (
        *("learner_mfu", "engines_mbu", "generation_share", "training_share", "judging_share"),
        *("static_batching_waste", "learner_idle", "actors_idle"),
    )
    recorded = {name: [row for row in rows if row.get(name) is not None] for name in names}
    return {
        name: statistics.fmean((row[name] for row in having), weights=[row["step_seconds"] for row in having])
        for name, having in recorded.items()
        if having
    }
