"""The plan's memory of a learner rank beside a step on tensors that have shapes and no numbers (`FakeTensorMode`)."""

from functools import partial

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from transformers import AutoModelForCausalLM, Qwen2Config

from tasks.training.learner import attention, varlen
from tasks.training.learner.logprobs import _Blocks, token_logprobs
from tasks.training.learner.policy import attention_for
from tasks.training.learner.varlen import Bounds
from tasks.training.simulation import roofline
from tasks.training.simulation.roofline import KNOWN

pytestmark = pytest.mark.long

MODEL = KNOWN["Qwen2.5-1.5B"]


def policy(checkpointing):
    config = Qwen2Config(
        num_hidden_layers=MODEL.layers,
        hidden_size=MODEL.hidden,
        intermediate_size=MODEL.intermediate,
        num_attention_heads=MODEL.heads,
        num_key_value_heads=MODEL.kv_heads,
        vocab_size=MODEL.vocabulary,
        tie_word_embeddings=MODEL.tied,
        use_cache=False,
    )
    assert attention_for(torch.bfloat16) == attention.NAME  # and transformers knows both
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation=varlen.NAME)
    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})
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


@pytest.mark.parametrize(
    ("tokens", "checkpointing", "reference"),
    [
        (16_384, True, False),
        pytest.param(4096, False, False, marks=pytest.mark.complete),
        pytest.param(4096, True, True, marks=pytest.mark.complete),
    ],
)
def test_memory_is_that_of_a_step(monkeypatch, tokens, checkpointing, reference):
    monkeypatch.setattr(_Blocks, "_reused", {})  # its tensors belong to this test's mode
    memory = MemTracker()
    with FakeTensorMode(), memory:
        model = policy(checkpointing)
        other = policy(checkpointing=False) if reference else None
        step(model, tokens, 1024, other)
    [measured] = {device: sizes["Total"] for device, sizes in memory.get_tracker_snapshot("peak").items()}.values()
    computed = roofline.learner_memory(
        MODEL,
        ranks=1,
        zero_stage=2,
        micro_batch_tokens=tokens,
        logprob_chunk_tokens=1024,
        checkpointing=checkpointing,
        reference=reference,
    )
    print(measured / 1e9, computed.total / 1e9)
    assert computed.total == pytest.approx(measured, rel=0.15)
