"""Families that the engine serves without a GPU: its log-probabilities are the learner's, after an update too."""

import asyncio

import pytest
import torch
from safetensors.torch import load_file, save_file

from tasks.generation.engine import run_engine
from tasks.generation.interface import EngineOptionsError, WeightsNotTakenError
from tasks.machine.resources import has_gpu
from tasks.model_check.check import check_model
from tasks.model_check.comparison import ModelCheckError
from tasks.model_check.options import CheckedOptions
from tests.model_check.families import build
from tests.tiny_model import tokenizer_of

pytestmark = [pytest.mark.engine, pytest.mark.complete]

TYPES = ["float32", "bfloat16"]
ENGINE = {"max_model_len": 128, "max_num_seqs": 64, "cpu_threads": 1}
SERVED = ["llama", "qwen2", "qwen3", "olmo3", "granite", "cohere", "phi3", "mixtral", "qwen3_moe", "olmoe", "glm4_moe"]
LORA = {"rank": 4, "alpha": 8}


def built(folder, family, **options):
    """A family's folder with a tokenizer, of a size that the engine's CPU kernels take."""
    tokenizer = tokenizer_of(ends=False)
    factors = {"short_factor": [1.0] * 16, "long_factor": [4.0] * 16} if family == "phi3" else None
    build(folder, family, head_dim=32, hidden_size=64, vocab_size=len(tokenizer), factors=factors, **options)
    tokenizer.save_pretrained(folder)
    return folder


def options_of(dtype, **options):
    return CheckedOptions.model_validate({"learner": {"dtype": dtype}, "engine": {"dtype": dtype, **ENGINE}, **options})


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("family", SERVED)
def test_engine_and_learner_have_the_same_policy_before_and_after_an_update(tmp_path, family, dtype):
    differences = check_model(built(tmp_path, family), options_of(dtype))
    assert len(differences) == (5 if dtype == "float32" else 6)


@pytest.mark.parametrize(("learner", "engine"), [("bfloat16", "float32"), ("float32", "bfloat16")])
def test_learner_and_engine_may_have_different_types(tmp_path, learner, engine):
    check_model(built(tmp_path, "llama"), options_of(engine, learner={"dtype": learner}))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("family", ["qwen2", "llama"])
def test_an_engine_that_runs_an_adapter_has_the_policy_of_a_learner_that_trains_it(tmp_path, family, dtype):
    check_model(built(tmp_path, family), options_of(dtype, lora=LORA))


@pytest.mark.skipif(has_gpu(), reason="vLLM serves them on GPUs")
def test_an_adapter_of_a_mixture_of_experts_is_refused_without_a_gpu(tmp_path):
    """E5: vLLM's experts would ask for Triton at the first request."""
    with pytest.raises(EngineOptionsError, match=r"lora: .* is a mixture of experts"):
        check_model(built(tmp_path, "qwen3_moe"), options_of("float32", lora=LORA))


def test_an_adapter_that_vllm_does_not_serve_is_refused_with_the_option(tmp_path):
    """E10: transformers joins two layers of a GLM-4, and vLLM looks for them by their own names."""
    with pytest.raises(WeightsNotTakenError, match=r"expected target modules .* lora.target_modules"):
        check_model(built(tmp_path, "glm4"), options_of("float32", lora=LORA))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    ("family", "left_out"), [("qwen3_moe", "kernels_of_experts_stay"), ("llama", "tied_head_stays")]
)
def test_an_engine_without_its_mend_is_refused_with_the_cause(tmp_path, monkeypatch, family, left_out, dtype):
    """F6: weights that a kernel has packed when it was made are not those of the update."""
    extension = f"tests.model_check.{left_out}.WorkerExtension"
    monkeypatch.setattr("tasks.generation.weight_transfer.WORKER_EXTENSION", extension)
    with pytest.raises(ModelCheckError, match=r"after a weight update.* experts, or a packed"):
        check_model(built(tmp_path, family), options_of(dtype))


OLD = {
    "head": r"^lm_head|embed_tokens",
    "norms": r"norm\.weight",
    "one layer": r"layers\.1\.",
    "experts": r"\.experts\.",
    "adapter": r"lora_",
}
"""Names of the tensors of which an engine keeps old values."""
OLD_VALUES = "an engine after a weight update differ|after a weight update an engine still uses old values"
STALE = [
    *[(family, what) for family in ("qwen2", "llama") for what in ("head", "norms", "one layer")],
    *[("qwen3_moe", what) for what in ("head", "norms", "one layer", "experts")],
    *[("qwen2", "adapter"), ("llama", "adapter")],
]


@pytest.mark.parametrize("share", [1.0, 1 / 3], ids=["all", "third"])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("family", "what"), STALE)
def test_an_engine_that_keeps_old_values_of_some_tensors_is_refused(tmp_path, monkeypatch, family, what, dtype, share):
    module, kind = ("adapter", "AdapterExtension") if what == "adapter" else ("weight_transfer", "WorkerExtension")
    extension = f"tests.model_check.old_weights_stay.{kind}"
    monkeypatch.setattr(f"tasks.generation.{module}.WORKER_EXTENSION", extension)
    monkeypatch.setenv("RLVR_OLD", OLD[what])
    monkeypatch.setenv("RLVR_OLD_SHARE", str(share))
    with pytest.raises(
        ModelCheckError,
        match=r"(an engine after a weight update differ|after a weight update an engine still uses old values)",
    ):
        check_model(built(tmp_path, family), options_of(dtype, lora=LORA if what == "adapter" else None))


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
        async with run_engine(folder, options_of("float32").engine, updatable=True) as engine:
            await engine.update_weights(tmp_path / "update.safetensors", 1)

    with pytest.raises(WeightsNotTakenError, match=f"weight update 1: the engine {fault} .*experts"):
        asyncio.run(update())
