"""Loads the loss and the advantage functions that a recipe names, and checks what they return.

A function is found, imported and identified as a reward function is (`tasks.verifiers.functions`). A result that
training cannot use ends the run with one line, which names the function and its place in the file.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from tasks.failures import MistakeError, one_line
from tasks.lineage.user_code import find_line
from tasks.recipe.own import (
    OwnAdvantage,
    OwnFunction,
    OwnSurrogate,
    RewardBatch,
    SurrogateRow,
    Terms,
)
from tasks.verifiers.functions import compute_function_digest, load
from tasks.verifiers.scores import CannotJudge

if TYPE_CHECKING:
    from torch import Tensor

LOSS, ADVANTAGE = "loss", "advantage function"
"""Names of the two kinds of functions in messages."""


class OwnFunctionError(MistakeError):
    """A loss or advantage function of the user's cannot be used, and the message names it and its line."""


class OwnCode:
    """A function of the user's with its options.

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
            digest = compute_function_digest(option.function, what)
            if option.fingerprint not in (None, digest):
                raise OwnFunctionError(
                    f"{self.name}: its file, or one that it imports, has changed since the run was checked: start the "
                    "run again"
                )
            self._function: Callable[..., Any] = load(option.function, digest, what)
        except CannotJudge as error:
            raise OwnFunctionError(str(error)) from error

    def call(self, argument: object) -> Any:
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
        line = find_line(error or Exception(), module, self._function)
        raise OwnFunctionError(f"{self.name} {reason}{line}") from error


class OwnLoss(OwnCode):
    """The loss that `objective.surrogate` names."""

    def __init__(self, option: OwnSurrogate) -> None:
        super().__init__(option, LOSS)
        self._metrics: list[str] | None = None  # of the first call: each micro-batch must have the same ones

    def __call__(self, row: SurrogateRow) -> Terms:
        """Return the terms of a row, and values of its metrics, which have no gradient.

        Raises:
            OwnFunctionError: the function fails, or returns something else.
        """
        returned = self.call(row)
        terms, metrics = returned if isinstance(returned, tuple) and len(returned) == 2 else (returned, {})
        self._check_like(terms, row, "a term for each token")
        if not isinstance(metrics, dict) or not all(isinstance(name, str) for name in metrics):
            self.refuse(f"must return metrics as a dict by name, got {one_line(repr(metrics), 100)}")
        names = sorted(metrics)
        if self._metrics not in (None, names):
            self.refuse(f"must return the same metrics in every call, got {names} after {self._metrics}")
        self._metrics = names
        for name, values in metrics.items():
            self._check_like(values, row, f"a value of the metric {name!r} for each token")
        if row.logprobs.requires_grad and not terms.requires_grad:
            self.refuse("returned terms without a gradient: compute them from row.logprobs, without detach")
        return terms, {name: values.detach() for name, values in metrics.items()}

    def _check_like(self, values: object, row: SurrogateRow, what: str) -> None:
        """Check that values are finite numbers, one for each token of a row."""
        from torch import Tensor

        shape = list(row.mask.shape)
        if not isinstance(values, Tensor) or values.shape != row.mask.shape:
            got = list(values.shape) if isinstance(values, Tensor) else one_line(repr(values), 100)
            self.refuse(f"must return {what}, a tensor {shape}, got {got}")
        # Numbers that are not finite before the call are an error of the learner, which skips the step.
        inputs = (row.logprobs, row.old_logprobs, row.rollout_logprobs, row.advantages)
        if not values[row.mask].isfinite().all() and all(tensor.isfinite().all() for tensor in inputs):
            self.refuse(f"returned NaN or infinity as {what}, for inputs that are finite")


class OwnEstimator(OwnCode):
    """The user's advantage function that `objective.advantage` names. It gets a batch, and its result is checked."""

    def __init__(self, option: OwnAdvantage) -> None:
        super().__init__(option, ADVANTAGE)

    def __call__(self, batch: RewardBatch) -> Tensor:
        """Return the advantages of a batch as float64.

        They are `[groups, samples]`, or `[groups, samples, longest]` with an advantage for each token.

        Raises:
            OwnFunctionError: the function fails, or returns something else.
        """
        from torch import Tensor

        shapes, present = [list(batch.rewards.shape), list(batch.sampled.shape)], batch.present.clone()
        values = self.call(batch)
        if not isinstance(values, Tensor) or list(values.shape) not in shapes:
            got = list(values.shape) if isinstance(values, Tensor) else one_line(repr(values), 100)
            self.refuse(
                f"must return an advantage for each response, a tensor {shapes[0]}, or for each token, {shapes[1]}, "
                f"got {got}"
            )
        if not values[present].isfinite().all():
            wrong = ~values.isfinite().flatten(2).all(dim=2) if values.ndim == 3 else ~values.isfinite()
            group = int((wrong & present).any(dim=1).nonzero()[0])
            rewards = ", ".join(f"{reward:g}" for reward in batch.rewards[group, present[group]].tolist())
            self.refuse(f"returned NaN or infinity for a group with the rewards {rewards}")
        return values.detach().double()


def load_own_loss(option: object) -> OwnLoss | None:
    """Return the user's loss if `option`, the value of `objective.surrogate`, is an `OwnSurrogate`. If it is a
    built-in surrogate, return None.

    Raises:
        OwnFunctionError: it cannot be loaded.
    """
    return OwnLoss(option) if isinstance(option, OwnSurrogate) else None
