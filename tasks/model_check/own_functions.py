"""Calls the loss and the advantage function of a recipe on dummy tensors, before anything is loaded.

A packed row is in another row for another size of micro-batches, or another number of ranks. So the terms of a sequence
must not depend on the other sequences in its row:

    row            a a a a a a b b b b c c c c c c c c c       d: another sequence of another length
    the same `a`   d d d d d a a a a a a                       its terms must be the same
"""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import Tensor

from tasks.model_check.options import CheckedOptions
from tasks.objective.own_functions import OwnEstimator, OwnLoss
from tasks.recipe.own import RewardBatch, SurrogateRow

LENGTHS = {"a": 6, "b": 4, "c": 9, "d": 5}
"""Number of tokens of each dummy sequence; the tokens of `c` are masked, as in a truncated response."""
TOLERANCE = 1e-4
"""Largest difference of a term between two rows, as a multiple of the largest term: a thousand times the rounding of
float32. The mean of one of the rows differs by a tenth of it, or more."""
REWARDS = ((1.0, 0.0, 0.25), (0.5, 0.5), (0.0, 1.0, 0.0))
"""Rewards of the dummy groups; in the second they are equal."""

Argument = TypeVar("Argument", SurrogateRow, RewardBatch)


def check_own_functions(options: CheckedOptions) -> None:
    """Call the functions of the user's that a recipe names on dummy tensors.

    Raises:
        OwnFunctionError: a function cannot be loaded, fails, returns the wrong shape or NaN, or changes its argument;
            the terms of a loss have no gradient, or depend on other sequences in the row; or advantages depend on
            samples that are not present.
    """
    if options.surrogate is not None:
        check_loss(OwnLoss(options.surrogate))
    if options.advantage is not None:
        check_estimator(OwnEstimator(options.advantage))


def check_loss(loss: OwnLoss) -> None:
    """Check a loss on packed rows of dummy sequences, and on the row without a prediction that ranks fill up with.

    Raises:
        OwnFunctionError: as in `check_own_functions`.
    """
    row = _make_row("abc")
    terms = _compute_terms(loss, row)
    gradient = _check_gradient(loss, row, terms)
    own = slice(0, LENGTHS["a"])
    if not gradient[0, own].any():
        loss.refuse("returned terms whose gradient is 0: compute them from row.logprobs")
    [others] = torch.autograd.grad(terms[0, own].sum(), row.logprobs)
    moved = others[0, own.stop :].abs().max() > TOLERANCE * others.abs().max()
    elsewhere = _compute_terms(loss, _make_row("da"))[0, LENGTHS["d"] :]
    if moved or (elsewhere - terms[0, own]).abs().max() > TOLERANCE * terms.abs().max():
        loss.refuse(
            "returned terms of a sequence that depend on the other sequences in its row, which are arbitrary: do not "
            "average or normalise over the row (row.sequence_ids tells its sequences apart)"
        )
    nothing = _make_empty_row()
    _check_gradient(loss, nothing, _compute_terms(loss, nothing))


def _check_gradient(loss: OwnLoss, row: SurrogateRow, terms: Tensor) -> Tensor:
    """Return the gradient of a row's trained terms, `[1, T]`. Raises `OwnFunctionError` if it is not finite."""
    summed = torch.where(row.mask, terms, 0.0).sum()
    [gradient] = torch.autograd.grad(summed, row.logprobs, retain_graph=True, materialize_grads=True)
    if not gradient.isfinite().all():
        loss.refuse(
            "has a gradient of NaN or infinity, for inputs that are finite: outside the mask inputs are 0, and a "
            "sequence may have no trained token"
        )
    return gradient


def _compute_terms(loss: OwnLoss, row: SurrogateRow) -> Tensor:
    terms, _ = _call_unchanged(loss, row)
    return terms


