"""Both attentions of packed rows against eager attention on one sequence at a time: grouped heads, and windows.

The kernels of `varlen` run on GPUs alone. Here the operation behind them has an implementation for CPUs, sequence by
sequence; whether the kernels compute the same is what `make gpu-check` checks.
"""

import pytest
import torch
from torch.nn.attention.varlen import _varlen_attn, _varlen_attn_backward
from transformers import AutoModelForCausalLM, LlamaConfig, Olmo3Config

from tasks.training.learner import attention, varlen
from tasks.training.learner.policy import Policy, register_attention
from tasks.training.learner.varlen import Bounds

VOCABULARY = 61
SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "initializer_range": 0.3,  # far from uniform, so that who attends to whom shows
    "pad_token_id": None,
    "eos_token_id": None,
}
WINDOW = 7
MODELS = {
    "grouped heads": LlamaConfig(num_hidden_layers=2, **SHAPE),
    "windows": Olmo3Config(num_hidden_layers=4, sliding_window=WINDOW, **SHAPE),  # in three layers of four
}
MANY_LENGTHS = [2, 31, 3, 17, 6, 7, 8, 64, 1]


def _heads_of(query, key, value, starts):
    """Of every sequence and query head: the index of its query and output, of its key and value, and these three."""
    per_key = query.shape[1] // key.shape[1]
    for start, end in zip(starts.tolist(), starts.tolist()[1:], strict=False):
        for head in range(query.shape[1]):
            of_query, of_key = (slice(start, end), head), (slice(start, end), head // per_key)
            yield of_query, of_key, query[of_query], key[of_key], value[of_key]


def _probs(q, k, scale, window):
    before = torch.arange(len(q))[:, None] - torch.arange(len(q))
    seen = (before >= 0) & (before <= (window[0] if window[0] >= 0 else len(q)))
    return (q @ k.T * scale).masked_fill(~seen, float("-inf")).softmax(-1)


@_varlen_attn.register_kernel("cpu")
def _forward(query, key, value, starts, starts_k, longest, longest_k, is_causal, scale, window, *others):
    assert torch.equal(starts, starts_k)
    assert starts.dtype == torch.int32
    assert longest == longest_k == starts.diff().max()
    assert window[1] == 0
    assert is_causal == (window[0] == -1)
    out = torch.empty_like(query)
    for of_query, _, q, k, v in _heads_of(query, key, value, starts):
        out[of_query] = _probs(q, k, scale, window) @ v
    return out, query.new_zeros(query.shape[1], len(query)), torch.zeros(2, dtype=torch.uint64)


@_varlen_attn_backward.register_kernel("cpu")
def _backward(
    grad, query, key, value, out, lse, starts, starts_k, longest, longest_k, is_causal, state, scale=None, window=None
):
    of_q, of_k, of_v = (torch.zeros_like(side) for side in (query, key, value))
    for of_query, of_key, q, k, v in _heads_of(query, key, value, starts):
        probs, slope = _probs(q, k, scale, window), grad[of_query] @ v.T
        scores = probs * (slope - (slope * probs).sum(-1, keepdim=True)) * scale
        of_q[of_query] = scores @ k
        of_k[of_key] += scores.T @ q
        of_v[of_key] += probs.T @ grad[of_query]
    return of_q, of_k, of_v


@pytest.fixture(scope="module", params=MODELS.values(), ids=MODELS.keys())
def folder(request, tmp_path_factory):
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("tiny")
    AutoModelForCausalLM.from_config(request.param).save_pretrained(path)
    return path


@pytest.fixture(params=[attention.NAME, varlen.NAME])
def load(request, folder, monkeypatch):
    """Load the policy with each attention of packed rows."""
    register_attention(torch.float32)  # transformers knows their names from now on
    monkeypatch.setattr("tasks.training.learner.policy.register_attention", lambda dtype: request.param)

    def _load(*, gradient_checkpointing=False):
        policy = Policy.load(folder, dtype=torch.float32, gradient_checkpointing=gradient_checkpointing).train()
        assert policy.model.config._attn_implementation == request.param
        return policy

    return _load


def tokens(lengths, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, VOCABULARY, (n,), generator=generator) for n in lengths]


def packed(policy, sequences):
    row = torch.cat(sequences)[None]
    positions = torch.cat([torch.arange(len(s)) for s in sequences])[None]
    sources = torch.arange(len(row[0]) - 1)[None]
    return policy(row, positions, sources, row[:, 1:], positions[:, 1:] > 0, 1.0)[0][0]


