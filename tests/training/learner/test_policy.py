"""The policy over packed rows against the Hugging Face model on one sequence at a time."""

import pytest
import torch
from torch._dynamo.utils import counters
from torch.autograd.graph import save_on_cpu
from transformers import LlamaConfig, LlamaForCausalLM

from tasks.recipe.learner import DenseAttentionError, LearnerConfig
from tasks.recipe.run import TrainingConfig
from tasks.training.learner import attention, varlen
from tasks.training.learner import policy as policy_module
from tasks.training.learner.attention import LONG, STRETCH, Copy, Layout
from tasks.training.learner.packing import Sequence, pack
from tasks.training.learner.policy import DENSE, Policy, register_attention
from tasks.training.learner.trainer import Trainer

pytestmark = pytest.mark.usefixtures("one_thread")

VOCABULARY = 61
TEMPERATURE = 0.7
ROWS = {
    "one sequence": [9],
    "shortest row": [2],
    "alike": [7, 8, 8, 6, 7],
    "many lengths": [2, 31, 3, 17, 2, 64, 5, 9, 40, 1],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A random Llama with 3 query heads to a key head."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=48,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        initializer_range=0.3,  # far from uniform, so that who attends to whom shows
        tie_word_embeddings=True,
    )
    path = tmp_path_factory.mktemp("tiny")
    LlamaForCausalLM(config).save_pretrained(path)
    return path


@pytest.fixture
def load(folder, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)

    def _load(dtype=torch.float32, gradient_checkpointing=False):
        policy = Policy.load(folder, dtype=dtype, gradient_checkpointing=gradient_checkpointing)
        assert policy.model.config._attn_implementation == attention.NAME
        return policy.train()

    return _load


def tokens(lengths, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, VOCABULARY, (n,), generator=generator) for n in lengths]


def packed(policy, sequences, mask=None):
    """Log-probabilities and entropy [T - 1]; without a mask, of all tokens but those that open a sequence."""
    row = torch.cat(sequences)[None]
    positions = torch.cat([torch.arange(len(s)) for s in sequences])[None]
    mask = positions[:, 1:] > 0 if mask is None else mask
    logprobs, entropy = policy(row, positions, torch.arange(len(row[0]) - 1)[None], row[:, 1:], mask, TEMPERATURE)
    return logprobs[0], entropy[0]


def one_by_one(folder, sequences, dtype=torch.float32):
    """The same from transformers' eager attention, with 0 for tokens that open a sequence; and its model."""
    model = LlamaForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager").train()
    logprobs, entropy = [], []
    for sequence in sequences:
        logits = model(input_ids=sequence[None], use_cache=False).logits[0, :-1].float() / TEMPERATURE
        full = logits.log_softmax(-1)
        logprobs += [torch.zeros(1), full.gather(1, sequence[1:, None])[:, 0]]
        entropy += [torch.zeros(1), -(full.exp() * full).sum(-1)]
    return torch.cat(logprobs)[1:], torch.cat(entropy)[1:], model


def gradients(model, logprobs):
    """Of a weighted sum of log-probabilities, by parameter, scaled to a global norm of 1."""
    names, parameters = zip(*model.named_parameters(), strict=True)
    (logprobs * torch.linspace(-1, 2, len(logprobs))).sum().backward()
    norm = torch.nn.utils.get_total_norm([p.grad for p in parameters])
    return {name: p.grad / norm for name, p in zip(names, parameters, strict=True)}


@pytest.mark.parametrize("lengths", ROWS.values(), ids=ROWS.keys())
@pytest.mark.parametrize("gradient_checkpointing", [False, True])
def test_a_packed_row_equals_its_sequences_alone(load, folder, lengths, gradient_checkpointing):
    check_packed_row(load, folder, lengths, gradient_checkpointing)


def test_a_long_sequence_beside_short_ones_equals_it_alone(load, folder, monkeypatch):
    monkeypatch.setattr(attention, "LONG", 16)
    check_packed_row(load, folder, [15, 40, 16, 17, 3, 2], gradient_checkpointing=False)


