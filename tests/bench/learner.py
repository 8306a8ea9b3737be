"""Trained tokens/s of the learner alone, with a prompt for each group and with a prompt for each response.

Beside it the bare forward and backward of the same rows, and TRL's step on the same sequences, padded.

And what the objective takes of it: advantages, loss with its gradient, and metrics, on the same batches.
"""

from __future__ import annotations

import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tasks.machine import precision
from tasks.recipe.run import TrainingConfig
from tasks.training.learner.packing import MicroBatch, Sequence, pack
from tests.bench import inputs

WARM_UP = 1
STEPS = 4
TRL_STEPS = 3
GROUPS, SAMPLES = 8, 8
ACCUMULATED = 4
"""Micro-batches of a TRL step."""


def batches(folder: Path, config: TrainingConfig) -> Iterator[list[Sequence]]:
    """Batches of groups on the quickstart's prompts, as long as its responses are; the same ones in every process."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(inputs.model(folder))
    chats = inputs.prompts()["messages"].to_pylist()
    prompts = [tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False) for chat in chats]
    draw = np.random.default_rng(0)
    while True:
        lengths = draw.integers(10, config.sampling.max_tokens, GROUPS * SAMPLES, endpoint=True)
        chosen = np.repeat(draw.choice(len(prompts), GROUPS, replace=False), SAMPLES)
        yield [
            Sequence(prompts[i], draw.integers(len(tokenizer), size=n).tolist(), [-1.0] * n, draw.normal())
            for i, n in zip(chosen, lengths.tolist(), strict=True)
        ]


def compare(folder: Path) -> dict[str, float]:
    """Steps with prompts shared and apart, and the model's forward and backward alone, take turns on each batch."""
    import torch

    from tasks.inputs.files import load_quickstart
    from tasks.training.learner.policy import Policy
    from tasks.training.learner.rank import LearnerRank

    config = load_quickstart()[1].run
    model = inputs.model(folder)
    rank = LearnerRank(config, str(model))
    rank.setup(0, 0, 1, rank.address())
    learner = rank.trainer
    dtype = precision.resolve(config.learner.dtype, gpu=False)
    policy = Policy.load(model, dtype=getattr(torch, dtype)).train()
    seconds: dict[str, list[float]] = {"shared": [], "apart": [], "bare": [], "objective": []}
    tokens = []

    def timed(name: str, call: Callable[[], object]) -> None:
        started = time.perf_counter()
        call()
        seconds[name].append(time.perf_counter() - started)

    for sequences in itertools.islice(batches(folder, config), WARM_UP + STEPS):
        trained = sum(sequence.num_trained for sequence in sequences)
        tokens.append(trained)
        packed = {
            name: pack(sequences, config.learner.micro_batch_tokens, share_prompts=name == "shared")[0]
            for name in ("shared", "apart")
        }
        for name, rows in packed.items():
            timed(name, lambda rows=rows: learner.step(rows, trained, 1e-5))  # noqa: B023 called at once
        timed("bare", lambda: _forward_and_backward(policy, learner, packed["shared"]))  # noqa: B023
        seconds["objective"].append(_objective_seconds(sequences, packed["shared"], trained, config))

    def rate(name: str) -> float:
        return statistics.median(n / s for n, s in list(zip(tokens, seconds[name], strict=True))[WARM_UP:])

    shares = [part / whole for part, whole in zip(seconds["objective"], seconds["shared"], strict=True)]
    return {name: rate(name) for name in ("shared", "apart", "bare")} | {
        "objective": statistics.median(shares[WARM_UP:])
    }


def _padded(given: list[list[Sequence]], size: int) -> Iterator[dict[str, Any]]:
    """TRL's micro-batches of `size` sequences: prompts padded on the left, responses on the right."""
    import torch

    def pad(rows: list[list[int]], *, left: bool) -> tuple[Any, Any]:
        width = max(map(len, rows))
        ids, mask = (torch.zeros(len(rows), width, dtype=torch.int64) for _ in range(2))
        for i, row in enumerate(rows):
            where = slice(width - len(row), None) if left else slice(0, len(row))
            ids[i, where], mask[i, where] = torch.tensor(row), 1
        return ids, mask

    for batch in given:
        total = torch.tensor(sum(each.num_trained for each in batch))
        for start in range(0, len(batch), size):
            part = batch[start : start + size]
            prompt_ids, prompt_mask = pad([each.prompt_ids for each in part], left=True)
            completion_ids, completion_mask = pad([each.response_ids for each in part], left=False)
            yield {
                "prompt_ids": prompt_ids,
                "prompt_mask": prompt_mask,
                "completion_ids": completion_ids,
                "completion_mask": completion_mask,
                "advantages": torch.tensor([each.advantage for each in part]),
                "num_items_in_batch": total,
            }


def _forward_and_backward(policy: Any, learner: Any, rows: list[MicroBatch]) -> None:
    for batch in rows:
        logprobs, _ = policy(**learner.row(batch))
        logprobs.sum().backward()
    policy.zero_grad(set_to_none=True)


def trl(folder: Path) -> dict[str, float]:
    """The same batches through TRL's GRPOTrainer, padded, nothing sampled."""
    from datasets import Dataset
    from transformers import AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    from tasks.inputs.files import load_quickstart

    path = inputs.model(folder)
    tokenizer = AutoTokenizer.from_pretrained(path, padding_side="left")
    given = list(itertools.islice(batches(folder, load_quickstart()[1].run), 1 + TRL_STEPS))
    size = GROUPS * SAMPLES // ACCUMULATED
    times = [time.perf_counter()]

    stream = _padded(given, size)

    class Given(GRPOTrainer):
        def _prepare_inputs(self, _: object) -> dict[str, Any]:
            return next(stream)

    class Clock(TrainerCallback):
        def on_step_end(self, *_: object, **__: object) -> None:
            times.append(time.perf_counter())

    Given(
        model=str(path),
        processing_class=tokenizer,
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        train_dataset=Dataset.from_list([{"prompt": chat} for chat in inputs.prompts()["messages"].to_pylist()]),
        callbacks=[Clock()],
        args=GRPOConfig(
            output_dir=str(folder / "trl"),
            per_device_train_batch_size=size,
            gradient_accumulation_steps=ACCUMULATED,
            num_generations=SAMPLES,
            max_steps=len(given),
            beta=0.0,
            **inputs.peer_type(),
            use_cpu=True,
            gradient_checkpointing=False,
            report_to=[],
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
        ),
    ).train()
    tokens = [sum(each.num_trained for each in batch) for batch in given]
    rates = [n / (end - start) for n, (start, end) in zip(tokens, itertools.pairwise(times), strict=True)]
    return {"trained": statistics.median(rates[1:])}


def _objective_seconds(
    sequences: list[Sequence], micro_batches: list[MicroBatch], trained: int, config: TrainingConfig
) -> float:
    import torch

    from tasks.objective import LossInputs, compute_advantages, policy_loss, summarize

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
    print(json.dumps({"compare": compare, "trl": trl}[sys.argv[1]](Path(sys.argv[2]))))
