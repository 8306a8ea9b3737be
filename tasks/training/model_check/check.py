"""The check of a model before the first rollout: learner, engine and export must have the same policy."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import torch

from tasks.generation.config import EngineConfig, SamplingConfig
from tasks.generation.engine import running_engine
from tasks.generation.interface import Completion
from tasks.machine import precision
from tasks.machine.resources import has_gpu
from tasks.training.config import TrainingConfig
from tasks.training.learner.packing import Sequence
from tasks.training.model_check.learner import TOLERANCES, LearnerCheck

SAMPLES = 4
"""Responses that the engine samples to a prompt, before the update and after it."""
TOKENS = 24
"""Most tokens of one of them."""
ENGINE_TIMES = 3
"""Tolerance for an engine in those for the model's own forward pass: in 16 bits its kernels round in other places."""
NOT_RENEWED = "; the likely cause is experts, or a packed or tied copy of weights, that the engine does not renew"


def check_model(folder: Path, config: TrainingConfig, *, engine: bool = True) -> dict[str, float]:
    """Check that learner, the model's own forward pass, export and engine agree on one model.

    The learner's part is `LearnerCheck`. The engine samples from the initial checkpoint and, after an update of every
    tensor in flight, from the updated one; its log-probabilities are compared with the learner's both times.

    Args:
        folder: a Hugging Face model folder.
        config: the run's, for the types of learner and engine, and the context.
        engine: whether to start an engine.

    Returns:
        Mean differences of log-probabilities in nats, by what was compared.

    Raises:
        ModelCheckError: two of them differ by more than rounding; the message names the likely cause.
        ModelError: the learner cannot compute the model.
        EngineOptionsError: vLLM does not serve the model.
        EngineError: it died, or does not take the learner's tensors.
    """
    options = config.actors.engine
    dtype = _type(config.learner.dtype)
    learner = LearnerCheck(folder, dtype=dtype, longest=options.max_model_len)
    prompts = [ids[: options.max_model_len - TOKENS] for ids in learner.prompts()]
    if not engine:
        return learner.check()
    with tempfile.TemporaryDirectory() as export:
        learner.check(Path(export))
        learner.leave_device()  # to the engine
        initial, updated = asyncio.run(_sampled(folder, options, prompts, Path(export) / "model.safetensors"))
    tolerance = ENGINE_TIMES * max(TOLERANCES[dtype], TOLERANCES[_type(options.dtype)])
    learner.compare_with("an engine after a weight update", updated, tolerance, NOT_RENEWED)
    figures = learner.figures
    learner = LearnerCheck(folder, dtype=dtype, longest=options.max_model_len)
    learner.compare_with("an engine", initial, tolerance, "; the engine computes this model in another way")
    return figures | learner.figures


def _type(option: precision.Dtype | precision.Auto) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, precision.resolve(option, gpu=has_gpu()))
    return dtype


async def _sampled(
    folder: Path, options: EngineConfig, prompts: list[list[int]], update: Path
) -> tuple[list[Sequence], list[Sequence]]:
    """Responses of one engine to all prompts, `SAMPLES` each, under the initial weights and under those in `update`."""
    sampling = SamplingConfig(max_tokens=TOKENS)
    async with running_engine(folder, options, updatable=True) as engine:

        async def sampled() -> list[Sequence]:
            asked = [prompt for prompt in prompts for _ in range(SAMPLES)]
            answers = await asyncio.gather(*(engine.generate(p, sampling, seed=i) for i, p in enumerate(asked)))
            return [_sequence(prompt, answer) for prompt, answer in zip(asked, answers, strict=True)]

        initial = await sampled()
        await engine.update_weights(update, 1, keep_cache=False)
        return initial, await sampled()


def _sequence(prompt: list[int], answer: Completion) -> Sequence:
    return Sequence(prompt, answer.token_ids, answer.logprobs, 0.0)
