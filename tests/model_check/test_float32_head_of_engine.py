"""The head of an engine in bfloat16 beside that of the learner, in 16 bits and in float32."""

import asyncio

import pytest
import torch
from safetensors.torch import load_file, save_file

from tasks.generation.config import EngineConfig
from tasks.generation.engine import Engine
from tasks.generation.interface import EngineUse
from tasks.model_check.check import check_model
from tasks.model_check.engine import sample_responses
from tasks.model_check.learner import LearnerCheck
from tasks.model_check.options import CheckedOptions
from tests.tiny_model import build

pytestmark = pytest.mark.engine

ENGINE = {"dtype": "bfloat16", "max_model_len": 128, "max_num_seqs": 64, "cpu_threads": 1}
TYPES = ["model", "float32"]
SILENT = ("o_proj", "down_proj")
"""Layers that add nothing to the embedding if their weights are 0, so that only the head's rounding is left."""


@pytest.fixture(scope="module")
def silent(tmp_path_factory):
    folder = build(tmp_path_factory.mktemp("silent"), ends=False)
    tensors = load_file(folder / "model.safetensors")
    tensors |= {name: tensor * 0 for name, tensor in tensors.items() if any(layer in name for layer in SILENT)}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


async def sampled(folder, head_dtype):
    engine = await Engine.start(folder, EngineConfig(**ENGINE), EngineUse(head_dtype=head_dtype))
    try:
        return await sample_responses(engine, [[first, 7, 8, 9] for first in range(10, 74)])
    finally:
        engine.shutdown()


def mismatch(folder, head_dtype, responses):
    """Mean difference of engine and learner over all tokens, nats."""
    learner = LearnerCheck(folder, [5, 6], dtype="bfloat16", longest=128, head_dtype=head_dtype)
    pairs = zip(learner.logprobs(responses), responses, strict=True)
    return torch.cat([ours - torch.tensor(s.rollout_logprobs) for ours, s in pairs]).abs().mean().item()


@pytest.mark.parametrize("of_engine", [pytest.param("model", marks=pytest.mark.complete), "float32"])
def test_the_engines_head_has_the_learners_type(silent, of_engine):
    responses = asyncio.run(sampled(silent, of_engine))
    [other] = set(TYPES) - {of_engine}
    assert sum(len(s.response_ids) for s in responses) >= 1000
    # float32 rounds logits of about 1 by 1e-7, and bfloat16 by 2e-3
    assert mismatch(silent, of_engine, responses) < 1e-5
    assert mismatch(silent, other, responses) > 1e-3


@pytest.mark.complete
@pytest.mark.parametrize("lora", [None, {"rank": 4, "alpha": 8}], ids=["weights", "adapter"])
def test_learner_engine_and_model_agree_with_a_head_in_float32(tmp_path, lora):
    options = {"learner": {"dtype": "bfloat16"}, "engine": ENGINE, "lora": lora, "head_dtype": "float32"}
    differences = check_model(build(tmp_path, ends=False), CheckedOptions.model_validate(options))
    assert len(differences) == 7
