"""Samples responses from an external server instead of an engine of the stage.

The client uses OpenAI's completions API and sends prompts as tokens, so that the checkpoint's chat template is used.
Options that OpenAI's API does not have (top-k, special tokens in the text) are sent by the names of vLLM's server, at
their defaults, too: vLLM's server would otherwise take them from the model's `generation_config.json`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tasks.failures import one_line
from tasks.generation.config import EndpointConfig, EngineConfig, SamplingConfig
from tasks.generation.interface import EngineError, EngineOptionsError, Response
from tasks.tables.parquet import storable

if TYPE_CHECKING:
    from openai import AsyncOpenAI
    from openai.types import Completion

CONNECT_SECONDS = 10.0
"""Connection timeout in seconds."""

NO_KEY = "none"
"""The API key that is sent if the server needs none, because the client requires one."""

PLAIN = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
"""Penalties of a request without any. `sampling.vllm` may contain others."""


@asynccontextmanager
async def open_server(endpoint: EndpointConfig, model: Path, engine: EngineConfig) -> AsyncIterator[PolicyServer]:
    """Connect to the server while the block runs.

    Args:
        endpoint: the server.
        model: Hugging Face folder of the checkpoint that it serves. Its tokenizer has the tokens that end a response.
        engine: contains the number of requests in flight, and the context length that the server must support.

    Raises:
        EngineError: the server does not answer.
        EngineOptionsError: the server has no model with this name, its context is too short, or it refuses the key.
    """
    import httpx2
    from openai import AsyncOpenAI
    from transformers import AutoTokenizer

    key = os.environ.get(endpoint.api_key_env, "") if endpoint.api_key_env else NO_KEY
    if not key:
        raise EngineOptionsError(f"engine.server.api_key_env: the environment has no variable {endpoint.api_key_env}")
    async with AsyncOpenAI(
        base_url=endpoint.url,
        api_key=key,
        timeout=httpx2.Timeout(endpoint.timeout_seconds, connect=CONNECT_SECONDS),
        max_retries=endpoint.retries,
    ) as client:
        tokenizer = AutoTokenizer.from_pretrained(model)
        special = [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]
        server = PolicyServer(client, endpoint, special, at_once=engine.max_num_seqs)
        await server.check(engine.max_model_len)
        yield server


class PolicyServer:
    """A client of an external server of the policy, with the interface of `tasks.generation.interface.Sampler`."""

    def __init__(self, client: AsyncOpenAI, endpoint: EndpointConfig, special: Sequence[str], *, at_once: int) -> None:
        self._client = client
        self._in_flight = asyncio.Semaphore(at_once)
        self._endpoint = endpoint
        self._special = sorted(special, key=len, reverse=True)

    async def check(self, context: int) -> None:
        """Check that the server has a model with the name, and the context length if the server reports one.

        Raises:
            EngineError, EngineOptionsError: as `open_server` raises them.
        """
        name = self._endpoint.model
        with self._errors():
            listed = await self._client.models.list()
            models = {model.id: model for model in getattr(listed, "data", ())}
        if name not in models:
            names = ", ".join(sorted(models)) or "none"
            raise EngineOptionsError(f"engine.server: {self._endpoint.url} has no model {name!r}; it has {names}")
        has = getattr(models[name], "max_model_len", None)
        if has is not None and has < context:
            raise EngineOptionsError(
                f"engine.server: {self._endpoint.url} serves {name!r} with a context of {has} tokens, and "
                f"engine.max_model_len is {context}"
            )

    async def generate(
        self,
        prompt_ids: Sequence[int],
        sampling: SamplingConfig,
        *,
        seed: int | None = None,
        with_logprobs: Literal[False] = False,
    ) -> Response:
        """Sample one response to one tokenised prompt, as `Engine.generate` does.

        Raises:
            EngineError: the server failed, after all retries.
            EngineOptionsError: the server refuses the request.
        """
        async with self._in_flight:
            answer = await self._fetch_completion(prompt_ids, sampling, seed)
        choices, usage = getattr(answer, "choices", None), getattr(answer, "usage", None)
        if not choices or usage is None:  # the client does not validate answers
            raise EngineError(f"engine.server: {self._endpoint.url} sent an answer without a response and its tokens")
        choice = choices[0]
        if choice.finish_reason not in ("stop", "length"):
            raise EngineError(
                f"engine.server: {self._endpoint.url} ended a response with finish_reason {choice.finish_reason!r}"
            )
        stopped = choice.finish_reason == "stop"
        text = self._remove_end(choice.text, sampling.stop) if stopped else choice.text
        return Response(storable(text), usage.completion_tokens, choice.finish_reason)

    async def _fetch_completion(
        self, prompt_ids: Sequence[int], sampling: SamplingConfig, seed: int | None
    ) -> Completion:
        with self._errors():
            return await self._client.completions.create(
                model=self._endpoint.model,
                prompt=list(prompt_ids),
                max_tokens=sampling.max_tokens,
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                stop=sampling.stop or None,
                seed=seed,
                extra_body=_select_vllm_options(sampling),
            )

    def _remove_end(self, text: str, stop: Sequence[str]) -> str:
        """Return the text without the special token at its end, unless it ends with a stop text of the user."""
        if any(text.endswith(own) for own in stop):
            return text
        ending = next((token for token in self._special if text.endswith(token)), "")
        return text.removesuffix(ending)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Convert the client's errors to ours, with the server's message."""
        import openai

        try:
            yield
        except (openai.APIConnectionError, openai.InternalServerError, openai.RateLimitError) as error:
            raise EngineError(self._sentence(error)) from error
        except openai.APIStatusError as error:
            raise EngineOptionsError(self._sentence(error)) from error
        except (openai.OpenAIError, ValueError) as error:  # an invalid answer
            raise EngineError(self._sentence(error)) from error

    def _sentence(self, error: Exception) -> str:
        """Return the error in one line. For a failed connection add the cause, which the client's message lacks."""
        cause = f" ({one_line(error.__cause__)})" if error.__cause__ else ""
        return f"engine.server: {self._endpoint.url}: {one_line(error)}{cause}"


def _select_vllm_options(sampling: SamplingConfig) -> dict[str, Any]:
    """Return the options that OpenAI's API does not have, and its penalties, by vLLM's names."""
    fields: dict[str, Any] = {
        **PLAIN,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "include_stop_str_in_output": True,  # as in an engine: the text matches the tokens
        "skip_special_tokens": False,
        "spaces_between_special_tokens": False,
    }
    if sampling.stop_token_ids:
        fields["stop_token_ids"] = sampling.stop_token_ids
    if sampling.guided_regex:
        fields["structured_outputs"] = {"regex": sampling.guided_regex}
    return fields | sampling.vllm
