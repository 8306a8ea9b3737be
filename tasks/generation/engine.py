"""Wraps a vLLM engine for three stages: starts it, generates responses, replaces its weights and shuts it down."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import re
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

import numpy as np

from tasks.generation.config import EngineConfig, SamplingConfig
from tasks.generation.engine_output import EngineOutput
from tasks.generation.engine_start import load
from tasks.generation.engine_variables import set_engine_variables
from tasks.generation.interface import (
    SAMPLES_ONLY,
    Completion,
    EngineError,
    EngineOptionsError,
    EngineStatistics,
    EngineUse,
    RequestRefusedError,
    Routes,
    VersionSpan,
    WeightsNotTakenError,
    WeightUpdate,
)
from tasks.machine.memory_limit import add_cause, watch
from tasks.machine.resources import has_gpu
from tasks.storage.tensor_digest import Contents

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase
    from vllm import RequestOutput, SamplingParams
    from vllm.inputs import TokensPrompt
    from vllm.logprobs import SampleLogprobs
    from vllm.lora.request import LoRARequest
    from vllm.outputs import WeightVersionSpan
    from vllm.v1.engine.async_llm import AsyncLLM


T = TypeVar("T")

REFUSED_ADAPTER = re.compile("expected target modules|MoE LoRA")
"""Matches vLLM's errors about layers for which it does not support adapters."""
DEATH_SECONDS = 1.0
"""Seconds between checks of whether the engine has died, during a call."""
STOP_SECONDS = 1.0
"""Seconds that an engine's process has to exit on a machine without a GPU before it is killed. vLLM's default is 5.

Its work ends within a tenth of a second. The rest of the time would be spent on the shutdown of its interpreter."""