def eager(folder, sequences):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").train()
    logprobs = []
    for sequence in sequences:
        full = model(input_ids=sequence[None], use_cache=False).logits[0, :-1].log_softmax(-1)
        logprobs += [torch.zeros(1), full.gather(1, sequence[1:, None])[:, 0]]
    return torch.cat(logprobs)[1:], model


def gradients(model, logprobs):
    """Of a weighted sum of log-probabilities, by parameter, scaled to a global norm of 1."""
    names, parameters = zip(*model.named_parameters(), strict=True)
    found = torch.autograd.grad((logprobs * torch.linspace(-1, 2, len(logprobs))).sum(), parameters)
    norm = torch.nn.utils.get_total_norm(found)
    return {name: grad / norm for name, grad in zip(names, found, strict=True)}


@pytest.mark.parametrize(
    ("long", "lengths"),
    [
        pytest.param(16, MANY_LENGTHS, id="long ones by themselves"),
        pytest.param(attention.LONG, MANY_LENGTHS, id="blocks", marks=pytest.mark.complete),
        pytest.param(attention.LONG, [29], id="one sequence", marks=pytest.mark.complete),
        pytest.param(attention.LONG, [2], id="shortest row", marks=pytest.mark.complete),
    ],
)
def test_a_packed_row_equals_its_sequences_alone(load, folder, monkeypatch, lengths, long):
    monkeypatch.setattr(attention, "LONG", long)
    policy, sequences = load(), tokens(lengths)
    ours, (expected, reference) = packed(policy, sequences), eager(folder, sequences)
    torch.testing.assert_close(ours, expected, atol=2e-5, rtol=1e-5)
    torch.testing.assert_close(gradients(policy.model, ours), gradients(reference, expected), atol=1e-5, rtol=1e-5)


@pytest.mark.complete
def test_recomputed_activations_change_nothing(load):
    sequences = tokens(MANY_LENGTHS)
    values = []
    for gradient_checkpointing in (False, True):
        policy = load(gradient_checkpointing=gradient_checkpointing)
        logprobs = packed(policy, sequences)
        logprobs.sum().backward()
        values.append([logprobs.detach(), *(parameter.grad for parameter in policy.parameters())])
    torch.testing.assert_close(*values)


def test_a_token_further_away_than_the_window_is_not_attended_to():
    torch.manual_seed(0)
    query, key, value = (torch.randn(1, heads, 20, 8) for heads in (4, 2, 2))
    positions = torch.arange(20)[None]
    changed = value.clone()
    changed[:, :, 5] += 1
    for function, layout in (
        (attention.packed_attention, attention.Layout.build(positions)),
        (varlen.varlen_attention, Bounds.build(positions)),
    ):
        before, after = (
            function(torch.nn.Module(), query, key, v, None, layout=layout, scaling=0.3, sliding_window=WINDOW)[0]
            for v in (value, changed)
        )
        differs = (before != after).any(dim=-1).any(dim=-1)[0].nonzero()[:, 0]
        assert differs.tolist() == list(range(5, 5 + WINDOW))


def test_bounds_by_hand():
    bounds = Bounds.build(torch.tensor([[0, 1, 2, 0, 0, 1]]))
    assert bounds.ends.tolist() == [0, 3, 4, 6]
    assert bounds.ends.dtype == torch.int32
    assert bounds.longest == 3


@pytest.mark.parametrize("positions", [[[1, 2, 3]], [[0, 1], [0, 1]], [0, 1], [[0, 1, 3, 4]], [[0, 1, 2, 1]]])
def test_bounds_refuse_what_is_not_a_row_of_whole_sequences(positions):
    with pytest.raises(ValueError, match="position_ids"):
        Bounds.build(torch.tensor(positions))


def test_rows_of_varlen_hold_whole_sequences(load):
    policy = load()
    assert policy.shares_prompts == (policy.model.config._attn_implementation == attention.NAME)


@pytest.mark.parametrize("variant", [{"softcap": 30.0}, {"s_aux": torch.zeros(4)}, {"dropout": 0.1}])
def test_variants_are_refused_not_ignored(variant):
    query = torch.zeros(1, 4, 3, 8)
    with pytest.raises(ValueError, match=next(iter(variant))):
        varlen.varlen_attention(
            torch.nn.Module(),
            query,
            query,
            query,
            None,
            layout=Bounds.build(torch.arange(3)[None]),
            scaling=1,
            **variant,
        )
