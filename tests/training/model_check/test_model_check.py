"""Families that the engine serves without a GPU: its log-probabilities are the learner's, after an update too."""

import asyncio

import pytest
import torch
from safetensors.torch import load_file, save_file

from tasks.generation.engine import running_engine
from tasks.generation.interface import WeightsNotTakenError
from tasks.training.actors.engine_check import ModelCheckError
from tasks.training.learner.rounding import ROUNDING
from tasks.training.model_check.check import check_model
from tasks.training.model_check.options import CheckedOptions
from tests.tiny_model import tokenizer_of
from tests.training.model_check.families import build

pytestmark = [pytest.mark.engine, pytest.mark.complete]

OPTIONS = {
    "learner": {"dtype": "float32"},
    "engine": {"dtype": "float32", "max_model_len": 128, "max_num_seqs": 16, "cpu_threads": 1},
}
SERVED = ["llama", "qwen2", "qwen3", "olmo3", "granite", "cohere", "phi3", "mixtral", "qwen3_moe", "olmoe", "glm4_moe"]


def built(folder, family, **options):
    """A family's folder with a tokenizer, of a size that the engine's CPU kernels take."""
    tokenizer = tokenizer_of(ends=False)
    factors = {"short_factor": [1.0] * 16, "long_factor": [4.0] * 16} if family == "phi3" else None
    build(folder, family, head_dim=32, hidden_size=64, vocab_size=len(tokenizer), factors=factors, **options)
    tokenizer.save_pretrained(folder)
    return folder


def check(folder, **options):
    return check_model(folder, CheckedOptions.model_validate({**OPTIONS, **options}))


@pytest.mark.parametrize("family", SERVED)
def test_engine_and_learner_have_the_same_policy_before_and_after_an_update(tmp_path, family):
    differences = check(built(tmp_path, family))
    assert len(differences) == 5
    assert max(apart.nats for apart in differences.values()) < 1e-4


def test_an_engine_that_runs_an_adapter_has_the_policy_of_a_learner_that_trains_it(tmp_path):
    differences = check(built(tmp_path, "qwen2"), lora={"rank": 4, "alpha": 8})
    assert len(differences) == 5
    assert max(apart.nats for apart in differences.values()) < 1e-4


@pytest.mark.parametrize(
    ("family", "left_out"), [("qwen3_moe", "kernels_of_experts_stay"), ("llama", "tied_head_stays")]
)
def test_an_engine_without_its_mend_is_refused_with_the_cause(tmp_path, monkeypatch, family, left_out):
    """F6: weights that a kernel has packed when it was made are not those of the update."""
    extension = f"tests.training.model_check.{left_out}.WorkerExtension"
    monkeypatch.setattr("tasks.generation.weight_transfer.WORKER_EXTENSION", extension)
    with pytest.raises(ModelCheckError, match=r"after a weight update differ by .* experts, or a packed") as refused:
        check(built(tmp_path, family))
    apart = float(str(refused.value).partition("differ by ")[2].partition(" nats")[0])
    assert apart > 10 * ROUNDING["float32"]


@pytest.mark.parametrize(("left_out", "fault"), [(".experts.", "is not given"), ("", "does not take")])
def test_a_tensor_that_arrives_nowhere_is_an_error_by_its_name(tmp_path, left_out, fault):
    """F5: vLLM's loaders say nothing of a weight that they get nothing for, and pass over a bias that they lack."""
    folder = built(tmp_path, "qwen3_moe")
    tensors = load_file(folder / "model.safetensors")
    if left_out:
        tensors = {name: tensor for name, tensor in tensors.items() if left_out not in name}
    else:
        tensors["model.layers.0.mlp.experts.0.up_proj.bias"] = torch.ones(32)
    save_file(tensors, tmp_path / "update.safetensors")

    async def update():
        async with running_engine(folder, CheckedOptions.model_validate(OPTIONS).engine, updatable=True) as engine:
            await engine.update_weights(tmp_path / "update.safetensors", 1)

    with pytest.raises(WeightsNotTakenError, match=f"weight update 1: the engine {fault} .*experts"):
        asyncio.run(update())