class Engine:
    """A running vLLM `AsyncLLM`. Requests are passed on immediately, and vLLM does the batching and queueing.

    Attributes:
        config: its options.
        statistics: statistics that vLLM updates in every iteration.
    """

    def __init__(
        self,
        llm: AsyncLLM,
        config: EngineConfig,
        statistics: EngineStatistics,
        files: tempfile.TemporaryDirectory[str],
        output: EngineOutput,
        use: EngineUse,
    ) -> None:
        self._llm = llm
        self._files = files
        self._output = output
        self.statistics = statistics
        self._adapted = use.adapter is not None
        self._returns_routes = use.returns_routes
        self._adapter: LoRARequest | None = None
        self._requests = 0
        self._has_answered = False
        self._version = 0
        self._updating = asyncio.Lock()
        self._sleeps = False
        self.config = config

    @classmethod
    async def start(cls, model: str | Path, config: EngineConfig, use: EngineUse = SAMPLES_ONLY) -> Engine:
        """Load `model` and return when the engine accepts requests.

        Args:
            model: a Hugging Face model folder.
            config: options of the engine.
            use: what it is started for.

        Raises:
            EngineError: vLLM could not start. The message contains vLLM's reason.
            EngineOptionsError: vLLM does not accept the model or the options.
            ShortOfMemoryError, MemoryLimitError: vLLM did not start for lack of memory (see `load`).
        """
        watch()
        files = tempfile.TemporaryDirectory(prefix="vllm-")  # files of its processes, which vLLM does not remove
        output = EngineOutput(Path(files.name) / "output.txt")
        with set_engine_variables(config, files.name), output.capture():
            llm, statistics = load(str(model), config, output, use)
        return cls(llm, config, statistics, files, output, use)

    async def generate(
        self,
        prompt_ids: Sequence[int],
        sampling: SamplingConfig,
        *,
        seed: int | None = None,
        with_logprobs: bool = True,
    ) -> Completion:
        """Sample one response to one tokenised prompt.

        Args:
            prompt_ids: the prompt's tokens, with the chat template applied.
            sampling: options of sampling. `samples` is not used, because a call generates one sample.
            seed: Optional. Seed of this request. If None, the engine's random stream is used.
            with_logprobs: also return the log-probabilities, which take a sixth of the time of a small model on a CPU.

        Raises:
            RequestRefusedError: vLLM does not accept the request, such as a prompt that is longer than the context.
            EngineOptionsError: vLLM does not accept a value in `sampling.vllm`.
            EngineError: the engine died.
            EngineOptionsError: the engine died at its first request, because it does not support the model.
        """
        from vllm.inputs import TokensPrompt

        from tasks.generation.engine_sampling import build_sampling_parameters

        parameters = build_sampling_parameters(sampling, seed=seed, with_logprobs=with_logprobs)
        # With the version as salt, a prompt's cached prefix is not used by requests that begin under newer weights.
        # Requests that wait during an update get a new salt from `scheduler`.
        prompt = TokensPrompt(prompt_token_ids=list(prompt_ids), cache_salt=str(self._version))
        return await self._request(prompt, parameters)

    async def _request(self, prompt: TokensPrompt, parameters: SamplingParams) -> Completion:
        sample = (await self._wait_for_output(prompt, parameters)).outputs[0]
        processed = len(prompt["prompt_token_ids"]) + len(sample.token_ids) - 1  # the last token is only sampled
        assert (sample.logprobs is None) == (parameters.logprobs is None)
        assert sample.finish_reason is not None
        tokens = list(sample.token_ids)
        stopped = sample.finish_reason == "stop"
        return Completion(
            text=self._remove_end(sample.text, tokens[-1], sample.stop_reason) if stopped else sample.text,
            token_ids=np.array(tokens, np.int32),
            logprobs=np.array(_select_logprobs(tokens, sample.logprobs), np.float32),
            finish_reason=sample.finish_reason,
            versions=[_convert_span(span) for span in sample.weight_versions or []],
            routes=_check_routes(sample.routed_experts, processed) if self._returns_routes else None,
        )

    async def _wait_for_output(self, prompt: TokensPrompt, parameters: SamplingParams) -> RequestOutput:
        from vllm.exceptions import VLLMClientError

        if self._adapted and self._adapter is None:
            raise EngineError("the engine has no adapter yet: update_weights comes before the first request")
        self._requests += 1
        final: RequestOutput | None = None
        try:
            async for output in self._llm.generate(
                prompt, parameters, request_id=str(self._requests), lora_request=self._adapter
            ):
                final = output
        except asyncio.CancelledError:
            raise
        except VLLMClientError as error:
            raise RequestRefusedError(f"the engine refuses the request: {error}") from error
        except Exception as error:  # vLLM raises many types; all of them are failures of the engine, not the response
            reason = await self._output.wait_for_reason(error)
            if not self._has_answered and self._output.names_refusal:
                raise EngineOptionsError(add_cause(f"vLLM does not serve the model: {reason}")) from error
            raise EngineError(add_cause(f"generation failed: {reason}")) from error
        if final is None or not final.finished or final.outputs[0].finish_reason not in ("stop", "length"):
            raise EngineError("generation ended without a finished response")
        self._has_answered = True
        return final

    def _remove_end(self, text: str, end: int, reason: int | str | None) -> str:
        """Return the text without the token `end` if it is a special token, which is not part of an answer.

        `reason` is the stop string that the text ends with, if any. vLLM also searches for stop strings in the end
        token. For example, `e` is in `<|im_end|>`, and the text then ends inside the end token.
        """
        special = self._special_tokens.get(end, "")
        if not isinstance(reason, str):
            return text.removesuffix(special)
        if reason == special or reason not in special:
            return text
        return text.removesuffix(special[: special.index(reason) + len(reason)])

    @functools.cached_property
    def _special_tokens(self) -> dict[int, str]:
        tokenizer = cast("PreTrainedTokenizerBase", self._llm.get_tokenizer())
        added = tokenizer.added_tokens_decoder
        return {number: token.content for number, token in added.items() if token.special}

    async def update_weights(self, path: str | Path, version: int, *, keep_cache: bool = True) -> WeightUpdate:
        """Load new weights from the safetensors file `path` during generation, and set the policy version.

        With an adapter, `path` is the folder of the new adapter.

        Requests in flight continue with the new weights. They keep their KV cache (PipelineRL, Olmo 3's in-flight
        updates), unless `keep_cache` is false: then it is computed again with the new weights. Later requests do not
        share cached prefixes with older ones. The scheduler resumes even if loading fails, so that no request hangs.

        A sleeping engine wakes up: its weights return to the GPU and are replaced, and its KV cache is computed again
        with the new weights.

        Raises:
            EngineError: the file could not be loaded. The engine must not be used any more.
            WeightsNotTakenError: a tensor was not loaded into any weight, a weight was not updated, or the engine does
                not support the adapter.
        """
        async with self._updating:
            began = time.perf_counter()
            try:
                replacing = self._pause_and_replace(str(path), version, keep_cache=keep_cache)
                paused = await self._wait_while_alive(replacing)
            except Exception as error:  # vLLM raises many types; all of them are failures of the engine
                reason = self._output.find_reason(error)
                if self._adapted and REFUSED_ADAPTER.search(reason):
                    raise WeightsNotTakenError(
                        f"vLLM does not serve the adapter: {reason}; name layers that it serves in lora.target_modules"
                    ) from error
                raise EngineError(add_cause(f"weight update {version} from {path} failed: {reason}")) from error
            resumed = time.perf_counter()
            contents = await self._check_arrived(version)
        return WeightUpdate(resumed - paused, resumed - began, contents)

    async def _pause_and_replace(self, path: str, version: int, *, keep_cache: bool) -> float:
        """Pause the engine, replace its weights and resume it. Return the time of the pause, as `perf_counter`."""
        if self._sleeps:
            await self._llm.wake_up(["weights"])
        else:
            await self._llm.pause_generation(mode="keep", clear_cache=not keep_cache)
        paused = time.perf_counter()
        self._version = version
        try:
            await (self._replace_adapter if self._adapted else self._replace_weights)(path, str(version))
        except Exception:
            # The engine is lost, but waiting requests must end. Another error here adds no information.
            with contextlib.suppress(Exception):
                await self._resume()
            raise
        await self._resume()
        return paused

    async def _resume(self) -> None:
        """Resume the requests after an update. If the engine slept, its KV cache returns to the GPU first."""
        if self._sleeps:
            await self._llm.wake_up(["kv_cache"])  # vLLM resumes automatically when the whole engine is awake
            self._sleeps = False
        else:
            await self._llm.resume_generation()

    async def sleep(self) -> None:
        """Free the GPU's memory for other processes: move the weights to CPU memory and drop the KV cache.

        Requests in flight and new requests wait. Their KV cache is computed again when the engine is awake. On a
        machine without a GPU the engine pauses and stays in memory.

        Raises:
            EngineError: the engine died.
        """
        async with self._updating:
            if not self._sleeps:
                await self._called(self._llm.sleep(level=1, mode="keep"), "fall asleep")
                self._sleeps = True

    async def wake(self) -> None:
        """Move the unchanged weights back to the GPU and resume the requests. Do nothing if the engine is awake.

        Raises:
            EngineError: the engine died, or the GPU's memory is not free.
        """
        async with self._updating:
            if self._sleeps:
                await self._called(self._llm.wake_up(), "wake")
                self._sleeps = False

    async def kv_cache_memory(self) -> int:
        """Return the bytes of the KV cache on each GPU, of an engine whose weights or adapter can be updated.

        Raises:
            EngineError: the engine died.
        """
        return min(await self._called(self._llm.collective_rpc("kv_cache_memory"), "name the size of its KV cache"))

    async def _called(self, call: Awaitable[T], doing: str) -> T:
        try:
            return await self._wait_while_alive(call)
        except Exception as error:  # vLLM raises many types; all of them are failures of the engine
            raise EngineError(add_cause(f"the engine did not {doing}: {self._output.find_reason(error)}")) from error

    async def _wait_while_alive(self, call: Awaitable[T]) -> T:
        """Return the result of a call of vLLM, which never returns if the engine dies meanwhile.

        Raises:
            EngineDeadError: the engine died.
        """
        waiting = asyncio.ensure_future(call)
        try:
            while not waiting.done():
                await asyncio.wait({waiting}, timeout=DEATH_SECONDS)
                if self._llm.errored and not waiting.done():
                    raise self._llm.dead_error
        finally:
            waiting.cancel()
        return waiting.result()

    async def _check_arrived(self, version: int) -> Contents:
        """Return the contents of the tensors that all workers of the engine loaded in the last update.

        Raises:
            WeightsNotTakenError: a worker did not load a tensor into any weight, or did not update one of its weights.
            EngineError: workers loaded different tensors.
        """
        arrived: set[Contents] = set()
        for unused, unfilled, contents in await self._called(self._llm.collective_rpc("arrived"), "name its weights"):
            arrived.add(Contents(*contents))
            for names, fault in ((unused, "does not take"), (unfilled, "is not given")):
                if names:
                    raise WeightsNotTakenError(
                        f"weight update {version}: the engine {fault} {names[0]} ({len(names)} such); the likely cause "
                        "is a tensor whose name in the learner differs from that in the checkpoint, such as experts"
                    )
        if len(arrived) > 1:
            raise EngineError(f"weight update {version}: the workers of the engine loaded different weights")
        return arrived.pop()

    async def _replace_weights(self, path: str, version: str) -> None:
        from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

        await self._llm.start_weight_update()
        await self._llm.update_weights(WeightTransferUpdateRequest(update_info={"path": path}))
        await self._llm.finish_weight_update(weight_version=version)

    async def _replace_adapter(self, path: str, version: str) -> None:
        from vllm.lora.request import LoRARequest

        await self._llm.add_lora(LoRARequest("policy", 1, path, load_inplace=True))
        await self._llm.update_weight_version(version)
        # Requests refer to the adapter in memory and do not read its folder, which may have been removed. If the
        # adapter were not in memory, this path, which does not exist, would stop the engine. A real path could load
        # an old adapter instead.
        self._adapter = LoRARequest("policy", 1, "in-memory")

    def shutdown(self) -> None:
        """Stop the engine and its processes."""
        # Without a GPU, the system frees everything that the process still uses after this time.
        self._llm.shutdown(None if has_gpu() else STOP_SECONDS)
        # vLLM's finaliser shuts down again when the interpreter exits, and logs an error because its modules are gone.
        self._llm.shutdown = lambda *_, **__: None  # type: ignore[method-assign]
        self._files.cleanup()


