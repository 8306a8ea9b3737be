"""An engine that rounds its weights to FP8 takes new weights in mid-generation, as vLLM's CPU kernels allow it."""

import asyncio
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tasks.generation import weight_transfer
from tasks.generation.config import EngineConfig, SamplingConfig
from tasks.generation.interface import EngineUse
from tasks.storage.tensor_digest import compute_contents
from tests.generation.conftest import CONTEXT
from tests.tiny_model import build

pytestmark = [pytest.mark.engine, pytest.mark.complete]

OPTIONS = EngineConfig(
    max_model_len=CONTEXT, max_num_seqs=8, dtype="bfloat16", cpu_threads=1, vllm={"quantization": "fp8"}
)
PROMPTS = [[5, 6, 7], [50, 60, 70, 80, 90]]


async def sampled(engine):
    """Responses that are the same for the same weights: one at a time, with a seed."""
    sampling = SamplingConfig(max_tokens=24)
    completions = [await engine.generate(prompt, sampling, seed=7) for prompt in PROMPTS]
    return [(list(completion.token_ids), list(completion.logprobs)) for completion in completions]


async def started(model):
    from tasks.generation.engine import Engine

    return await Engine.start(model, OPTIONS, EngineUse(updatable=True))


def test_an_updated_engine_is_one_that_was_started_with_the_new_weights(tiny_model, tmp_path, monkeypatch):
    monkeypatch.setattr(weight_transfer, "WORKER_EXTENSION", "tests.generation.fp8_on_cpus.WorkerExtension")
    other = build(tmp_path / "other", seed=1)
    file = tmp_path / "v00000001"
    shutil.copy(other / "model.safetensors", file)

    async def in_mid_generation():
        engine = await started(tiny_model)
        before = await sampled(engine)
        requests = [asyncio.create_task(engine.generate(PROMPTS[0], SamplingConfig(max_tokens=100))) for _ in range(24)]
        await asyncio.wait(requests, return_when=asyncio.FIRST_COMPLETED)
        update = await engine.update_weights(file, 1)
        with file.open("r+b") as stream:  # a later version is written into its memory
            stream.write(bytes(file.stat().st_size))
        completions = await asyncio.gather(*requests)
        after = await sampled(engine)
        engine.shutdown()
        return before, update, completions, after

    async def fresh():
        engine = await started(other)
        try:
            return await sampled(engine)
        finally:
            engine.shutdown()

    before, update, completions, after = asyncio.run(in_mid_generation())
    assert update.contents == compute_contents(load_file(Path(other) / "model.safetensors"))
    versions = {tuple(span.version for span in completion.versions) for completion in completions}
    assert (0, 1) in versions
    assert versions <= {(0,), (0, 1), (1,)}
    assert after == asyncio.run(fresh())
    assert after != before
