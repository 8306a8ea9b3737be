"""Memory of a learner rank by `plan`, beside that of a step on tensors that have shapes and no numbers.

DeepSpeed is not there: its sums of gradients, master weights and moments are made as it makes them. A step with it is
measured on a GPU, by `make gpu-check`.
"""

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen3MoeConfig

from tasks.sizing.rank_memory import estimate_learner_memory
from tasks.sizing.roofline import Architecture, Experts
from tasks.training.learner import attention, varlen
from tasks.training.learner.logits import Blocks
from tasks.training.learner.logprobs import token_logprobs
from tasks.training.learner.policy import register_attention
from tasks.training.learner.varlen import Bounds
from tests.planning.rank_options import rank_options

DENSE = Architecture(16, 2048, 8192, 16, 4, 128, 32_768, attention_bias=True)
"""A model of 1.1 billion parameters."""
SHALLOW = replace(DENSE, layers=4)
MIXTURE = Architecture(
    4, 2048, 1024, 16, 4, 128, 32_768, qk_norm=True, experts=Experts(layers=4, count=32, chosen=8, intermediate=768)
)
"""A mixture of 0.8 billion parameters, in the shape of layers of Qwen3-30B-A3B."""


def policy(shape, checkpointing, every_n_layers=1):
    sizes = {
        "num_hidden_layers": shape.layers,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_size,
        "vocab_size": shape.vocabulary,
        "tie_word_embeddings": shape.tied,
        "use_cache": False,
    }
    if shape.experts:
        mixture = {"num_experts": shape.experts.count, "num_experts_per_tok": shape.experts.chosen}
        config = Qwen3MoeConfig(**sizes, **mixture, moe_intermediate_size=shape.experts.intermediate)
    else:
        config = Qwen2Config(**sizes)
    assert register_attention(torch.bfloat16) == attention.NAME  # and transformers knows both
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation=varlen.NAME)
    assert sum(parameter.numel() for parameter in model.parameters()) == shape.parameters
    if checkpointing:
        model.gradient_checkpointing_enable(
            gradient_checkpointing_kwargs={"use_reentrant": True}, every_n_layers=every_n_layers
        )
        model.enable_input_require_grads()
    return model.train()


def step(model, tokens, chunk, reference):
    """Take a step as the learner does: gradients summed in float32, master weights, two moments."""
    master = {parameter: parameter.detach().float().requires_grad_() for parameter in model.parameters()}
    for parameter, own in master.items():
        own.grad = torch.zeros_like(own)
        parameter.register_post_accumulate_grad_hook(partial(sum_gradient, own))
    optimizer = torch.optim.AdamW(master.values(), foreach=False)
    optimizer.step()  # makes the moments
    if reference:
        with torch.no_grad():
            logprobs(reference, tokens, chunk)
    logprobs(model, tokens, chunk).sum().backward()
    optimizer.step()


def sum_gradient(master, parameter):
    master.grad.add_(parameter.grad)
    parameter.grad = None


def logprobs(model, tokens, chunk):
    row = torch.zeros(1, tokens, dtype=torch.int64)
    layout = Bounds(torch.zeros(3, dtype=torch.int32), tokens)
    hidden = model.base_model(input_ids=row, position_ids=row, use_cache=False, layout=layout)[0][0]
    return token_logprobs(hidden, model.lm_head.weight, row[0], chunk=chunk)[0]


CASES = {
    "recomputed": (DENSE, 16_384, True, 1, False),
    "every second one recomputed": (replace(DENSE, layers=8), 8192, True, 2, False),
    "all stored": (SHALLOW, 8192, False, 1, False),
    "beside a reference": (SHALLOW, 8192, True, 1, True),
    "a mixture, recomputed": (MIXTURE, 16_384, True, 1, False),
    "a mixture, every second layer recomputed": (MIXTURE, 8192, True, 2, False),
    "a mixture, all stored": (MIXTURE, 8192, False, 1, False),
}


@pytest.mark.complete
@pytest.mark.parametrize(("shape", "tokens", "checkpointing", "every", "reference"), CASES.values(), ids=CASES.keys())
def test_memory_is_that_of_a_step(monkeypatch, shape, tokens, checkpointing, every, reference):
    monkeypatch.setattr(Blocks, "_reused", {})  # its tensors belong to this test's mode
    memory = MemTracker()
    with FakeTensorMode(), memory:
        model = policy(shape, checkpointing, every)
        other = policy(shape, checkpointing=False) if reference else None
        step(model, tokens, 1024, other)
    [measured] = [sizes["Total"] for sizes in memory.get_tracker_snapshot("peak").values()]
    options = rank_options(
        ranks=1,
        zero_stage=2,
        micro_batch_tokens=tokens,
        logprob_chunk_tokens=1024,
        checkpointing=checkpointing,
        checkpoint_every_n_layers=every,
        reference=reference,
    )
    computed = estimate_learner_memory(shape, options)
    states = computed.weights + computed.gradients + computed.optimizer + computed.reference
    assert computed.total == pytest.approx(measured, rel=0.15)
    assert computed.activations + computed.logits == pytest.approx(measured - states, rel=0.15)
