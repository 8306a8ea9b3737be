"""A loss or advantage function of the user's that would train something else is refused on dummy tensors."""

import pytest
import torch

from tasks.model_check.options import CheckedOptions
from tasks.model_check.own_functions import check_own_functions
from tasks.objective.own_functions import OwnFunctionError
from tasks.objective.segments import mean_per_sequence
from tasks.recipe.run import TrainingConfig

OWN = "tests.training.own_objective."


def check(**objective):
    config = TrainingConfig.model_validate({"objective": objective})
    check_own_functions(CheckedOptions.from_config(config))


def test_functions_that_repeat_built_in_ones_pass():
    check(surrogate={"function": OWN + "ppo"}, advantage={"function": OWN + "group_mean"})
    check(advantage={"function": OWN + "rising", "options": {"start": 1}})
    check()


def gspo(row):
    """The ratio of whole sequences: a token's term depends on the others of its sequence, and on no other sequence."""
    log_ratio = row.logprobs - row.old_logprobs
    mean = mean_per_sequence(log_ratio.detach(), row.mask, row.sequence_ids)
    return (mean + row.logprobs - row.logprobs.detach()).exp() * row.advantages


def row_mean(row):
    return (row.logprobs - row.logprobs.mean().detach()) * row.advantages


def divided_by_the_row(row):
    return row.logprobs * row.advantages / row.mask.sum()


def gradient_of_the_row(row):
    mean = row.logprobs.mean()
    return row.logprobs * row.advantages + mean - mean.detach()


def one_term(row):
    return (row.logprobs * row.advantages).sum()


def constant(row):
    return row.logprobs.detach() * row.advantages


def zero_gradient(row):
    return row.logprobs * 0 * row.advantages


def nan(row):
    return (row.logprobs * row.advantages).log()


def nan_outside_the_mask(row):
    per_sequence = torch.zeros(4).index_add(0, row.sequence_ids[0].clamp(min=0), row.mask[0].float())
    weights = row.logprobs / per_sequence[row.sequence_ids.clamp(min=0)]
    return torch.where(row.mask, weights, weights / row.mask) * row.advantages


def in_place(row):
    row.advantages.clamp_(-1, 1)
    return row.logprobs * row.advantages


def no_option(row, needed):
    return row.logprobs * needed


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (row_mean, "depend on the other sequences in its row"),
        (divided_by_the_row, "depend on the other sequences in its row"),
        (gradient_of_the_row, "depend on the other sequences in its row"),
        (one_term, r"must return a term for each token, a tensor \[1, 19\], got \[\]"),
        (constant, "terms without a gradient"),
        (zero_gradient, "gradient is 0"),
        (nan, "returned NaN or infinity as a term"),
        (nan_outside_the_mask, "gradient of NaN or infinity"),
        (in_place, "changes advantages, which it was given"),
        (no_option, "raised TypeError: .*'needed'"),
    ],
)
def test_a_loss_is_refused_in_one_sentence_with_its_line(function, reason):
    name = f"{__name__}.{function.__name__}"
    with pytest.raises(OwnFunctionError, match=rf"^loss {name} .*{reason}.* \(.*, line \d+\)$"):
        check(surrogate={"function": name})


def test_a_loss_of_whole_sequences_passes():
    check(surrogate={"function": f"{__name__}.gspo"})


def standardised(batch):
    values = torch.zeros_like(batch.rewards)
    for row, rewards, present in zip(values, batch.rewards, batch.present, strict=True):
        row[present] = (rewards[present] - rewards[present].mean()) / rewards[present].std()
    return values


def mean_with_absent_samples(batch):
    return batch.rewards - batch.rewards.mean(dim=1, keepdim=True)


def present_only(batch):
    return batch.rewards[batch.present]


def shifts_in_place(batch):
    batch.rewards.sub_(1)
    return batch.rewards


def reads_what_is_not_there(batch):
    return batch.metadata[0][0]["score"]


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (standardised, r"returned NaN or infinity for a group with the rewards 0\.5, 0\.5"),
        (mean_with_absent_samples, "depend on samples that are not present"),
        (present_only, r"must return .* \[3, 3\], or for each token, \[3, 3, 5\], got \[8\]"),
        (shifts_in_place, "changes rewards, which it was given"),
        (reads_what_is_not_there, "raised KeyError: 'score'"),
    ],
)
def test_an_advantage_function_is_refused_in_one_sentence_with_its_line(function, reason):
    name = f"{__name__}.{function.__name__}"
    with pytest.raises(OwnFunctionError, match=rf"^advantage function {name} .*{reason}.* \(.*, line \d+\)$"):
        check(advantage={"function": name})


@pytest.mark.long  # it loads vLLM
def test_the_check_of_a_model_begins_with_the_functions(tmp_path):
    from tasks.model_check.check import check_model

    config = TrainingConfig.model_validate({"objective": {"surrogate": {"function": f"{__name__}.one_term"}}})
    with pytest.raises(OwnFunctionError, match="one_term"):
        check_model(tmp_path / "no-model", CheckedOptions.from_config(config))
