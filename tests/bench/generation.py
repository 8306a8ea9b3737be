"""Output tokens/s of the difficulty stage against the same engine with nothing around it; and one weight update."""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import fsspec

from tests.bench import inputs

PROMPTS = 96
UPDATES = 7


def stage(folder: Path) -> dict[str, float]:
    """The difficulty stage: generation, judging, tables, and what is kept of them."""
    from tasks.inputs.files import load_quickstart
    from tasks.rollouts.judged_by import JudgedBy
    from tasks.rollouts.rollout_cache import RolloutCache
    from tasks.rollouts.sample_and_score import sample_and_score
    from tasks.rollouts.sampling_loop import Workload
    from tasks.verifiers.config import DEFAULTS

    spec = load_quickstart()[0].difficulty
    rows = tempfile.mkdtemp(dir=folder)
    cache = RolloutCache.open(
        fsspec.filesystem("file"), rows, "bench", spec.engine, spec.sampling, JudgedBy(DEFAULTS, "")
    )
    done = sample_and_score(
        [Workload(inputs.prompts().slice(0, PROMPTS), spec.sampling, cache)],
        inputs.model(folder),
        spec.engine,
        policy="bench",
        stage="difficulty",
    )
    return {"tokens_per_second": done.sampled.tokens_per_second}


def bare(folder: Path) -> dict[str, float]:
    """The same requests to the same engine: no judge, no tables, no log-probabilities."""
    from transformers import AutoTokenizer
    from vllm import SamplingParams
    from vllm.inputs import TokensPrompt
    from vllm.sampling_params import RequestOutputKind

    from tasks.generation.engine import run_engine
    from tasks.inputs.files import load_quickstart

    spec = load_quickstart()[0].difficulty
    tokenizer = AutoTokenizer.from_pretrained(inputs.model(folder))
    chats = inputs.prompts().slice(0, PROMPTS)["messages"].to_pylist()
    ids = [tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False) for chat in chats]
    parameters = SamplingParams(
        temperature=1.0, max_tokens=spec.sampling.max_tokens, output_kind=RequestOutputKind.FINAL_ONLY
    )

    async def run() -> float:
        async with run_engine(inputs.model(folder), spec.engine) as engine:

            async def one(number: int, prompt: list[int]) -> int:
                async for output in engine._llm.generate(
                    TokensPrompt(prompt_token_ids=prompt), parameters, request_id=f"b{number}"
                ):
                    last = output
                return len(last.outputs[0].token_ids)

            started = time.perf_counter()
            jobs = [one(i, prompt) for i, prompt in enumerate(p for p in ids for _ in range(spec.sampling.samples))]
            tokens = sum(await asyncio.gather(*jobs))
            return tokens / (time.perf_counter() - started)

    return {"tokens_per_second": asyncio.run(run())}


def update_undigested(folder: Path) -> dict[str, float]:
    """Weight updates whose tensors the engine hands on without digesting them."""
    from tasks.generation import weight_transfer

    weight_transfer.WORKER_EXTENSION = "tests.bench.undigested.WorkerExtension"
    return update(folder)


def update(folder: Path) -> dict[str, float]:
    """In-flight weight updates while 64 sequences are being generated."""
    from tasks.generation.config import EngineConfig, SamplingConfig
    from tasks.generation.engine import run_engine

    async def run() -> list[tuple[float, float]]:
        config = EngineConfig(max_model_len=512)
        weights = inputs.model(folder) / "model.safetensors"
        async with run_engine(inputs.model(folder), config, updatable=True) as engine:
            sampling = SamplingConfig(max_tokens=300)
            busy = [asyncio.create_task(engine.generate([1, 5, 6, 7], sampling)) for _ in range(64)]
            timings = []
            for version in range(1, UPDATES + 1):
                await asyncio.sleep(1)
                timings.append(await engine.update_weights(weights, version))
            for task in busy:
                task.cancel()
            await asyncio.gather(*busy, return_exceptions=True)
            return [(timing.pause_seconds, timing.total_seconds) for timing in timings[1:]]

    timings = asyncio.run(run())
    return {
        "pause_seconds": statistics.median(pause for pause, _ in timings),
        "total_seconds": statistics.median(total for _, total in timings),
        "megabytes": (inputs.model(folder) / "model.safetensors").stat().st_size / 1e6,
    }


CALLS = {"stage": stage, "bare": bare, "update": update, "undigested": update_undigested}

if __name__ == "__main__":
    print(json.dumps(CALLS[sys.argv[1]](Path(sys.argv[2]))))
