import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM

from tasks.objective import LossInputs, policy_loss
from tasks.recipe.objective import ObjectiveConfig
from tasks.training.learner.packing import MicroBatch, Sequence, pack
from tests.examples import examples

PROPERTY = settings(deadline=None, max_examples=examples(100), derandomize=True)


def sequence(prompt, response, start=0, advantage=1.0, mask=None):
    """Token ids, logprobs and all are told apart by `start`."""
    ids = list(range(start, start + prompt + response))
    return Sequence(ids[:prompt], ids[prompt:], [-0.01 * i for i in ids[prompt:]], advantage, mask)


def sequences(sizes):
    return [sequence(p, r, start=100 * i, advantage=i + 0.5) for i, (p, r) in enumerate(sizes)]


def flat(shares) -> list[MicroBatch]:
    return [batch for share in shares for batch in share]


def test_a_row_by_hand():
    [[batch]] = pack([sequence(2, 2, start=10, advantage=0.5), sequence(1, 2, start=20, mask=[True, False])], 8)
    assert batch.input_ids.tolist() == [[10, 11, 12, 13, 20, 21, 22]]
    assert batch.position_ids.tolist() == [[0, 1, 2, 3, 0, 1, 2]]
    # from here on, an entry for each response token
    assert batch.sources.tolist() == [[1, 2, 4, 5]]
    assert batch.targets.tolist() == [[12, 13, 21, 22]]
    assert batch.sequence_ids.tolist() == [[0, 0, 1, 1]]
    assert batch.mask.tolist() == [[True, True, True, False]]
    assert batch.advantages.tolist() == [[0.5, 0.5, 1.0, 0]]
    np.testing.assert_allclose(batch.rollout_logprobs, [[-0.12, -0.13, -0.21, 0]], rtol=1e-6)


def test_a_shared_prompt_by_hand():
    prompt = [7, 8, 9]
    group = [Sequence(prompt, ids, [-0.1] * len(ids), 1.0) for ids in ([20], [30, 31, 32], [])]
    other = sequence(2, 2, start=10)
    [[batch]] = pack([group[0], other, *group[1:]], 16, share_prompts=True)
    # the family first, being the larger; its longest response first, and the empty one leaves no trace
    assert batch.input_ids.tolist() == [[7, 8, 9, 30, 31, 32, 20, 10, 11, 12, 13]]
    assert batch.position_ids.tolist() == [[0, 1, 2, 3, 4, 5, 3, 0, 1, 2, 3]]
    # each response's first token is predicted at the end of the prompt
    assert batch.sources.tolist() == [[2, 3, 4, 2, 8, 9]]
    assert batch.targets.tolist() == [[30, 31, 32, 20, 12, 13]]
    assert batch.sequence_ids.tolist() == [[2, 2, 2, 0, 1, 1]]


def test_a_family_that_does_not_fit_into_a_row_brings_its_prompt_into_each():
    family = [Sequence([1, 2, 3], [10 + i] * 4, [-1.0] * 4, 1.0) for i in range(3)]
    rows = flat(pack(family, 12, share_prompts=True))
    assert [row.num_tokens for row in rows] == [3 + 4 + 4, 3 + 4]


def test_halving_a_row_for_the_ranks_keeps_families_together():
    families = [[Sequence([f, f, f], [i] * 2, [-1.0] * 2, 1.0) for i in range(4)] for f in (1, 2)]
    shares = pack([s for pair in zip(*families, strict=True) for s in pair], 64, ranks=2, share_prompts=True)
    assert [[row.num_tokens for row in share] for share in shares] == [[3 + 8], [3 + 8]]


def test_rows_are_filled_longest_first():
    lengths = [3, 6, 4, 5, 2]
    batches = flat(pack(sequences([(1, n - 1) for n in lengths]), 10))
    assert sorted(batch.num_tokens for batch in batches) == [10, 10]


