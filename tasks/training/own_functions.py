"""Loads the loss and the advantage functions that a recipe names, and checks what they return.

A function is found, imported and identified as a reward function is (`tasks.verifiers.functions`). A result that
training cannot use ends the run with one sentence, which names the function and its line.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from tasks.failures import MistakeError, one_line
from tasks.lineage.user_code import line_of
from tasks.training.objective.own import (
    OwnAdvantage,
    OwnFunction,
    OwnSurrogate,
    RewardBatch,
    RowTerms,
    SurrogateRow,
    Terms,
)
from tasks.verifiers.functions import function_digest, load
from tasks.verifiers.scores import CannotJudge

if TYPE_CHECKING:
    from torch import Tensor

LOSS, ADVANTAGE = "loss", "advantage function"
"""What messages call the functions of `objective.surrogate` and `objective.advantage`."""


class OwnFunctionError(MistakeError):
    """A loss or advantage function of the user's cannot be used, and the message names it and its line."""


class _Function:
    """A user's function with its options.

    Attributes:
        name: its import path, after the word for its kind.
    """

    def __init__(self, option: OwnFunction, what: str) -> None:
        """Import the function.

        Raises:
            OwnFunctionError: it cannot be imported, is not a function, or has changed since the run was checked.
        """
        self._option = option
        self.name = f"{what} {option.function}"
        try:
            digest = function_digest(option.function, what)
            if option.fingerprint not in (None, digest):
                raise OwnFunctionError(
                    f"{self.name}: its file, or one that it imports, has changed since the run was checked: start the "
                    "run again"
                )
            self._function: Callable[..., Any] = load(option.function, digest, what)
        except CannotJudge as error:
            raise OwnFunctionError(str(error)) from error

    def __call__(self, argument: object) -> Any:
        """Call the function.

        Raises:
            OwnFunctionError: it raised an exception, other than for too little memory.
        """
        import torch

        try:
            return self._function(argument, **self._option.options)
        except (MemoryError, torch.OutOfMemoryError):
            raise
        except (Exception, SystemExit) as error:
            text = one_line(error)
            self.refuse(f"raised {type(error).__name__}{f': {text}' if text else ''}", error)

    def refuse(self, reason: str, error: BaseException | None = None) -> NoReturn:
        """Raise `OwnFunctionError`, with the line of `error` in the user's files or the function's first line."""
        module = self._option.function.rpartition(".")[0]
        line = line_of(error or Exception(), module, self._function)
        raise OwnFunctionError(f"{self.name} {reason}{line}") from error


def own_loss(option: object) -> RowTerms | None:
    """Return the user's loss that `objective.surrogate` names, or None for a built-in surrogate.

    Raises:
        OwnFunctionError: it cannot be loaded; or later, when it is called, it fails or returns something else.
    """
    if not isinstance(option, OwnSurrogate):
        return None
    function = _Function(option, LOSS)

    def terms_of(row: SurrogateRow) -> Terms:
        returned = function(row)
        terms, metrics = returned if isinstance(returned, tuple) and len(returned) == 2 else (returned, {})
        _check_like(terms, row, "a term for each token", function)
        if not isinstance(metrics, dict) or not all(isinstance(name, str) for name in metrics):
            function.refuse(f"must return metrics as a dict by name, got {one_line(repr(metrics), 100)}")
        for name, values in metrics.items():
            _check_like(values, row, f"a value of the metric {name!r} for each token", function)
        if row.logprobs.requires_grad and not terms.requires_grad:
            function.refuse("returned terms without a gradient: compute them from row.logprobs, without detach")
        return terms, {name: values.detach() for name, values in metrics.items()}

    return terms_of


def _check_like(values: object, row: SurrogateRow, what: str, function: _Function) -> None:
    """Check that values are finite numbers, one for each token of a row."""
    from torch import Tensor

    shape = list(row.mask.shape)
    if not isinstance(values, Tensor) or values.shape != row.mask.shape:
        got = list(values.shape) if isinstance(values, Tensor) else one_line(repr(values), 100)
        function.refuse(f"must return {what}, a tensor {shape}, got {got}")
    # Numbers that are not finite before the call are an error of the learner, which skips the step.
    inputs = (row.logprobs, row.old_logprobs, row.rollout_logprobs, row.advantages)
    if not values[row.mask].isfinite().all() and all(tensor.isfinite().all() for tensor in inputs):
        function.refuse(f"returned NaN or infinity as {what}, for inputs that are finite")


def own_advantages(option: OwnAdvantage) -> Callable[[RewardBatch], Tensor]:
    """Return the user's function that `objective.advantage` names. Its result is float64 and has one of two shapes.

    They are `[groups, samples]`, and `[groups, samples, longest]` with an advantage for each token.

    Raises:
        OwnFunctionError: it cannot be loaded; or later, when it is called, it fails or returns something else.
    """
    from torch import Tensor

    function = _Function(option, ADVANTAGE)

    def advantages_of(batch: RewardBatch) -> Tensor:
        shapes, present = [list(batch.rewards.shape), list(batch.sampled.shape)], batch.present.clone()
        values = function(batch)
        if not isinstance(values, Tensor) or list(values.shape) not in shapes:
            got = list(values.shape) if isinstance(values, Tensor) else one_line(repr(values), 100)
            function.refuse(
                f"must return an advantage for each response, a tensor {shapes[0]}, or for each token, {shapes[1]}, "
                f"got {got}"
            )
        if not values[present].isfinite().all():
            function.refuse("returned NaN or infinity")
        return values.detach().double()

    return advantages_of
