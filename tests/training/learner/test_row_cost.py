"""The operations of packed rows, by hand and as torch counts them, and the balance between ranks by them."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from tasks.sizing.roofline import KNOWN, Architecture
from tasks.training.learner.packing import Sequence, pack
from tasks.training.learner.policy import Policy
from tasks.training.learner.row_cost import TOKENS, RowCost

pytestmark = pytest.mark.usefixtures("one_thread")

SHAPE = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
}
MIXED = {**SHAPE, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
TINY = Architecture(2, 4, 8, 2, 1, 2, 10, window=3, full_layers=1)


def sequence(prompt, response, start=0):
    ids = np.arange(start, start + prompt + response)
    return Sequence(ids[:prompt].tolist(), ids[prompt:], np.zeros(response, np.float32), 1.0)


def costs(cost, shares):
    """The cost `[ranks, rows]` of rows without shared prompts."""

    def of(row):
        starts = [*np.flatnonzero(row.position_ids[0] == 0), row.num_tokens]
        trained = int((row.sequence_ids >= 0).sum())
        return sum(cost.compute_prompt_cost(int(end - start)) for start, end in itertools.pairwise(starts)) + (
            cost.prediction * trained
        )

    return np.array([[of(row) for row in share] for share in shares])


def is_one_sequence(row):
    return len(set(row.sequence_ids[0].tolist())) == 1


def waited(cost, shares):
    """What a step of sharded ranks costs, as the largest row of each turn: over that of perfect balance."""
    by_rank = costs(cost, shares)
    return by_rank.max(axis=0).sum() / by_rank.mean(axis=0).sum()


def test_the_cost_of_a_response_by_hand():
    layer = 4 * 4 + 2 * 4 * 2 + 4 * 4 + 2 * 4 + 3 * 4 * 8  # q, k and v, o, two norms, the MLP
    cost = RowCost.from_shape(TINY)
    pair = 4 * 2 * 2  # two products of two heads of two numbers, an addition to each multiplication
    assert cost == RowCost(2 * (2 * layer + 4), 2 * 10 * 4, pair, pair, 3)
    # the prompt's tokens attend to 1, 2, 3, 4 tokens, and to 1, 2, 3, 3 in the window
    assert cost.compute_prompt_cost(4) == 4 * cost.token + pair * (10 + 9)
    # the response's to 5 and 6, and to 3 and 3
    assert cost.compute_response_cost(4, 2) == 2 * (cost.token + cost.prediction) + pair * (11 + 6)


@pytest.mark.parametrize("name", ["Olmo-3-32B", "Qwen2.5-1.5B", "Qwen3-30B-A3B"])
def test_the_cost_is_what_forward_flops_counts_token_by_token(name):
    shape, lengths = KNOWN[name], (4000, 3000)
    counted = sum(shape.forward_flops(before) for before in range(1, sum(lengths) + 1))
    embedding = sum(lengths) * 2 * shape.embedding_parameters
    cost = RowCost.from_shape(shape)
    unread = lengths[0] * cost.prediction  # the head is computed for a response alone
    known = cost.compute_prompt_cost(lengths[0]) + cost.compute_response_cost(*lengths)
    assert known == counted - unread - (0 if shape.tied else embedding)


@pytest.mark.parametrize(
    ("kind", "config"),
    [(Qwen2ForCausalLM, Qwen2Config(**SHAPE)), (Qwen3MoeForCausalLM, Qwen3MoeConfig(**MIXED))],
    ids=["dense", "mixture"],
)
def test_the_cost_is_what_torch_counts(kind, config, tmp_path):
    kind(config).save_pretrained(tmp_path)
    policy = Policy.load(tmp_path, dtype=torch.float32)
    policy.model.set_experts_implementation("eager")  # torch does not count grouped products
    lengths = [(3, 40), (5, 9)]  # too different for one block of attention, which would have padding
    [[row]] = pack([sequence(*pair) for pair in lengths], 100)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        policy(
            *(torch.from_numpy(getattr(row, name)) for name in ("input_ids", "position_ids", "sources", "targets")),
            torch.from_numpy(row.mask),
            1.0,
        )
    cost = policy.rows["cost"]
    known = sum(
        cost.compute_prompt_cost(prompt) + cost.compute_response_cost(prompt, length) for prompt, length in lengths
    )
    # the attention of a block computes the scores after a token too, before its mask removes them
    masked = cost.pair * sum(n * n - n * (n + 1) // 2 for n in map(sum, lengths))
    # norms and biases are not products, and torch does not count them
    vectors = sum(p.numel() for p in policy.parameters() if p.ndim == 1)
    assert counter.get_total_flops() == known + masked - 2 * row.num_tokens * vectors


def test_a_model_of_unknown_shape_costs_as_much_as_its_tokens():
    assert RowCost.from_config({"model_type": "gpt2", "n_layer": 3}) == TOKENS
    assert RowCost.from_config({**SHAPE, "intermediate_size": [48, 48, 48]}) == TOKENS
    assert TOKENS.compute_prompt_cost(5) + TOKENS.compute_response_cost(5, 3) == 8


def test_a_long_sequence_runs_with_the_other_long_one():
    """Two of 20,000 tokens, and twice eight of 2,500, in rows that are full with either."""
    cost = RowCost.from_shape(KNOWN["Qwen2.5-32B"])
    given = [sequence(1, 20_000), *[sequence(1, 2505)] * 8, sequence(1, 20_100), *[sequence(1, 2501)] * 8]
    attention = 4 * 64 * 40 * 128  # two products of 40 heads of 128 numbers in 64 layers
    long, short = (n * cost.token + attention * n * (n + 1) // 2 for n in (20_001, 2502))
    assert cost.compute_prompt_cost(20_001) == long
    assert cost.compute_prompt_cost(2502) == short
    assert 1.17 < long / (8 * short) < 1.18
    by_tokens, by_cost = (pack(given, 20_480, ranks=2, cost=c) for c in (TOKENS, cost))
    assert [[is_one_sequence(row) for row in share] for share in by_tokens] == [[True, True], [False, False]]
    assert [[is_one_sequence(row) for row in share] for share in by_cost] == [[True, False], [True, False]]
    assert waited(cost, by_tokens) > 1.08
    assert waited(cost, by_cost) < 1.005


def test_sequences_are_distributed_almost_as_well_as_possible():
    """Against every way to distribute them over the ranks: within Graham's bound (1969) of 4/3 - 1/3m."""
    rng = np.random.default_rng(0)
    cost = RowCost.from_shape(KNOWN["Qwen2.5-1.5B"])
    for ranks in (2, 3):
        lengths = rng.lognormal(9, 1, 7).astype(int).tolist()
        units = [cost.compute_prompt_cost(10) + cost.compute_response_cost(10, n) for n in lengths]
        ways = itertools.product(range(ranks), repeat=len(units))
        best = min(
            max(sum(u for u, at in zip(units, way, strict=True) if at == r) for r in range(ranks)) for way in ways
        )
        shares = pack([sequence(10, n) for n in lengths], 10**6, ranks=ranks, cost=cost)
        assert best <= costs(cost, shares).max() <= (4 / 3 - 1 / (3 * ranks)) * best


