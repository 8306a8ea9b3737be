"""Counts the operations of packed rows, to balance them between ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tasks.sizing.roofline import Architecture


@dataclass(frozen=True)
class RowCost:
    """The operations of a model's forward pass over a packed row, as whole numbers.

    In training, each is done three times, or four with recomputation.

    Attributes:
        token: operations of a token in all layers, without attention's scores.
        prediction: operations of the head for a predicted token.
        pair: operations of attention for a token and another that it attends to, in all layers without a window.
        windowed_pair: the same in all layers with sliding-window attention.
        window: number of tokens that a layer with sliding-window attention attends to.
    """

    token: int
    prediction: int = 0
    pair: int = 0
    windowed_pair: int = 0
    window: int = 0

    @classmethod
    def from_shape(cls, shape: Architecture) -> RowCost:
        """Return the cost of a model's rows: the operations that `Architecture.forward_flops` counts per token.

        Only the embedding does not count, because looking up a token takes no operations.
        """
        full = shape.layers if shape.window is None or shape.full_layers is None else shape.full_layers
        return cls(
            token=2 * shape.active_parameters_of_layers,
            prediction=2 * shape.embedding_parameters,
            pair=full * shape.flops_of_a_pair,
            windowed_pair=(shape.layers - full) * shape.flops_of_a_pair,
            window=shape.window or 0,
        )

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> RowCost:
        """Return the cost from a model's `config.json`, or `TOKENS` if `Architecture` cannot describe the model."""
        try:
            return cls.from_shape(Architecture.from_config(config))
        except (KeyError, ValueError):
            return TOKENS

    def compute_prompt_cost(self, length: int) -> int:
        """Return the operations of a prompt."""
        return self.token * length + self._compute_attention_cost(length)

    def compute_response_cost(self, prompt: int, length: int) -> int:
        """Return the operations of a response of `length` tokens after a prompt of `prompt` tokens."""
        attention = self._compute_attention_cost(prompt + length) - self._compute_attention_cost(prompt)
        return (self.token + self.prediction) * length + attention

    def _compute_attention_cost(self, length: int) -> int:
        """Return the operations of causal attention in a forward pass over the first `length` tokens of a sequence."""
        within = min(length, self.window)
        windowed = _count_pairs(within) + (length - within) * self.window
        return self.pair * _count_pairs(length) + self.windowed_pair * windowed


TOKENS = RowCost(token=1)
"""The cost of the rows of a model whose shape is not known: their number of tokens."""


def _count_pairs(length: int) -> int:
    """Return the number of pairs of a token and a token that it attends to: itself, or an earlier token."""
    return length * (length + 1) // 2
