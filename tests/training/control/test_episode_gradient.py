"""An episode is one masked sequence to the learner: its loss and gradient against the same tokens by hand.

response   a a a | i i | b b | i i | c c        a, b, c: turns of the policy; i: inserted by the environment
trained    1 1 1   0 0   1 1   0 0   1 1
"""

import asyncio
import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tasks.generation.interface import Completion, EpisodeTurn, VersionSpan
from tasks.objective import LossInputs, policy_loss
from tasks.recipe.objective import ObjectiveConfig, ShapingConfig
from tasks.training.control.batch import advantages, responses, train_batch
from tasks.training.groups.group import Group, JudgedGroup, Stage
from tasks.training.learner.client import StepReport
from tasks.training.learner.packing import pack
from tasks.verifiers import Score
from tests.training.stand_ins import config, prompts

VERSION = 3
"""The version of the policy that takes the step; turns were sampled by this one and the two before."""
EPISODES = ([3, 2, 2], [4, 1, 3], [5])
"""Lengths of the turns of the policy; two tokens are inserted between any two."""
REWARDS = (1.0, 0.0, 0.25)
OBJECTIVE = ObjectiveConfig(
    advantage="group_mean", aggregation="token", clip_low=0.2, clip_high=0.28, correction={"kind": "tis", "max": 1.2}
)


@pytest.fixture(scope="module")
def model():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    yield LlamaForCausalLM(LlamaConfig(**sizes, num_key_value_heads=2, vocab_size=1100)).double().eval()
    torch.set_num_threads(threads)


def logprobs_of(model, ids):
    """The log-probability of each token of `ids` but the first, `[n - 1]`."""
    logits = model(torch.tensor([ids]), use_cache=False).logits[0, :-1]
    return logits.log_softmax(-1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0]


def completion(model, prompt, lengths, rng):
    """An episode of random tokens, and log-probabilities that an engine of other numerics might have reported."""
    ids, turns, versions, logprobs = [], [], [], []
    for number, length in enumerate(lengths):
        inserted = [900, 901] if number else []
        start = len(ids) + len(inserted)
        ids += [*inserted, *rng.integers(10, 800, length).tolist()]
        turns.append(EpisodeTurn(start, len(ids), "text", ()))
        versions.append(VersionSpan(VERSION - 2 + number, start, len(ids)))
    exact = logprobs_of(model, [*prompt, *ids])[len(prompt) - 1 :].detach().numpy()
    logprobs = np.zeros(len(ids), np.float32)
    for turn in turns:
        logprobs[turn.start : turn.end] = exact[turn.start : turn.end] + rng.normal(0, 0.3, turn.end - turn.start)
    return Completion("text", np.array(ids, np.int32), logprobs, "stop", versions, tuple(turns))


@pytest.fixture(scope="module")
def group(model):
    [prompt] = prompts(1)
    group = Group.create(0, prompt, len(EPISODES), sampled_at=0.0, policy_version=1)
    rng = np.random.default_rng(0)
    for sample, lengths, reward in zip(group.samples, EPISODES, REWARDS, strict=True):
        sample.completion = completion(model, prompt.token_ids, lengths, rng)
        sample.score = Score(reward, reward == 1.0, "")
        sample.stage = Stage.JUDGED
    return JudgedGroup.from_group(group, ShapingConfig(), finished_at=1.0)


def trained_of(lengths):
    """True for the tokens of the policy's turns, written down by hand."""
    first, *others = lengths
    return [True] * first + [trained for length in others for trained in [False] * 2 + [True] * length]


def by_hand(model, group):
    """Equation of `policy_loss` for a first update, on each whole sequence alone: J = 1/N sum w A r."""
    parts = [by_hand_of(model, group, index) for index in range(len(EPISODES))]
    return -sum(value for value, _ in parts) / sum(count for _, count in parts)


def by_hand_of(model, group, index):
    """The sum of `w A r` over the trained tokens of one episode, and their number."""
    episode, prompt = group.completions[index], group.prompt.token_ids
    logprobs = logprobs_of(model, [*prompt, *episode.token_ids.tolist()])[len(prompt) - 1 :]
    mask = torch.tensor(trained_of(EPISODES[index]))
    weight = (logprobs.detach() - torch.from_numpy(episode.logprobs)).exp().clamp(max=1.2)
    ratio = (logprobs - logprobs.detach()).exp()
    advantage = REWARDS[index] - sum(REWARDS) / len(REWARDS)
    return (weight * advantage * ratio)[mask].sum(), int(mask.sum())


class Steps:
    """A learner that writes down what it is to step on."""

    async def step(self, sequences, denominator, learning_rate):
        self.sequences, self.denominator = sequences, denominator
        return StepReport({"num_tokens": 1.0, "learn_seconds": 1.0})


