"""Compares log-probabilities that two computations give to the same tokens, and says which differences are rounding."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, NoReturn

import torch
from torch import Tensor

from tasks.failures import MistakeError

FLOAT32 = 1e-4
"""Largest mean difference of a sequence's log-probabilities that counts as rounding in float32, nats.

That of two kernels is about 1e-6. SmolLM2, with 30 layers, is 1.2e-5 from vLLM.
"""
TIMES_PLAIN = 1.5
"""Largest error of the learner in 16 bits, in errors of the model's own forward pass in the same type.

Errors are medians over 2,000 tokens. Learner and plain forward pass make the same error, but for chance: over 40
cuttings of the text by ten families in miniature, the learner's is 0.83 to 1.08 times the plain one's.
"""
TIMES_PLAIN_OF_ENGINE = 2.0
"""The same of an engine, whose kernels round in other places, layer after layer.

Three models in an engine on a CPU made 0.7 to 1.0 times the plain error; engines on GPUs were not measured.
"""


class ModelCheckError(MistakeError):
    """The learner, the model's own forward pass, the export or the engine disagree; the message names the cause."""


class Difference(NamedTuple):
    """A difference of log-probabilities, nats, and the largest that counts as rounding."""

    nats: float
    tolerance: float


def apart(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> float:
    """Return the largest of the sequences' mean differences, nats; NaN where one of them is."""
    means = [(own - other).abs().mean() for own, other in zip(ours, theirs, strict=True) if len(own)]
    return float(torch.stack(means).max()) if means else float("nan")


def typical_error(values: Sequence[Tensor], exact: Sequence[Tensor]) -> float:
    """Return the median difference of all tokens, nats, which one token or expert that flips does not move.

    NaN where one of the values is, or there is none.
    """
    errors = (torch.cat(list(values)) - torch.cat(list(exact))).abs()
    return float(errors.median()) if len(errors) else float("nan")


def tolerance_of(usual: float, times: float) -> float:
    """Return the largest error that counts as rounding, where `usual` is that of the plain forward pass, nats.

    NaN where `usual` is. A model that rounds nothing has the tolerance of float32.
    """
    return max(times * usual, FLOAT32) if math.isfinite(usual) else math.nan


class Figures(dict[str, Difference]):
    """The differences of a model's computations, by what was compared.

    Args:
        model: the model, for messages.
    """

    def __init__(self, model: object) -> None:
        super().__init__()
        self._model = model

    def require(self, what: str, nats: float, tolerance: float, cause: Callable[[], str]) -> None:
        """Note a difference.

        Args:
            what: the two that differ, for a sentence: "the learner and an engine".
            nats: their difference.
            tolerance: the largest that counts as rounding.
            cause: returns the end of the message, which names the likely cause.

        Raises:
            ModelCheckError: the difference is larger, or not a number.
        """
        self[what] = Difference(nats, tolerance)
        if not (math.isfinite(nats) and math.isfinite(tolerance)):
            self.refuse(
                f"{what} differ by {nats:.2g} nats: log-probabilities are not finite; the likely cause is weights that "
                "are not, or a type with too small a range"
            )
        if not nats <= tolerance:
            self.refuse(f"{what} differ by {nats:.2g} nats, where {tolerance:.2g} is rounding{cause()}")

    def refuse(self, fault: str) -> NoReturn:
        """Raise `ModelCheckError` with the model and its fault."""
        raise ModelCheckError(f"model {self._model}: {fault}")