def test_no_other_way_to_deal_makes_ranks_wait_less():
    """Against every way to let the rows of two ranks run in pairs."""
    rng = np.random.default_rng(0)
    cost = RowCost.from_shape(KNOWN["Qwen2.5-1.5B"])
    given = [sequence(10, int(n)) for n in rng.integers(4000, 8000, 6)]
    dealt = costs(cost, pack(given, 8010, ranks=2, cost=cost))
    orders = itertools.permutations(dealt.ravel().tolist(), 6)
    assert dealt.shape == (2, 3)
    assert dealt.max(axis=0).sum() == min(max(a, b) + max(c, d) + max(e, f) for a, b, c, d, e, f in orders)


@pytest.mark.parametrize("ranks", [2, 8, 64])
@pytest.mark.parametrize("name", ["Olmo-3-32B", "Qwen2.5-1.5B"])
def test_ranks_wait_less_than_if_rows_are_balanced_by_tokens(name, ranks):
    """Long-tailed lengths, as reasoning models have: most short, a few at the limit. A token stands for 16."""
    lengths = np.minimum(np.random.default_rng(0).lognormal(np.log(3000), 0.8, 1024), 24_000).astype(int) // 16
    model = RowCost.from_shape(KNOWN[name])
    cost = replace(model, pair=16 * model.pair, windowed_pair=16 * model.windowed_pair, window=model.window // 16)
    given = [sequence(12, int(n)) for n in lengths]
    by_tokens, by_cost = (waited(cost, pack(given, 35_840 // 16, ranks=ranks, cost=c)) for c in (TOKENS, cost))
    assert by_cost - 1 < 0.5 * (by_tokens - 1)


def test_a_shared_prompt_counts_once():
    """Three responses to a prompt of 90 tokens cost 120, less than the sequence of 200 tokens."""
    family = [Sequence([1] * 90, [i] * 10, [-1.0] * 10, 1.0) for i in range(3)]
    shares = pack([*family, sequence(1, 199), sequence(2, 18)], 320, ranks=2, share_prompts=True, cost=RowCost(token=1))
    assert [[row.num_tokens for row in share] for share in shares] == [[200], [90 + 30 + 20]]
