"""Trained tokens/s of the learner alone, with a prompt for each group and with a prompt for each response.

And what the objective takes of it: advantages, loss with its gradient, and metrics, on the same batches.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path

import numpy as np

from tasks.training.config import TrainingConfig
from tasks.training.packing import MicroBatch, Sequence, pack
from tests.bench import inputs

WARM_UP = 2
STEPS = 6
GROUPS, SAMPLES = 8, 8


def compare(folder: Path) -> dict[str, float]:
    """One learner, the same kind of batch: steps with prompts shared and apart take turns."""
    from transformers import AutoTokenizer

    from tasks.spec import quickstart
    from tasks.training.learner.rank import LearnerRank, free_port

    config = quickstart()[1].run
    model = inputs.model(folder)
    tokenizer = AutoTokenizer.from_pretrained(model)
    chats = inputs.prompts()["messages"].to_pylist()
    prompts = [tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False) for chat in chats]
    draw = np.random.default_rng(0)

    def batch() -> list[Sequence]:
        lengths = draw.integers(10, config.sampling.max_tokens, GROUPS * SAMPLES, endpoint=True)
        chosen = np.repeat(draw.choice(len(prompts), GROUPS, replace=False), SAMPLES)
        return [
            Sequence(prompts[i], draw.integers(len(tokenizer), size=n).tolist(), [-1.0] * n, draw.normal())
            for i, n in zip(chosen, lengths.tolist(), strict=True)
        ]

    learner = LearnerRank(config, str(model))
    learner.setup(0, 1, ("127.0.0.1", free_port()))
    rates: dict[bool, list[float]] = {True: [], False: []}
    shares: list[float] = []
    for step in range(WARM_UP + STEPS):
        for share in (True, False):
            sequences = batch()
            trained = sum(sequence.num_trained for sequence in sequences)
            [micro_batches] = pack(sequences, config.learner.micro_batch_tokens, share_prompts=share)
            started = time.perf_counter()
            learner.step(micro_batches, trained, 1e-5)
            if step >= WARM_UP:
                seconds = time.perf_counter() - started
                rates[share].append(trained / seconds)
                shares.append(_objective_seconds(sequences, micro_batches, trained, config) / seconds)
    return {
        "shared": statistics.median(rates[True]),
        "apart": statistics.median(rates[False]),
        "objective": statistics.median(shares),
    }


def _objective_seconds(
    sequences: list[Sequence], micro_batches: list[MicroBatch], trained: int, config: TrainingConfig
) -> float:
    import torch

    from tasks.training.objective import LossInputs, compute_advantages, policy_loss, summarize

    rewards = torch.tensor([each.advantage for each in sequences]).double().view(GROUPS, SAMPLES)
    lengths = torch.tensor([each.num_trained for each in sequences]).view(GROUPS, SAMPLES)
    started = time.perf_counter()
    compute_advantages(rewards, lengths, config.objective)
    parts = []
    for batch in micro_batches:
        rollout, advantages, mask, ids = (
            torch.from_numpy(each.copy())
            for each in (batch.rollout_logprobs, batch.advantages, batch.mask, batch.sequence_ids)
        )
        logprobs = rollout.clone().requires_grad_()
        inputs = LossInputs(
            logprobs, logprobs.detach(), rollout, advantages, mask, denominator=trained, sequence_ids=ids
        )
        output = policy_loss(inputs, config.objective)
        output.loss.backward()
        parts.append({name: float(value) for name, value in output.metrics.items()})
    summarize(parts)
    return time.perf_counter() - started


if __name__ == "__main__":
    print(json.dumps({"compare": compare}[sys.argv[1]](Path(sys.argv[2]))))