@contextlib.asynccontextmanager
async def run_engine(model: str | Path, config: EngineConfig, *, updatable: bool = False) -> AsyncIterator[Engine]:
    """Start an engine, and shut it down at the end of the block, also after an error."""
    engine = await Engine.start(model, config, EngineUse(updatable=updatable))
    try:
        yield engine
    finally:
        engine.shutdown()


def _check_routes(routes: Routes | None, tokens: int) -> Routes:
    """Return the routes that vLLM reports for a request, after a check of their number.

    They have a row for each token that vLLM processed, also for tokens that were in its prefix cache.

    Args:
        routes: what vLLM reports.
        tokens: number of tokens that it processed.

    Raises:
        EngineError: vLLM reports routes of another number of tokens.
    """
    if routes is None or len(routes) != tokens:
        raise EngineError(f"vLLM returned routes of {0 if routes is None else len(routes)} tokens instead of {tokens}")
    return routes


def _convert_span(span: WeightVersionSpan) -> VersionSpan:
    # vLLM names the version of the initial weights "default". Our versions are numbers from 0 on.
    version = 0 if span.version == "default" else int(span.version)
    return VersionSpan(version=version, start=span.start, end=span.end)


def _select_logprobs(tokens: Sequence[int], logprobs: SampleLogprobs | None) -> list[float]:
    """Return the log-probabilities of the sampled tokens, or [] if none were requested."""
    if not logprobs:
        return []
    return [entry[token].logprob for token, entry in zip(tokens, logprobs, strict=True) if entry]