def check_packed_row(load, folder, lengths, gradient_checkpointing):
    policy, sequences = load(gradient_checkpointing=gradient_checkpointing), tokens(lengths)
    logprobs, entropy = packed(policy, sequences)
    expected, expected_entropy, reference = one_by_one(folder, sequences)
    torch.testing.assert_close(logprobs, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(entropy, expected_entropy, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(gradients(policy.model, logprobs), gradients(reference, expected), atol=1e-5, rtol=1e-5)


FAMILIES = {
    "one response": [(5, [4])],
    "two families": [(9, [4, 7, 1]), (30, [2, 40, 12, 13])],
    "a family beside sequences alone": [(3, [8]), (6, [5, 6]), (4, [1])],
}


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("families", FAMILIES.values(), ids=FAMILIES.keys())
@pytest.mark.parametrize("long", [LONG, 16], ids=["blocks", "long ones by themselves"])
def test_a_prompt_that_responses_share_equals_a_prompt_for_each(load, folder, monkeypatch, families, share, long):
    monkeypatch.setattr(attention, "LONG", long)
    prompts = tokens([size for size, _ in families])
    responses = iter(tokens([n for _, sizes in families for n in sizes], seed=2))
    group = [
        Sequence(prompt.tolist(), next(responses).tolist(), [-1.0] * n, 1.0)
        for prompt, (_, sizes) in zip(prompts, families, strict=True)
        for n in sizes
    ]
    [[batch]] = pack(group, 1000, share_prompts=share)
    policy = load()
    arrays = {
        name: torch.from_numpy(getattr(batch, name))
        for name in ("input_ids", "position_ids", "sources", "targets", "mask")
    }
    logprobs, entropy = (values[0] for values in policy(**arrays, temperature=TEMPERATURE))
    of_sequences = [torch.tensor(s.prompt_ids + s.response_ids) for s in group]
    alone, alone_entropy, reference = one_by_one(folder, of_sequences)
    # the row's order of responses, and of each sequence only the response
    ends = torch.tensor([len(s) for s in of_sequences]).cumsum(0).tolist()
    places = torch.tensor([
        ends[i] - len(group[i].response_ids) - 1 + k
        for i in dict.fromkeys(batch.sequence_ids[0].tolist())
        for k in range(len(group[i].response_ids))
    ])  # fmt: skip
    torch.testing.assert_close(logprobs, alone[places], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(entropy, alone_entropy[places], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(
        gradients(policy.model, logprobs), gradients(reference, alone[places]), atol=1e-5, rtol=1e-5
    )


def test_inputs_of_layers_that_wait_in_main_memory_change_nothing(folder, monkeypatch):
    moved = []

    class Counted(save_on_cpu):
        """Counts what is moved; torch copies it on a machine without a GPU, too."""

        def __init__(self, pin_memory):
            super().__init__(pin_memory)
            move = self.pack_hook
            self.pack_hook = lambda tensor: moved.append(tensor.shape) or move(tensor)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(policy_module, "save_on_cpu", Counted)
    sequences, ours = tokens(ROWS["many lengths"]), {}
    for offload in (False, True):
        policy = Policy.load(
            folder, dtype=torch.float32, gradient_checkpointing=True, offload_activations=offload
        ).train()
        logprobs, _ = packed(policy, sequences)
        ours[offload] = logprobs.detach(), gradients(policy.model, logprobs)
        assert bool(moved) == offload
    inputs = [shape for shape in moved if shape == (1, sum(ROWS["many lengths"]), 48)]
    assert 3 <= len(inputs) <= 6  # of the layers and of the last norm; what is stored while they are recomputed stays
    torch.testing.assert_close(ours[True], ours[False], atol=0, rtol=0)


@pytest.mark.parametrize(("every", "recomputed"), [(1, [0, 1, 2]), (2, [0, 2]), (3, [0])])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_recomputing_some_layers_changes_nothing(load, folder, every, recomputed, dtype):
    some = Policy.load(folder, dtype=dtype, gradient_checkpointing=True, checkpoint_every_n_layers=every).train()
    assert [i for i, layer in enumerate(some.model.model.layers) if layer.gradient_checkpointing] == recomputed
    ours, theirs = (
        (logprobs.detach(), gradients(policy.model, logprobs))
        for policy in (some, load(dtype))
        for logprobs in [packed(policy, tokens(ROWS["many lengths"]))[0]]
    )
    torch.testing.assert_close(ours, theirs, atol=0, rtol=0)


@pytest.mark.parametrize(
    ("options", "fault"),
    [({}, "gradient_checkpointing: true"), ({"gradient_checkpointing": True, "offload_activations": True}, "copies")],
)
def test_some_layers_are_recomputed_only_if_layers_are_and_nothing_is_offloaded(options, fault):
    with pytest.raises(ValueError, match=rf"learner\.checkpoint_every_n_layers = 2: .*{fault}"):
        LearnerConfig(checkpoint_every_n_layers=2, **options)


@pytest.mark.complete
def test_compiled_layers_compute_what_plain_ones_do_for_rows_of_any_length(folder, load):
    """In about a minute on a CPU: four pieces around the attention of a layer, once for all layers and rows."""
    counters.clear()
    compiled = Policy.load(folder, dtype=torch.float32, compiled=True).train()
    plain = load()
    for lengths in ([7, 6], [20, 9, 4], [33]):
        logprobs, expected = packed(compiled, tokens(lengths))[0], packed(plain, tokens(lengths))[0]
        torch.testing.assert_close(logprobs, expected, atol=1e-5, rtol=1e-5)
        ours, theirs = gradients(compiled.model, logprobs), gradients(plain.model, expected)
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
        compiled.zero_grad()
        plain.zero_grad()
    assert counters["stats"]["unique_graphs"] == 4


def test_another_sequence_changes_nothing(load):
    policy, (a, b, c) = load(), tokens([12, 9, 14])
    with torch.no_grad():
        before, _ = packed(policy, [a, b, c])
        after, _ = packed(policy, [a, b.flip(0), c])
    torch.testing.assert_close(after[:11], before[:11], atol=1e-6, rtol=0)
    torch.testing.assert_close(after[21:], before[21:], atol=1e-6, rtol=0)
    assert not torch.equal(after[12:20], before[12:20])


def test_only_masked_in_tokens_have_a_value_and_a_gradient(load):
    policy, sequences = load(), tokens([12, 9])
    everything, _ = packed(policy, sequences)
    mask = torch.zeros(1, 20, dtype=torch.bool)
    mask[0, [3, 15, 19]] = True
    some, entropy = packed(policy, sequences, mask)
    torch.testing.assert_close(some, torch.where(mask[0], everything, 0.0))
    assert not entropy.requires_grad
    assert (entropy != 0).tolist() == mask[0].tolist()


def test_bfloat16_differs_by_its_rounding(load, folder):
    sequences = tokens(ROWS["many lengths"])
    exact, _, _ = one_by_one(folder, sequences)
    eager, _, _ = one_by_one(folder, sequences, torch.bfloat16)
    ours, _ = packed(load(torch.bfloat16), sequences)
    assert (ours - exact).abs().mean() < 1.2 * (eager - exact).abs().mean()


def test_layout_gives_each_token_a_slot_and_bounds_the_waste():
    lengths = [5, 100, 3, LONG + 7, 70, 2, 101, LONG, 60]
    layout = Layout.build(torch.cat([torch.arange(n) for n in lengths])[None])
    assert len(layout.slots.unique()) == sum(lengths)
    assert sum(block.slots for block in layout.blocks) == layout.num_slots
    assert [(b.count, b.length) for b in layout.blocks] == [
        (1, LONG + 7), (1, LONG), (3, 101), (1, 60), (1, 5), (2, 3)
    ]  # fmt: skip
    assert layout.num_slots <= STRETCH * sum(lengths)


def test_layout_of_a_shared_prompt_by_hand():
    #          prompt   first   second   another sequence
    row = [0, 1, 2, 3, 4, 3, 0, 1]
    layout = Layout.build(torch.tensor([row]))
    assert [(b.start, b.count, b.length) for b in layout.blocks] == [(0, 2, 5), (10, 1, 2)]
    assert layout.slots.tolist() == [0, 1, 2, 3, 4, 5 + 3, 10, 11]
    assert layout.copies == (Copy(token=0, slot=5, count=3),)


@pytest.mark.parametrize("positions", [[[1, 2, 3]], [[0, 1], [0, 1]], [0, 1], [[0, 1, 3, 4]]])
def test_layout_refuses_what_is_not_one_packed_row(positions):
    with pytest.raises(ValueError, match="position_ids"):
        Layout.build(torch.tensor(positions))


def test_an_attention_mask_is_refused_not_ignored(load):
    policy = load()
    with pytest.raises(ValueError, match="attention_mask"):
        policy.model(
            input_ids=torch.ones(1, 4, dtype=torch.int64),
            attention_mask=torch.zeros(1, 1, 4, 4),
            layout=Layout.build(torch.arange(4)[None]),
        )


FITTING = [
    (False, torch.float32, attention.NAME),
    (True, torch.float32, DENSE),
]


@pytest.mark.parametrize(("cuda", "dtype", "expected"), FITTING)
def test_attention_fits_the_machine(folder, monkeypatch, cuda, dtype, expected):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    policy = Policy.load(folder, dtype=dtype, gradient_checkpointing=False)
    assert policy.model.config._attn_implementation == expected
    sequences = tokens(ROWS["alike"])
    torch.testing.assert_close(packed(policy, sequences)[0], one_by_one(folder, sequences)[0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("capability", "expected"), [((9, 0), varlen.NAME), ((8, 0), varlen.NAME), ((7, 5), DENSE)])
def test_attention_in_16_bits_fits_the_gpu(monkeypatch, capability, expected):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    assert register_attention(torch.bfloat16) == expected


def test_long_rows_are_refused_where_a_gpu_has_dense_masks_alone(folder, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 0)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 1)
    config = TrainingConfig(learner=LearnerConfig(dtype="float32", micro_batch_tokens=4097))
    with pytest.raises(DenseAttentionError, match=r"learner\.micro_batch_tokens = 4,097"):
        Trainer(config, str(folder))