def test_four_sequences_over_two_ranks_share_the_tokens():
    shares = pack(sequences([(1, 4)] * 4), 100, ranks=2)
    assert [[batch.num_tokens for batch in share] for share in shares] == [[10], [10]]


def test_more_ranks_than_sequences_get_fillers_that_can_run_but_train_nothing():
    shares = pack(sequences([(1, 4), (1, 2)]), 100, ranks=3)
    assert [len(share) for share in shares] == [1, 1, 1]
    filler = min(flat(shares), key=lambda batch: batch.num_tokens)
    assert filler.num_tokens == 1
    assert not filler.mask.any()
    assert filler.sequence_ids.tolist() == [[-1]]


@PROPERTY
@given(
    sizes=st.lists(st.tuples(st.integers(1, 20), st.integers(0, 30)), min_size=1, max_size=40),
    slack=st.integers(0, 60),
    ranks=st.integers(1, 5),
    share=st.booleans(),
)
def test_every_sequence_is_packed_exactly_once_within_the_bound(sizes, slack, ranks, share):
    # one start for all: prompts of equal length are equal, and shared where that is asked for
    given_sequences = [sequence(p, r, advantage=i + 0.5) for i, (p, r) in enumerate(sizes)]
    max_tokens = max(p + r for p, r in sizes) + slack
    shares = pack(given_sequences, max_tokens, ranks=ranks, share_prompts=share)
    assert len(shares) == ranks
    assert len({len(row) for row in shares}) == 1
    owners = []
    for batch in flat(shares):
        assert batch.num_tokens <= max_tokens
        for owner in set(batch.sequence_ids[0].tolist()) - {-1}:
            own = batch.sequence_ids[0] == owner
            original = given_sequences[owner]
            assert seen_by(batch, batch.sources[0, own][-1]) == original.prompt_ids + original.response_ids[:-1]
            assert batch.targets[0, own].tolist() == original.response_ids
            assert batch.mask[0, own].all()
            assert (batch.advantages[0, own] == original.advantage).all()
            np.testing.assert_allclose(batch.rollout_logprobs[0, own], original.rollout_logprobs, rtol=1e-6)
            owners.append(owner)
    assert sorted(owners) == [i for i, (_, r) in enumerate(sizes) if r > 0]
    assert sum(batch.mask.sum() for batch in flat(shares)) == sum(s.num_trained for s in given_sequences)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_model_that_carries_state_gets_one_sequence_a_row(ranks):
    family = [sequence(4, n) for n in (3, 1, 7)]
    rows = [batch for batch in flat(pack(family, 64, ranks=ranks, share_prompts=True, alone=True)) if batch.mask.any()]
    assert sorted(batch.num_tokens for batch in rows) == [5, 7, 11]


def seen_by(batch, position):
    """The tokens that the one at `position` of a row attends to, itself included, by the rule of `position_ids`."""
    ids, positions = batch.input_ids[0].tolist(), batch.position_ids[0].tolist()
    begin = position
    while positions[begin] and positions[begin] == positions[begin - 1] + 1:
        begin -= 1
    root = max(i for i in range(begin + 1) if positions[i] == 0)
    shared = ids[root : root + positions[begin]] if positions[begin] else []
    return shared + ids[begin : position + 1]


def test_the_same_input_gives_the_same_batches():
    given_sequences = sequences([(3, n % 7 + 1) for n in range(30)])
    first, second = (pack(given_sequences, 32, ranks=2) for _ in range(2))
    assert [b.input_ids.tolist() for b in flat(first)] == [b.input_ids.tolist() for b in flat(second)]


