"""Families that the engine serves without a GPU: its log-probabilities are the learner's, after an update too."""

import pytest

from tasks.training.config import TrainingConfig
from tasks.training.model_check.check import check_model
from tests.tiny_model import tokenizer_of
from tests.training.model_check.families import build

pytestmark = [pytest.mark.engine, pytest.mark.complete]

CONFIG = TrainingConfig.model_validate(
    {
        "learner": {"dtype": "float32"},
        "actors": {"engine": {"dtype": "float32", "max_model_len": 128, "max_num_seqs": 16, "cpu_threads": 1}},
    }
)
SERVED = ["llama", "qwen2", "qwen3", "olmo3", "granite", "cohere", "phi3", "mixtral", "qwen3_moe", "olmoe", "glm4_moe"]


@pytest.mark.parametrize("family", SERVED)
def test_engine_and_learner_have_the_same_policy_before_and_after_an_update(tmp_path, family):
    tokenizer = tokenizer_of(ends=False)
    factors = {"short_factor": [1.0] * 16, "long_factor": [4.0] * 16} if family == "phi3" else None
    build(tmp_path, family, head_dim=32, hidden_size=64, vocab_size=len(tokenizer), factors=factors)
    tokenizer.save_pretrained(tmp_path)
    figures = check_model(tmp_path, CONFIG)
    assert len(figures) == 5
    assert max(figures.values()) < 1e-4