def _call_unchanged(function: OwnLoss | OwnEstimator, argument: Argument) -> Any:
    """Call a function. Raises `OwnFunctionError` if it changes a tensor of its argument."""
    tensors = {name: value for name, value in vars(argument).items() if isinstance(value, Tensor)}
    before = {name: value.detach().clone() for name, value in tensors.items()}
    result = function(argument)  # type: ignore[arg-type]  # each has its own kind of argument
    changed = next((name for name, value in tensors.items() if not torch.equal(value, before[name])), None)
    if changed is not None:
        function.refuse(f"changes {changed}, which it was given: return new tensors instead")
    return result


def _make_row(names: str) -> SurrogateRow:
    """Return the packed row of the dummy sequences with these names."""
    parts = [_make_sequence(name) for name in names]
    joined = {field: torch.cat([part[field] for part in parts])[None] for field in parts[0]}
    ids = torch.repeat_interleave(torch.arange(len(names)), torch.tensor([LENGTHS[name] for name in names]))[None]
    joined["logprobs"].requires_grad_()
    return SurrogateRow(**joined, sequence_ids=ids)


def _make_sequence(name: str) -> dict[str, Tensor]:
    """Return the tensors `[n]` of a dummy sequence, which only its name determines; they are 0 outside the mask."""
    generator = torch.Generator().manual_seed(ord(name))
    count = LENGTHS[name]
    logprobs = -2 * torch.rand(count, generator=generator) - 0.1
    old = logprobs + 0.2 * torch.randn(count, generator=generator)
    rollout = old + 0.05 * torch.randn(count, generator=generator)
    advantages = torch.full((count,), float(torch.randn(1, generator=generator)) + 1.0)
    mask = torch.full((count,), name != "c")
    values = {"logprobs": logprobs, "old_logprobs": old, "rollout_logprobs": rollout, "advantages": advantages}
    return {field: value.where(mask, 0.0) for field, value in values.items()} | {"mask": mask}


def _make_empty_row() -> SurrogateRow:
    """Return the row without a prediction: one token that is not trained."""
    zero = torch.zeros(1, 1)
    ids = torch.full((1, 1), -1)
    return SurrogateRow(zero.clone().requires_grad_(), zero, zero, zero, zero.bool(), ids)


def check_estimator(estimator: OwnEstimator) -> None:
    """Check an advantage function on a dummy batch of groups of different sizes.

    Raises:
        OwnFunctionError: as in `check_own_functions`.
    """
    first = _call_unchanged(estimator, _make_batch())
    second = _call_unchanged(estimator, _make_batch(absent=2))
    present = _make_batch().present
    if (second[:, : present.shape[1]] - first)[present].abs().max() > TOLERANCE * first[present].abs().max():
        estimator.refuse(
            "returned advantages that depend on samples that are not present: take means and deviations over "
            "batch.present"
        )


def _make_batch(absent: int = 0) -> RewardBatch:
    """Return a dummy batch, with this number of samples more that no group has."""
    samples = max(map(len, REWARDS)) + absent
    shape = (len(REWARDS), samples)
    rewards, present = torch.zeros(shape, dtype=torch.float64), torch.zeros(shape, dtype=torch.bool)
    lengths = torch.zeros(shape, dtype=torch.int64)
    for g, group in enumerate(REWARDS):
        rewards[g, : len(group)] = torch.tensor(group, dtype=torch.float64)
        present[g, : len(group)] = True
        lengths[g, : len(group)] = torch.arange(len(group)) + g + 1
    sampled = torch.arange(int(lengths.max())) < lengths[:, :, None]
    metadata = [[_make_metadata(g, reward) for reward in group] for g, group in enumerate(REWARDS)]
    return RewardBatch(rewards, lengths, sampled, present, metadata)


def _make_metadata(group: int, reward: float) -> dict[str, Any]:
    return {
        "prompt_id": f"dummy-{group}",
        "source": "dummy",
        "domain": "dummy",
        "metadata": {},
        "passed": reward == 1.0,
        "truncated": False,
        "rewards": {"score": reward},
    }
