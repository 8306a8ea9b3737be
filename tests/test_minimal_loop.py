"""The idea in one file: two steps of it move the policy, and the engine samples from what the learner has."""

import asyncio
import importlib.util

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.paths import ROOT

pytestmark = pytest.mark.engine


PATH = ROOT / "tasks" / "commands" / "examples" / "minimal_loop" / "minimal_loop.py"
CONSTRAINT = "punctuation:no_comma"
"""A random model fulfils it now and then."""


@pytest.fixture
def example():
    spec = importlib.util.spec_from_file_location("minimal_loop", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.LEARNING_RATE = 1e-2  # it moves visibly in one step
    module.CONSTRAINTS = {CONSTRAINT: module.CONSTRAINTS[CONSTRAINT]}
    return module


def test_the_file_is_short_enough_to_be_read_in_ten_minutes():
    assert len(PATH.read_text().splitlines()) <= 250


def test_after_a_step_the_engine_samples_from_the_new_policy(example, tiny_model, one_thread):
    first, second = asyncio.run(example.main(tiny_model, 2, dtype="float32"))
    assert first.trained > 0
    assert second.trained > 0
    initial = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    with torch.no_grad():
        moved = torch.cat(
            [(example.token_logprobs(initial, b) - b.rollout_logprobs)[b.mask].abs() for b in second.batches]
        )
    # Both engine and learner are float32: what they differ by before any step is the rounding of two programs.
    assert second.mismatch < 10 * first.mismatch
    assert moved.mean() > 100 * second.mismatch


@pytest.mark.complete
def test_the_learner_computes_with_the_rounded_weights_of_the_engine(example, tiny_model, one_thread):
    example.LEARNING_RATE = 1e-4  # below half of what bfloat16 tells apart, for most weights
    reports = [each for each in asyncio.run(example.main(tiny_model, 3, dtype="bfloat16")) if each.trained]
    assert reports[-1].mismatch < 2 * reports[0].mismatch
