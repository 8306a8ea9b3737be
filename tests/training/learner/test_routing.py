"""Routes that are given to the learner, against the model's own choice and against a forward pass by hand."""

import numpy as np
import pytest
import torch
from transformers import (
    FlexOlmoConfig,
    LlamaConfig,
    LlamaForCausalLM,
    OlmoeConfig,
    Qwen2MoeConfig,
    Qwen3MoeConfig,
)
from transformers.models.auto.modeling_auto import AutoModelForCausalLM

from tasks.storage.model_folder import ModelError
from tasks.training.learner.packing import Sequence, pack
from tasks.training.learner.policy import Policy

pytestmark = pytest.mark.usefixtures("one_thread")

EXPERTS, CHOSEN, LAYERS = 6, 2, 3
SHAPE = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 24,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_experts": EXPERTS,
    "num_experts_per_tok": CHOSEN,
    "initializer_range": 0.3,  # routers far from uniform
    "pad_token_id": 0,
    "eos_token_id": 1,
}
QWEN = {**SHAPE, "moe_intermediate_size": 24, "head_dim": 8, "mlp_only_layers": [0]}
"""The first layer has no experts."""
CONFIGS = {
    "qwen3_moe": Qwen3MoeConfig(**QWEN, norm_topk_prob=True),
    "qwen3_moe, not normalised": Qwen3MoeConfig(**QWEN, norm_topk_prob=False),
    "qwen2_moe": Qwen2MoeConfig(**QWEN, shared_expert_intermediate_size=16),
    "olmoe": OlmoeConfig(**SHAPE),
    "flex_olmo": FlexOlmoConfig(**SHAPE),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("mixtures")
    for name, config in CONFIGS.items():
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(config).save_pretrained(root / name)
    return {name: root / name for name in CONFIGS}


@pytest.fixture
def load(folders):
    def _load(name="qwen3_moe", dtype=torch.float32, **options):
        return Policy.load(folders[name], dtype=dtype, replays_routes=True, **options).train()

    return _load


def sequence(prompt, response, seed, routes=False):
    draw = np.random.default_rng(seed)
    ids = draw.integers(2, 61, prompt + response)
    # k different experts for each token and layer, of all but the last token, as vLLM reports them
    known = draw.random((prompt + response - 1, LAYERS, EXPERTS)).argsort(-1)[..., :CHOSEN].astype(np.uint8)
    return Sequence(ids[:prompt].tolist(), ids[prompt:], [-1.0] * response, 1.0, routes=known if routes else None)


def row_of(*given):
    [[row]] = pack(list(given), 1000)
    return row


def computed(policy, row, routes=None):
    """Log-probabilities `[N]`, and the gradients of a sum of theirs by parameter."""
    names = ("input_ids", "position_ids", "sources", "targets", "mask")
    logprobs, _ = policy(*(torch.from_numpy(getattr(row, name)) for name in names), 1.0, routes=routes)
    policy.zero_grad()
    (logprobs[0] * torch.linspace(0.5, 1.5, logprobs.shape[1])).sum().backward()
    return logprobs[0].detach(), {n: p.grad.clone() for n, p in policy.named_parameters() if p.grad is not None}


def own_routes(policy, row):
    """The routes that a model chooses for a row, as an engine would report them."""
    tokens = row.num_tokens
    routes = torch.full((tokens, LAYERS, CHOSEN), 0, dtype=torch.int16)  # 0 in layers without experts
    hooks = []
    for layer, block in enumerate(policy.model.base_model.layers):
        if hasattr(block.mlp, "gate"):

            def keep(_module, _inputs, output, layer=layer):
                routes[:, layer] = output[2]

            hooks.append(block.mlp.gate.register_forward_hook(keep))
    computed(policy, row)
    for hook in hooks:
        hook.remove()
    return routes


def by_hand(folder, given):
    """The policy with a forward pass of its experts that is written token by token, with the routes of `given`."""
    policy = Policy.load(folder, dtype=torch.float32).train()
    for layer, block in enumerate(policy.model.base_model.layers):
        if not hasattr(block.mlp, "gate"):
            continue

        def forward(hidden, mlp=block.mlp, layer=layer):
            tokens = []
            for token, x in enumerate(hidden[0]):
                probabilities = (mlp.gate.weight @ x).softmax(-1)
                chosen = given[token, layer].tolist() if token < len(given) else probabilities.topk(CHOSEN)[1].tolist()
                total = sum(probabilities[e] for e in chosen)
                out = 0
                for e in chosen:
                    gate, up = (mlp.experts.gate_up_proj[e] @ x).chunk(2)
                    out = out + probabilities[e] / total * (
                        mlp.experts.down_proj[e] @ (torch.nn.functional.silu(gate) * up)
                    )
                tokens.append(out)
            return torch.stack(tokens)[None]

        block.mlp.forward = forward
    return policy


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", CONFIGS)
def test_the_models_own_routes_change_nothing(load, name, dtype):
    policy, row = load(name, dtype), row_of(sequence(3, 9, 0), sequence(2, 4, 1))
    free, free_gradients = computed(policy, row)
    replayed, gradients = computed(policy, row, own_routes(policy, row))
    assert torch.equal(replayed, free)
    assert gradients.keys() == free_gradients.keys()
    for parameter, gradient in gradients.items():
        assert torch.equal(gradient, free_gradients[parameter]), parameter


def test_other_routes_are_used_as_a_forward_pass_by_hand_uses_them(load, folders):
    given = sequence(3, 7, 0, routes=True)
    row = row_of(given)
    assert row.routes[:-1].tolist() == given.routes.tolist()
    assert (row.routes[-1] == -1).all()
    logprobs, gradients = computed(load(), row, torch.from_numpy(row.routes))
    expected, expected_gradients = computed(by_hand(folders["qwen3_moe"], given.routes), row)
    # sums of float32 in another order
    torch.testing.assert_close(logprobs, expected, rtol=1e-5, atol=1e-5)
    for parameter, gradient in gradients.items():
        torch.testing.assert_close(gradient, expected_gradients[parameter], rtol=1e-4, atol=1e-4, msg=parameter)
    free, _ = computed(load(), row)
    assert (logprobs - free).abs().max() > 0.01


def test_the_gradient_reaches_the_routers(load):
    row = row_of(sequence(3, 7, 0, routes=True))
    _, gradients = computed(load(), row, torch.from_numpy(row.routes))
    routers = [gradient for name, gradient in gradients.items() if name.endswith("gate.weight")]
    assert len(routers) == LAYERS - 1
    assert all(gradient.abs().max() > 0 for gradient in routers)


def test_tokens_without_routes_keep_the_learners_choice(load):
    policy, row = load(), row_of(sequence(3, 7, 0))
    own = own_routes(policy, row)
    own[4:] = -1
    assert torch.equal(computed(policy, row, own)[0], computed(policy, row)[0])


def test_a_packed_row_uses_the_routes_of_each_sequence(load):
    given = [sequence(3, 7, 0, routes=True), sequence(2, 4, 1, routes=True), sequence(5, 9, 2, routes=True)]
    policy, row = load(), row_of(*given)
    together, _ = computed(policy, row, torch.from_numpy(row.routes))
    for index, each in enumerate(given):
        alone = row_of(each)
        expected, _ = computed(policy, alone, torch.from_numpy(alone.routes))
        torch.testing.assert_close(together[row.sequence_ids[0] == index], expected, rtol=1e-5, atol=1e-5)


def test_a_shared_prompt_has_the_routes_of_the_first_response():
    first, second = (sequence(3, n, n, routes=True) for n in (5, 4))
    second = Sequence(first.prompt_ids, second.response_ids, [-1.0] * 4, 1.0, routes=second.routes)
    [[row]] = pack([first, second], 100, share_prompts=True)
    own = np.full((1, LAYERS, CHOSEN), -1)
    np.testing.assert_array_equal(row.routes, np.concatenate([first.routes, own, second.routes[3:], own]))


@pytest.mark.parametrize("name", ["qwen3_moe", "olmoe"])
def test_layers_that_are_computed_again_use_the_same_routes(load, name):
    row = row_of(sequence(3, 7, 0, routes=True), sequence(2, 4, 1, routes=True))
    routes = torch.from_numpy(row.routes)
    stored, gradients = computed(load(name), row, routes)
    again, gradients_again = computed(load(name, gradient_checkpointing=True), row, routes)
    assert torch.equal(stored, again)
    for parameter, gradient in gradients.items():
        assert torch.equal(gradient, gradients_again[parameter]), parameter


def test_routes_of_another_model_are_refused(load):
    row = row_of(sequence(3, 7, 0, routes=True))
    with pytest.raises(ValueError, match="routes have 2 layers, and the model has 3"):
        computed(load(), row, torch.from_numpy(row.routes[:, :2]))
    with pytest.raises(ValueError, match="all have routes or none has"):
        row_of(sequence(3, 7, 0, routes=True), sequence(2, 4, 1))
    with pytest.raises(ValueError, match="routes has 9 entries for 6 tokens"):
        Sequence([1] * 2, [1] * 4, [-1.0] * 4, 1.0, routes=np.zeros((9, LAYERS, CHOSEN), np.uint8))


def test_a_model_without_such_routers_is_refused(tmp_path):
    config = LlamaConfig(**{name: SHAPE[name] for name in list(SHAPE)[:6]})
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="models of the type `llama`"):
        Policy.load(tmp_path, dtype=torch.float32, replays_routes=True)
