"""Compares log-probabilities of the same tokens, and decides which differences are rounding."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, NoReturn

import torch
from torch import Tensor

from tasks.failures import MistakeError

FLOAT32 = 1e-4
"""Largest mean difference of a sequence's log-probabilities that counts as rounding in float32, nats.

Different kernels differ by about 1e-6, and SmolLM2, with 30 layers, by 1.2e-5 from vLLM.
"""
TIMES_PLAIN = 1.5
"""Largest error of the learner in 16 bits, as a multiple of the error of the model's own forward pass.

Both are medians over 2,000 tokens. For ten tiny models and SmolLM2, with 40 texts each, the ratio is 0.83 to 1.08.
"""
TIMES_PLAIN_OF_ENGINE = 2.0
"""Largest error of an engine in 16 bits, as a multiple of the same error; its kernels differ more from the model's.

For three models on a CPU the ratio is between 0.7 and 1.0. It was not measured on GPUs.
"""


class ModelCheckError(MistakeError):
    """Learner, model, export and engine do not agree; the message names the likely cause."""


class Difference(NamedTuple):
    """A difference of log-probabilities, and the limit for it."""

    nats: float
    """The difference."""
    tolerance: float
    """The largest difference that counts as rounding, nats."""


def compute_difference(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> float:
    """Return the largest mean difference of a sequence, nats; NaN if a value is NaN or there is none."""
    means = [(own - other).abs().mean() for own, other in zip(ours, theirs, strict=True) if len(own)]
    return float(torch.stack(means).max()) if means else float("nan")


def compute_typical_error(values: Sequence[Tensor], exact: Sequence[Tensor]) -> float:
    """Return the median difference over all tokens, nats; NaN if a value is NaN or there is none.

    A single token, or a router that chooses another expert for it, does not change a median.
    """
    errors = (torch.cat(list(values)) - torch.cat(list(exact))).abs()
    return float(errors.median()) if len(errors) else float("nan")


def compute_tolerance(usual: float, times: float) -> float:
    """Return the largest error that counts as rounding, nats: `times` the error of the model's own forward pass.

    It is at least `FLOAT32`, and NaN if `usual` is not finite.
    """
    return max(times * usual, FLOAT32) if math.isfinite(usual) else math.nan


class Figures(dict[str, Difference]):
    """Stores the measured differences, by what was compared, and raises an error if one is too large."""

    def __init__(self, model: object) -> None:
        super().__init__()
        self._model = model

    def require(self, what: str, nats: float, tolerance: float, cause: Callable[[], str]) -> None:
        """Store a difference.

        Args:
            what: the two that were compared, such as "the learner and an engine".
            nats: their difference.
            tolerance: the largest difference that counts as rounding.
            cause: function that returns the end of the error message.

        Raises:
            ModelCheckError: the difference is larger, or not finite.
        """
        self[what] = Difference(nats, tolerance)
        if not (math.isfinite(nats) and math.isfinite(tolerance)):
            self.refuse(
                f"{what} differ by {nats:.2g} nats: log-probabilities are not finite; the likely cause is weights that "
                "are not, or a type with too small a range"
            )
        if not nats <= tolerance:
            self.refuse(f"{what} differ by {nats:.2g} nats, but rounding explains at most {tolerance:.2g}{cause()}")

    def refuse(self, fault: str) -> NoReturn:
        """Raise `ModelCheckError` for the model."""
        raise ModelCheckError(f"model {self._model}: {fault}")
