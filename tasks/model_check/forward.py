"""Runs a model as transformers does: plain attention, and one sequence at a time."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from tasks.model_check.casting import compute_in_dtype
from tasks.training.learner.fused_layers import switched_off
from tasks.training.learner.packing import Sequence as TokenSequence
from tasks.training.learner.policy import EAGER, make_layout_arguments


def load_plain_model(folder: Path) -> PreTrainedModel:
    """Return the model in a folder with plain attention and its own type, on the GPU if there is one."""
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype="auto", attn_implementation=EAGER)
    return model.to("cuda" if torch.cuda.is_available() else "cpu")


def compute_exact_logprobs(model: PreTrainedModel, sequences: Sequence[TokenSequence]) -> list[Tensor]:
    """Return the same as `compute_plain_logprobs`, but computed in float32."""
    with compute_in_dtype(model, torch.float32):
        return compute_plain_logprobs(model, sequences)


def compute_plain_logprobs(model: PreTrainedModel, sequences: Sequence[TokenSequence]) -> list[Tensor]:
    """Return the log-probabilities of each response, nats, float32 `[n]` in main memory, without gradients."""
    with torch.no_grad(), restore_own_functions(model) as own:
        return [_gather_logprobs(own(make_input_ids(s, own.device), use_cache=False).logits, s) for s in sequences]


def compute_row_logprobs(model: PreTrainedModel, sequence: TokenSequence) -> Tensor:
    """Return the log-probabilities of a response as `compute_plain_logprobs` does, but with the attention that the
    model has.

    The hidden states are the same as in a learner whose row contains only this sequence.
    """
    ids = make_input_ids(sequence, model.device)
    positions = torch.arange(ids.shape[1], device=model.device)[None]
    with torch.no_grad():
        output = model(
            input_ids=ids, position_ids=positions, use_cache=False, **make_layout_arguments(model, positions)
        )
    return _gather_logprobs(output.logits, sequence)


@contextlib.contextmanager
def restore_own_functions(model: PreTrainedModel) -> Iterator[PreTrainedModel]:
    """Switch the model to transformers' plain attention, its own functions and evaluation mode within the block."""
    before, training = model.config._attn_implementation, model.training
    model.set_attn_implementation(EAGER)
    try:
        with switched_off(model):
            yield model.eval()
    finally:
        model.set_attn_implementation(before)
        model.train(training)


def make_input_ids(sequence: TokenSequence, device: torch.device) -> Tensor:
    """Return a sequence's tokens, int64 `[1, T]`."""
    return torch.tensor([[*sequence.prompt_ids, *map(int, sequence.response_ids)]], device=device)


def _gather_logprobs(logits: Tensor, sequence: TokenSequence) -> Tensor:
    targets = torch.tensor([int(token) for token in sequence.response_ids], dtype=torch.int64, device=logits.device)
    own = logits[0, len(sequence.prompt_ids) - 1 : -1].float().log_softmax(-1)
    return own.gather(1, targets[:, None])[:, 0].cpu()