def test_ranks_carry_similar_loads():
    rng = np.random.default_rng(0)
    shares = pack(sequences([(20, int(n)) for n in rng.integers(1, 200, 100)]), 512, ranks=4)
    loads = [sum(batch.num_tokens for batch in share) for share in shares]
    assert max(loads) < 1.1 * min(loads)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: pack([sequence(5, 6)], 10), "sequence 0 has 11 tokens, more than max_tokens = 10"),
        (lambda: pack([], 10), "no sequences"),
        (lambda: pack([sequence(1, 1)], 10, ranks=0), "ranks must be at least 1, got 0"),
        (lambda: Sequence([], [1], [-1.0], 1.0), "prompt_ids is empty"),
        (lambda: Sequence([1], [1, 2], [-1.0], 1.0), "rollout_logprobs has 1 entries for 2 response_ids"),
        (lambda: Sequence([1], [1], [-1.0], 1.0, old_logprobs=[]), "old_logprobs has 0 entries for 1 response_ids"),
        (
            lambda: pack([Sequence([1], [1], [-1.0], 1.0), Sequence([1], [1], [-1.0], 1.0, old_logprobs=[-1.0])], 8),
            "all have old_logprobs or none has",
        ),
        (lambda: Sequence([1], [1], [-1.0], 1.0, [True, False]), "mask has 2 entries for 1 response_ids"),
    ],
)
def test_what_cannot_be_packed_is_refused_with_its_numbers(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.fixture(scope="module", params=["sdpa", "eager"])
def model(request):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=400,
        attn_implementation=request.param,
    )
    yield LlamaForCausalLM(config).eval()
    torch.set_num_threads(threads)


def logprobs_of(model, input_ids, position_ids, sources, targets):
    logits = model(input_ids=input_ids, position_ids=position_ids, use_cache=False).logits[:, sources[0]]
    return logits.log_softmax(-1).gather(2, targets[..., None])[..., 0]


def test_a_packed_row_gives_the_logits_of_its_sequences_alone(model):
    given_sequences = sequences([(3, 5), (1, 1), (7, 2)])
    [[batch]] = pack(given_sequences, 64)
    with torch.no_grad():
        together = model(
            input_ids=torch.from_numpy(batch.input_ids),
            position_ids=torch.from_numpy(batch.position_ids),
            use_cache=False,
        ).logits[0]
        for i, s in enumerate(given_sequences):
            alone = model(input_ids=torch.tensor([s.prompt_ids + s.response_ids])).logits[0]
            sources = batch.sources[0, batch.sequence_ids[0] == i]
            torch.testing.assert_close(together[sources], alone[len(s.prompt_ids) - 1 : -1], rtol=0, atol=1e-5)


@pytest.mark.parametrize("aggregation", ["token", "sequence"])
def test_packed_training_gives_the_gradients_of_one_sequence_at_a_time(model, aggregation):
    given_sequences = sequences([(3, 5), (1, 2), (2, 3), (2, 4)])
    config = ObjectiveConfig(aggregation=aggregation)
    count = config.denominator(s.num_trained for s in given_sequences)

    def gradients(max_tokens):
        model.zero_grad()
        for batch in flat(pack(given_sequences, max_tokens)):
            names = ("input_ids", "position_ids", "sources", "targets")
            logprobs = logprobs_of(model, *(torch.from_numpy(getattr(batch, name)) for name in names))
            inputs = LossInputs(
                logprobs=logprobs,
                old_logprobs=logprobs.detach(),
                rollout_logprobs=torch.from_numpy(batch.rollout_logprobs),
                advantages=torch.from_numpy(batch.advantages),
                mask=torch.from_numpy(batch.mask),
                sequence_ids=torch.from_numpy(batch.sequence_ids),
                denominator=count,
            )
            policy_loss(inputs, config).loss.backward()
        return [p.grad.clone() for p in model.parameters()]

    one_row, row_each = gradients(max_tokens=64), gradients(max_tokens=8)
    for packed_grad, alone in zip(one_row, row_each, strict=True):
        # float32 sums in another order
        torch.testing.assert_close(packed_grad, alone, rtol=1e-4, atol=1e-6)
