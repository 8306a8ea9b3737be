"""Runs vLLM as it comes, without this project's options, so that an engine's speed can be compared with it."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.generation.config import EngineConfig, SamplingConfig
from tasks.generation.engine_variables import set_engine_variables
from tasks.machine.resources import has_gpu
from tasks.training.learner.packing import Sequence

if TYPE_CHECKING:
    from vllm import RequestOutput, SamplingParams


class BareEngine:
    """vLLM's `AsyncLLM` with the sizes of an engine's options, and vLLM's defaults for all else."""

    def __init__(self, model: Path, config: EngineConfig, sockets: str) -> None:
        """Start vLLM.

        Args:
            model: a Hugging Face model folder.
            config: options of the engine that it is compared with.
            sockets: folder for the sockets of its processes.
        """
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.usage.usage_lib import UsageContext
        from vllm.v1.engine.async_llm import AsyncLLM

        on_cpu: dict[str, Any] = {}
        if not has_gpu():  # a second process would poll for the few cores of a dry run
            from tasks.generation.executor import InProcessExecutor

            memory = round(config.cpu_kv_cache_gib * 2**30)
            on_cpu = {"distributed_executor_backend": InProcessExecutor, "kv_cache_memory_bytes": memory}
        with set_engine_variables(config, sockets):
            self._llm = AsyncLLM.from_engine_args(
                AsyncEngineArgs(
                    model=str(model),
                    dtype=config.dtype,
                    max_model_len=config.max_model_len,
                    max_num_seqs=config.max_num_seqs,
                    gpu_memory_utilization=config.share_of_gpu,
                    enforce_eager=config.is_eager(gpu=has_gpu()),
                    use_tqdm_on_load=False,
                    **on_cpu,
                ),
                usage_context=UsageContext.LLM_CLASS,  # as our engines, for the number of tokens in a batch
            )
        self._requests = 0

    async def tokens_per_second(self, prompts: list[list[int]], sampling: SamplingConfig) -> float:
        """Return the number of tokens per second that it generates if all prompts are sent at once."""
        from tasks.generation.engine_sampling import build_sampling_parameters

        parameters = build_sampling_parameters(sampling, seed=None, with_logprobs=True)
        began = time.perf_counter()
        outputs = await asyncio.gather(*(self._output(prompt, parameters) for prompt in prompts))
        return sum(len(output.outputs[0].token_ids) for output in outputs) / (time.perf_counter() - began)

    async def compute_logprobs(self, sequence: Sequence) -> Sequence:
        """Return a response with the log-probabilities that vLLM computes for it as the end of a prompt."""
        from vllm import SamplingParams

        ids = [*sequence.prompt_ids, *map(int, sequence.response_ids)]
        output = await self._output(ids, SamplingParams(max_tokens=1, prompt_logprobs=0))
        assert output.prompt_logprobs is not None
        start = len(sequence.prompt_ids)
        entries = [entry for entry in output.prompt_logprobs[start:] if entry is not None]
        logprobs = [entry[token].logprob for token, entry in zip(ids[start:], entries, strict=True)]
        return dataclasses.replace(sequence, rollout_logprobs=logprobs)

    async def _output(self, prompt: list[int], parameters: SamplingParams) -> RequestOutput:
        from vllm.inputs import TokensPrompt

        self._requests += 1
        final: RequestOutput | None = None
        async for output in self._llm.generate(TokensPrompt(prompt_token_ids=prompt), parameters, str(self._requests)):
            final = output
        assert final is not None
        return final

    def shutdown(self) -> None:
        """Stop vLLM and its processes."""
        self._llm.shutdown()
