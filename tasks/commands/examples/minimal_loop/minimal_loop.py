"""Trains a language model with OlmoRL's objective in one file, to show the idea: no Ray, no Flyte, no checkpoints.

    python examples/minimal_loop.py            # ten steps, a few minutes on two cores
    python examples/minimal_loop.py --help

Every step samples a group of responses to each prompt, verifies them, turns rewards into advantages, takes a gradient
step, and loads the new weights into the engine. The real system does the same asynchronously: while the learner takes a
step, actors continue sampling, and switch to new weights in the middle of a response (`tasks/training`).
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from tasks.generation.config import EngineConfig, SamplingConfig
from tasks.generation.engine import run_engine
from tasks.generation.interface import Completion
from tasks.generation.models import ModelSpec, prepare_model
from tasks.machine.precision import Auto, Dtype, resolve
from tasks.machine.quiet import silence_libraries
from tasks.machine.resources import has_gpu
from tasks.objective import LossInputs, compute_advantages, policy_loss
from tasks.recipe.objective import ObjectiveConfig
from tasks.verifiers import verify

GROUPS, SAMPLES, TOKENS = 6, 8, 32
"""Number of prompts per step, responses per prompt, and maximum number of tokens per response."""
LEARNING_RATE = 3e-5

TOPICS = ("the sea", "bread", "a fox", "winter", "an old clock", "rain", "a bridge", "tea", "the moon", "a garden")
CONSTRAINTS = {
    "detectable_format:title": "Begin with a title in double angle brackets, such as <<poem of joy>>.",
    "punctuation:no_comma": "Do not use any commas.",
    "detectable_content:postscript": "End with a postscript that starts with P.S.",
}


class Task(NamedTuple):
    """A prompt, and the ground truth that the instruction-following verifier uses to score a response."""

    prompt: str
    ground_truth: dict[str, Any]


class Batch(NamedTuple):
    """The responses to one prompt as inputs of the loss: tensors `[samples, tokens of the longest response]`."""

    input_ids: Tensor
    """Prompt and response, `[samples, tokens of the prompt and of the longest response]`."""
    mask: Tensor
    """True for the tokens of a response, and False for padding."""
    rollout_logprobs: Tensor
    """Log-probabilities of the tokens, as reported by the engine during sampling, nats."""


class Report(NamedTuple):
    """Metrics of a step: its mean reward, the number of groups trained on, and the mismatch of engine and learner.

    Attributes:
        mismatch: mean absolute difference between the engine's log-probabilities and the learner's, nats.
        batches: the responses that were trained on.
    """

    reward: float
    trained: int
    mismatch: float
    batches: list[Batch]


def make_tasks(seed: int) -> Iterator[Task]:
    """Yield tasks forever: a sentence about a topic, with a constraint that a program can check."""
    draw = random.Random(seed)
    while True:
        constraint, words = draw.choice(list(CONSTRAINTS.items()))
        prompt = f"Write two short sentences about {draw.choice(TOPICS)}. {words}"
        yield Task(prompt, {"instruction_ids": [constraint], "kwargs": [{}]})


def make_batch(prompt_ids: list[int], completions: list[Completion]) -> Batch:
    """Return the responses to one prompt, padded on the right to the longest one."""
    longest = len(prompt_ids) + max(len(completion.token_ids) for completion in completions)
    input_ids = torch.zeros(len(completions), longest, dtype=torch.long)
    mask = torch.zeros(len(completions), longest, dtype=torch.bool)
    logprobs = torch.zeros(len(completions), longest)
    for row, completion in enumerate(completions):
        response = slice(len(prompt_ids), len(prompt_ids) + len(completion.token_ids))
        input_ids[row, : len(prompt_ids)] = torch.tensor(prompt_ids)
        input_ids[row, response] = torch.from_numpy(completion.token_ids).long()
        mask[row, response] = True
        logprobs[row, response] = torch.from_numpy(completion.logprobs)
    return Batch(input_ids, mask[:, len(prompt_ids) :], logprobs[:, len(prompt_ids) :])


def token_logprobs(policy: torch.nn.Module, batch: Batch) -> Tensor:
    """Return the log-probability of each token of the responses under the policy, nats, in the shape of `mask`."""
    # Padding is on the right, so that real tokens never attend to it in a causal model.
    longest = batch.mask.shape[1]
    logits = policy(batch.input_ids[:, :-1], logits_to_keep=longest).logits.float()
    return logits.log_softmax(-1).gather(2, batch.input_ids[:, -longest:, None])[..., 0]


async def main(folder: Path, steps: int, *, dtype: Dtype | Auto = "auto") -> list[Report]:
    """Train the model in a Hugging Face folder, and print a line for each step.

    Args:
        folder: model and tokenizer with a chat template.
        steps: number of steps.
        dtype: dtype of the engine. The learner computes in float32, with weights rounded to this dtype.
    """
    objective = ObjectiveConfig()  # OlmoRL's: token-level loss, clip-higher, truncated importance sampling, no KL
    sampling = SamplingConfig(max_tokens=TOKENS)  # temperature 1.0 and top-p 1.0: log-probabilities are the policy's
    options = EngineConfig.model_validate({"dtype": dtype, "max_model_len": 256, "max_num_seqs": GROUPS * SAMPLES})
    weight_type = getattr(torch, resolve(dtype, gpu=has_gpu()))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    policy = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    # Most steps are too small to change a bfloat16 number, so the optimizer has float32 copies of the weights. The
    # learner computes with the same rounded weights as the engine: otherwise their log-probabilities would differ.
    masters = [parameter.detach().clone() for parameter in policy.parameters()]
    optimizer = torch.optim.AdamW(masters, lr=LEARNING_RATE, weight_decay=0.0)
    tasks, reports = make_tasks(seed=1), []

    async with run_engine(folder, options, updatable=True) as engine:
        for step in range(steps):
            # Sample a group of responses to each prompt. The engine batches all of them.
            group_tasks = [next(tasks) for _ in range(GROUPS)]
            prompts = [_tokenize(tokenizer, task.prompt) for task in group_tasks]
            samples = await asyncio.gather(
                *(engine.generate(prompt, sampling) for prompt in prompts for _ in range(SAMPLES))
            )
            groups = [samples[i : i + SAMPLES] for i in range(0, len(samples), SAMPLES)]

            # Verify every response: the reward is a program's verdict, not a model's opinion.
            scores = [
                [verify("precise_if", sample.text, task.ground_truth).value for sample in group]
                for task, group in zip(group_tasks, groups, strict=True)
            ]
            rewards = torch.tensor(scores)  # [groups, samples]

            # The advantage is the reward minus the mean of its group. Groups with equal rewards have no gradient and
            # are dropped. Active sampling replaces them; here the batch is smaller instead.
            lengths = torch.tensor([[len(sample.token_ids) for sample in group] for group in groups])
            advantages = compute_advantages(rewards, lengths, objective)
            trained = [group for group in range(GROUPS) if rewards[group].unique().numel() > 1]

            # The loss is normalized by the tokens of the whole batch, so that the gradients of its groups add up to the
            # batch's.
            batches = [make_batch(prompts[group], groups[group]) for group in trained]
            denominator = sum(int(batch.mask.sum()) for batch in batches)
            differences = []
            for group, batch in zip(trained, batches, strict=True):
                logprobs = token_logprobs(policy, batch)
                inputs = LossInputs(
                    logprobs=logprobs,
                    old_logprobs=logprobs.detach(),  # one update per batch, so the old policy is the current one
                    rollout_logprobs=batch.rollout_logprobs,
                    advantages=advantages[group][:, None].expand_as(logprobs),
                    mask=batch.mask,
                    denominator=denominator,
                )
                policy_loss(inputs, objective).loss.backward()
                differences.append((logprobs.detach() - batch.rollout_logprobs)[batch.mask].abs())

            # Take the step, and load the new weights into the engine, which tags its samples with their version.
            torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
            _step(optimizer, policy, masters, weight_type)
            with tempfile.TemporaryDirectory() as weights:
                path = Path(weights) / "model.safetensors"
                save_file(_collect_checkpoint(policy, weight_type), path)
                await engine.update_weights(path, version=step + 1)

            mismatch = float(torch.cat(differences).mean()) if trained else 0.0
            reports.append(Report(float(rewards.mean()), len(trained), mismatch, batches))
            used = f"{len(trained)} of {GROUPS} groups trained"
            print(f"step {step}: reward {rewards.mean():.2f}, {used}, mismatch {mismatch:.4f}", flush=True)
    return reports


def _tokenize(tokenizer: Any, prompt: str) -> list[int]:
    messages = [{"role": "user", "content": prompt}]
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def _step(optimizer: torch.optim.Optimizer, policy: torch.nn.Module, masters: list[Tensor], dtype: torch.dtype) -> None:
    """Take an optimizer step on the float32 weights, and set the policy's weights to them, rounded to a dtype."""
    for parameter, master in zip(policy.parameters(), masters, strict=True):
        master.grad, parameter.grad = parameter.grad, None
    optimizer.step()
    for parameter, master in zip(policy.parameters(), masters, strict=True):
        parameter.data.copy_(master.to(dtype))


def _collect_checkpoint(policy: Any, dtype: torch.dtype) -> dict[str, Tensor]:
    """Return the weights by their names in a checkpoint, which contains tied embeddings only once."""
    tied = set(policy.all_tied_weights_keys)
    return {name: tensor.to(dtype).contiguous() for name, tensor in policy.state_dict().items() if name not in tied}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train a language model by OlmoRL's objective, in one file.")
    parser.add_argument("--steps", type=int, default=10, help="number of steps (10)")
    parser.add_argument("--model", type=Path, help="Hugging Face folder (the quickstart's SmolLM2-135M-Instruct)")
    given = parser.parse_args()
    silence_libraries()
    with tempfile.TemporaryDirectory() as scratch:
        asyncio.run(main(given.model or prepare_model(ModelSpec(), Path(scratch) / "model"), given.steps))
