"""A loss or an advantage function that cannot be used ends the run with one sentence that has its name and its line."""

import importlib
import os
from dataclasses import replace

import pytest
import torch

from tasks.objective.own_functions import OwnEstimator, OwnFunctionError, load_own_loss
from tasks.recipe.own import OwnAdvantage, OwnSurrogate, RewardBatch, SurrogateRow
from tasks.verifiers.functions import compute_function_digest

LOSSES = """
import torch

def right(row):
    return row.logprobs * row.advantages

def mean(row):
    return (row.logprobs * row.advantages).mean()

def no_tensor(row):
    return 1.0

def detached(row):
    return row.logprobs.detach() * row.advantages

def nan(row):
    return (row.logprobs * 0).log() * row.advantages * 0

def raises(row):
    return row.ratio * row.advantages

def list_of_metrics(row):
    return row.logprobs, [row.mask]

def averaged_metric(row):
    return row.logprobs, {"kept": row.mask.float().mean()}

def sometimes(row):
    return row.logprobs, {"kept": row.mask} if row.advantages[0, 0] > 0 else {}

def full(row):
    raise torch.OutOfMemoryError("full")

not_one = 3
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A function that writes a module of the user's in the working directory and returns its name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    count = iter(range(100))

    def write(text, name=None):
        name = name or f"objective_{os.getpid()}_{tmp_path.name.replace('-', '_')}_{next(count)}"
        (tmp_path / f"{name}.py").write_text(text)
        importlib.invalidate_caches()
        return name

    return write


def row():
    logprobs = torch.tensor([[-1.0, -2.0, -0.5]], requires_grad=True)
    same, mask = logprobs.detach(), torch.tensor([[True, True, False]])
    return SurrogateRow(logprobs, same, same, torch.ones(1, 3), mask, torch.tensor([[0, 0, 1]]))


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        ("mean", r"must return a term for each token, a tensor \[1, 3\], got \[\] \(.*\.py, line 7\)$"),
        ("no_tensor", r"must return a term for each token, a tensor \[1, 3\], got 1\.0"),
        ("detached", r"returned terms without a gradient: .* \(.*\.py, line 13\)$"),
        ("nan", r"returned NaN or infinity as a term for each token"),
        ("raises", r"raised AttributeError: .*'ratio' \(.*\.py, line 20\)$"),
        ("list_of_metrics", r"must return metrics as a dict"),
        ("averaged_metric", r"must return a value of the metric 'kept' for each token, a tensor \[1, 3\], got \[\]"),
    ],
)
def test_a_loss_that_training_cannot_use_is_named_with_its_line(module, function, sentence):
    name = module(LOSSES)
    with pytest.raises(OwnFunctionError, match=rf"^loss {name}\.{function} {sentence}"):
        load_own_loss(OwnSurrogate(function=f"{name}.{function}"))(row())


def test_what_is_not_the_functions_fault_is_not_put_down_to_it(module):
    name = module(LOSSES)
    with pytest.raises(torch.OutOfMemoryError):
        load_own_loss(OwnSurrogate(function=f"{name}.full"))(row())
    given = row()
    nan = replace(given, logprobs=given.logprobs * torch.nan)  # the learner skips such a step
    terms, _ = load_own_loss(OwnSurrogate(function=f"{name}.right"))(nan)
    assert terms.isnan().all()
    assert load_own_loss("ppo") is None


def test_every_micro_batch_must_have_the_same_metrics(module):
    name, given = module(LOSSES), row()
    loss = load_own_loss(OwnSurrogate(function=f"{name}.sometimes"))
    assert loss(given)[1].keys() == {"kept"}
    with pytest.raises(OwnFunctionError, match=r"the same metrics in every call, got \[\] after \['kept'\]"):
        loss(replace(given, advantages=-given.advantages))


def test_a_function_that_cannot_be_loaded_is_named(module):
    name = module(LOSSES)
    cases = {
        "nowhere.loss": r"nowhere\.loss: there is no module nowhere in ",
        f"{name}.absent": r"absent cannot be imported: AttributeError",
        f"{name}.not_one": r"not_one is of type int, not a function",
        f"{module('def loss(row: 1')}.loss": r"cannot be imported: SyntaxError: .*line 1\)",
    }
    for function, sentence in cases.items():
        with pytest.raises(OwnFunctionError, match=sentence):
            load_own_loss(OwnSurrogate(function=function))


def test_code_that_changed_since_the_check_is_refused_and_later_runs_take_the_new_one(module):
    name = module("def loss(row): return row.logprobs")
    digest = compute_function_digest(f"{name}.loss")
    option = OwnSurrogate(function=f"{name}.loss", fingerprint=digest)
    assert torch.equal(load_own_loss(option)(row())[0], row().logprobs)
    module("def loss(row): return 2 * row.logprobs", name)
    with pytest.raises(OwnFunctionError, match=r"has changed since the run was checked: start the run again"):
        load_own_loss(option)
    again = OwnSurrogate(function=f"{name}.loss", fingerprint=compute_function_digest(f"{name}.loss"))
    assert torch.equal(load_own_loss(again)(row())[0], 2 * row().logprobs)


ADVANTAGES = """
def right(batch): return batch.rewards
def by_token(batch): return batch.rewards[:, :, None] * batch.sampled
def one(batch): return batch.rewards.mean()
def a_list(batch): return batch.rewards.tolist()
def nan(batch): return (batch.rewards / 0).where(batch.present, 0)
def absent_nan(batch): return batch.rewards.where(batch.present, float("nan"))
def raises(batch): return batch.reward
"""


def batch():
    rewards = torch.tensor([[1.0, 0.0], [0.5, 0.0]], dtype=torch.float64)
    lengths, present = torch.tensor([[2, 3], [1, 0]]), torch.tensor([[True, True], [True, False]])
    sampled = torch.arange(3) < lengths[:, :, None]
    return RewardBatch(rewards, lengths, sampled, present, [[{}, {}], [{}]])


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (
            "one",
            r"must return an advantage for each response, a tensor \[2, 2\], or for each token, \[2, 2, 3\], got \[\]",
        ),
        ("a_list", r"must return an advantage .* got \[\[1\.0, 0\.0\]"),
        ("nan", r"returned NaN or infinity for a group with the rewards 1, 0 \(.*\.py, line 6\)$"),
        ("raises", r"raised AttributeError: .*'reward' \(.*\.py, line 8\)$"),
    ],
)
def test_an_advantage_function_that_training_cannot_use_is_named_with_its_line(module, function, sentence):
    name = module(ADVANTAGES)
    with pytest.raises(OwnFunctionError, match=rf"^advantage function {name}\.{function} {sentence}"):
        OwnEstimator(OwnAdvantage(function=f"{name}.{function}"))(batch())


def test_both_shapes_of_advantages_are_accepted(module):
    name, given = module(ADVANTAGES), batch()
    for function, shape in (("right", [2, 2]), ("by_token", [2, 2, 3]), ("absent_nan", [2, 2])):
        values = OwnEstimator(OwnAdvantage(function=f"{name}.{function}"))(given)
        assert (list(values.shape), values.dtype) == (shape, torch.float64)