def trained(model, group, max_tokens, share_prompts=False, objective=OBJECTIVE):
    """The loss as training computes it, in rows of at most `max_tokens`; gradients are left in the model."""
    learner = Steps()
    asyncio.run(train_batch([group], VERSION, 1e-6, learner, config(objective=objective), advantages))
    sequences, denominator = learner.sequences, learner.denominator
    total = 0.0
    for row in itertools.chain.from_iterable(pack(sequences, max_tokens, share_prompts=share_prompts)):
        logits = model(
            input_ids=torch.from_numpy(row.input_ids), position_ids=torch.from_numpy(row.position_ids), use_cache=False
        ).logits[:, row.sources[0]]
        targets = torch.from_numpy(row.targets)
        logprobs = logits.log_softmax(-1).gather(2, targets[..., None])[..., 0]
        output = policy_loss(
            LossInputs(
                logprobs=logprobs,
                old_logprobs=logprobs.detach(),
                rollout_logprobs=torch.from_numpy(row.rollout_logprobs),
                advantages=torch.from_numpy(row.advantages),
                mask=torch.from_numpy(row.mask),
                sequence_ids=torch.from_numpy(row.sequence_ids),
                sample_tokens=torch.from_numpy(row.sample_tokens),
                denominator=denominator,
            ),
            objective,
        )
        output.loss.backward()
        total += output.loss.item()
    return total


@pytest.mark.parametrize("max_tokens", [64, 16], ids=["one row", "a row each"])
def test_loss_and_gradient_of_episodes_are_those_of_the_same_tokens_masked_by_hand(model, group, max_tokens):
    model.zero_grad()
    expected = by_hand(model, group)
    expected.backward()
    gradients = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    assert trained(model, group, max_tokens) == pytest.approx(expected.item(), rel=1e-6)
    assert max(gradient.abs().max() for gradient in gradients) > 1e-3
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-5, atol=1e-8)


# The sum over the tokens of each of three samples, and the divisor of it all: J = sum_i  sum_t (...) / divisor_i
DIVISORS = {
    "token": lambda lengths: [sum(lengths)] * 3,
    "sequence": lambda lengths: [3 * length for length in lengths],
    "constant": lambda lengths: [3 * 20] * 3,
}


@pytest.mark.parametrize("max_tokens", [64, 16], ids=["one row", "a row each"])
@pytest.mark.parametrize("aggregation", DIVISORS)
def test_pieces_of_an_episode_that_was_begun_anew_are_one_sample(model, group, aggregation, max_tokens):
    """Two turns under contexts of their own share the advantage, and weigh as much as any other of three samples."""
    rng = np.random.default_rng(1)
    contexts = [None, np.array([5, 6, 7, 8], np.int32)]
    ids = rng.integers(10, 800, 7)
    bounds = [(0, 3), (3, 7)]
    turns = tuple(EpisodeTurn(*bound, "text", (), context) for bound, context in zip(bounds, contexts, strict=True))
    before = [group.prompt.token_ids if context is None else context for context in contexts]
    exact = [
        logprobs_of(model, [*map(int, context), *ids[start:end].tolist()])[start - end :]
        for (start, end), context in zip(bounds, before, strict=True)
    ]
    logprobs = torch.cat(exact).detach().numpy().astype(np.float32)
    split = Completion("text", ids.astype(np.int32), logprobs, "stop", [VersionSpan(VERSION, 0, 7)], turns)
    first, *others = group.samples
    model.zero_grad()
    objective = OBJECTIVE.model_copy(
        update={"aggregation": aggregation, "constant_length": 20 if aggregation == "constant" else None}
    )
    whole = replace(group, samples=(replace(first, completion=split), *others))
    total = trained(model, whole, max_tokens, objective=objective)
    gradients = [parameter.grad.clone() for parameter in model.parameters()]
    advantage = REWARDS[0] - sum(REWARDS) / len(REWARDS)
    parts = [by_hand_of(model, group, index) for index in (1, 2)]
    ratios = sum((logprob - logprob.detach()).exp().sum() for logprob in exact)
    sums = [advantage * ratios, *(value for value, _ in parts)]
    divisors = DIVISORS[aggregation]([7, *(count for _, count in parts)])
    expected = -sum(value / divisor for value, divisor in zip(sums, divisors, strict=True))
    model.zero_grad()
    expected.backward()
    assert total == pytest.approx(expected.item(), rel=1e-5)
    for gradient, parameter in zip(gradients, model.parameters(), strict=True):
        torch.testing.assert_close(gradient, parameter.grad, rtol=1e-4, atol=1e-7)


def test_what_the_environment_inserts_is_read_and_not_learnt(model, group):
    """Another inserted token changes what follows it, and gets no gradient of its own as a target."""
    [first, *_] = responses([group], VERSION, config(objective=OBJECTIVE))
    inserted = [position for position, is_trained in enumerate(first.mask) if not is_trained]
    assert [first.response_ids[position] for position in inserted] == [900, 901] * 2
    model.zero_grad()
    by_hand(model, group).backward()
    output, embedding = model.lm_head.weight.grad, model.model.embed_tokens.weight.grad
    assert embedding[900].abs().max() > 0
    assert output[900].abs().max() > 0  # as one that was not drawn: the softmax of every trained token holds it


def test_staleness_is_that_of_the_oldest_token_and_older_turns_can_be_masked(group):
    assert (group.first_version, group.last_version) == (VERSION - 2, VERSION)
    options = config(objective=OBJECTIVE, max_staleness=1, beyond_staleness="mask")
    masks = [sequence.mask for sequence in responses([group], VERSION, options)]
    assert masks[0] == [False] * 5 + [True] * 2 + [False] * 2 + [True] * 2
    assert masks[2] == [False] * 5
