"""Output tokens/s of the evaluation of one policy on several benchmarks, beside `LLM.generate` on the same requests.

python -m tests.bench.evaluation stage|bare <folder>
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.generation.config import EngineConfig, SamplingConfig
from tests.bench import inputs

SAMPLING = {
    "heldout": (32, SamplingConfig(samples=4, max_tokens=48, temperature=1.0, seed=11)),
    "greedy": (32, SamplingConfig(samples=1, max_tokens=96, temperature=0.0, seed=11)),
    "repeated": (8, SamplingConfig(samples=8, max_tokens=64, temperature=0.6, top_p=0.95, seed=11)),
}
"""The number of questions of every benchmark, and how they are sampled: those of the quickstart, of one that is sampled
greedily, and of one that is sampled many times."""


def questions() -> dict[str, pa.Table]:
    """The questions of every benchmark: different prompts of the quickstart, but for those that need a judge."""
    prompts = inputs.prompts()
    prompts = prompts.filter(pc.not_equal(prompts["verifier"], "weighted"))
    order = np.random.default_rng(0).permutation(prompts.num_rows)
    ends = np.cumsum([count for count, _ in SAMPLING.values()])
    parts = np.split(order, ends)[: len(SAMPLING)]
    return {name: prompts.take(pa.array(part)) for name, part in zip(SAMPLING, parts, strict=True)}


def engine() -> EngineConfig:
    """The quickstart's engine of the evaluation."""
    from tasks.inputs.files import load_quickstart

    return load_quickstart()[2].engine


def stage(folder: Path) -> dict[str, float]:
    """What `evaluate_policy` does: one engine for all benchmarks, judging, and the caches of responses and verdicts."""
    from tasks.rollouts.judged_by import JudgedBy
    from tasks.rollouts.rollout_cache import RolloutCache
    from tasks.rollouts.sample_and_score import sample_and_score
    from tasks.rollouts.sampling_loop import Workload
    from tasks.verifiers.config import DEFAULTS

    rows, files = tempfile.mkdtemp(dir=folder), fsspec.filesystem("file")
    workloads = [
        Workload(
            table, sampling, RolloutCache.open(files, rows, "bench", engine(), sampling, JudgedBy(DEFAULTS, "")), name
        )
        for (name, table), (_, sampling) in zip(questions().items(), SAMPLING.values(), strict=True)
    ]
    done = sample_and_score(workloads, inputs.model(folder), engine(), policy="bench", stage="evaluation")
    return {"tokens_per_second": done.sampled.tokens_per_second, "requests": done.sampled.responses}


def bare(folder: Path) -> dict[str, float]:
    """The same requests, with the same seeds, to vLLM's own class for a batch, with the same options of the engine."""
    from vllm import LLM
    from vllm.inputs import TokensPrompt

    from tasks.generation.engine_sampling import build_sampling_parameters
    from tasks.generation.engine_variables import set_engine_variables
    from tasks.generation.interface import sample_seed
    from tasks.machine import precision
    from tasks.machine.resources import has_gpu
    from tasks.rollouts.sampling_loop import tokenize_prompts
    from tasks.tables.schemas import messages_key

    model, config = inputs.model(folder), engine()
    prompts, parameters = [], []
    for table, (_, sampling) in zip(questions().values(), SAMPLING.values(), strict=True):
        rows = table.to_pylist()
        for row, ids in zip(rows, tokenize_prompts(rows, model, sampling), strict=True):
            for sample in range(sampling.samples):
                seed = sample_seed(sampling.seed or 0, messages_key(row["messages"]), sample)
                prompts.append(TokensPrompt(prompt_token_ids=ids))
                parameters.append(build_sampling_parameters(sampling, seed=seed, with_logprobs=False))
    # As in `tasks.generation.engine_start`: without a GPU prompts are computed whole.
    whole = {"enable_chunked_prefill": False, "max_num_batched_tokens": max(config.max_model_len, 4096)}
    with set_engine_variables(config, tempfile.mkdtemp(dir=folder)):
        llm = LLM(
            str(model),
            dtype=precision.resolve(config.dtype, gpu=has_gpu()),
            max_model_len=config.max_model_len,
            max_num_seqs=config.max_num_seqs,
            gpu_memory_utilization=config.share_of_gpu,
            enforce_eager=config.is_eager(gpu=has_gpu()),
            seed=config.seed,
            **({} if has_gpu() else whole),
        )
        started = time.perf_counter()
        outputs = llm.generate(prompts, parameters, use_tqdm=False)
        seconds = time.perf_counter() - started
    tokens = sum(len(output.outputs[0].token_ids) for output in outputs)
    return {"tokens_per_second": tokens / seconds, "requests": len(outputs)}


if __name__ == "__main__":
    print(json.dumps({"stage": stage, "bare": bare}[sys.argv[1]](Path(sys.argv[2]))))
