"""Defines the sizes of all checks: a model of 1.5 billion parameters on a GPU, a tiny model for a dry run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from tasks.sizing.roofline import KNOWN, Architecture
from tasks.storage.durable import write_whole

if TYPE_CHECKING:
    from transformers import Qwen2Config

WEIGHTS_STD = 0.05
"""Standard deviation of random weights; with the usual 0.02, the output would depend less on the attention pattern."""


@dataclass(frozen=True)
class Sizes:
    """Sizes of all checks.

    Attributes:
        model: shape of the trained model.
        row: number of tokens of each sequence in the packed row that is trained on.
        short_row: the same, if all activations are stored.
        attention_row: the same, for the comparison of attention with its dense computation.
        windows: sliding windows that attention is checked with.
        logprobs: number of tokens whose log-probabilities are compared.
        chunk: number of tokens whose logits are in memory at a time (`learner.logprob_chunk_tokens`).
        steps: number of timed optimizer steps, after an untimed first step.
        responses, response: number of responses that an engine generates at a time, and of tokens of each.
        run_model: shape of the model of whole runs.
        run_response: largest number of tokens of a response in whole runs.
    """

    model: Architecture
    row: tuple[int, ...]
    short_row: tuple[int, ...]
    attention_row: tuple[int, ...]
    windows: tuple[int, ...]
    logprobs: int
    chunk: int
    steps: int
    responses: int
    response: int
    run_model: Architecture
    run_response: int

    @property
    def row_tokens(self) -> int:
        """Number of tokens of the packed row that is trained on."""
        return sum(self.row)

    @property
    def context(self) -> float:
        """Mean number of tokens before a token in its sequence of the packed row."""
        return sum(length**2 / 2 for length in self.row) / self.row_tokens


FULL = Sizes(
    model=KNOWN["Qwen2.5-1.5B"],
    row=(16_384, 8192, 4096, 4096, 2048, 1024),  # 35,840 tokens, like Olmo 3's rows
    short_row=(4096, 2048, 1024, 1024),
    attention_row=(1500, 1, 700, 129, 1024, 742),
    windows=(1024, 128),
    logprobs=4096,
    chunk=1024,
    steps=2,
    responses=256,
    response=256,
    run_model=KNOWN["Qwen2.5-0.5B"],
    run_response=128,
)
_TINY_MODEL = Architecture(2, 128, 256, 4, 2, 32, 128, tied=True, attention_bias=True)
TINY = Sizes(
    model=_TINY_MODEL,
    row=(48, 24, 24),
    short_row=(24, 8),
    attention_row=(40, 1, 17, 6),
    windows=(8,),
    logprobs=40,
    chunk=16,
    steps=1,
    responses=4,
    response=16,
    run_model=_TINY_MODEL,
    run_response=32,
)


def choose_sizes(*, dry: bool) -> Sizes:
    """Return the sizes of a dry run, or of a GPU."""
    return TINY if dry else FULL


def save_random_model(
    folder: Path, shape: Architecture, dtype: torch.dtype, layers: int | None = None, device: str | None = None
) -> None:
    """Write a Qwen2 model with random weights to a folder.

    Args:
        folder: folder to write to.
        shape: shape of the model; with a `window`, every other layer uses it.
        dtype: type of the weights.
        layers: number of layers. Optional. If None, the shape's.
        device: device that computes the weights. Optional. If None, the GPU if there is one.
    """
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(_make_qwen2(shape, layers or shape.layers), dtype=dtype)
    with write_whole(folder) as partial:
        model.save_pretrained(partial)


def _make_qwen2(shape: Architecture, layers: int) -> Qwen2Config:
    from transformers import Qwen2Config

    kinds = ["sliding_attention" if shape.window and i % 2 == 0 else "full_attention" for i in range(layers)]
    return Qwen2Config(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        max_position_embeddings=65_536,
        initializer_range=WEIGHTS_STD,
        tie_word_embeddings=shape.tied,
        use_sliding_window=shape.window is not None,
        sliding_window=shape.window,
        layer_types=kinds,
    )
