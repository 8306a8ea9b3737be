"""The client of a server that someone else runs, which samples responses in the place of an engine of a stage.

It speaks OpenAI's completions interface, and sends prompts as tokens, so that the chat template is the checkpoint's.
What OpenAI's interface lacks (top-k, special tokens in the text) is sent by the names of vLLM's server.
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

if TYPE_CHECKING:
    from openai import AsyncOpenAI
    from openai.types import Completion

CONNECT_SECONDS = 10.0
"""Seconds within which the server has to take a connection."""

NO_KEY = "none"
"""The key that is sent where the server wants none; the client demands one."""


@asynccontextmanager
async def open_server(endpoint: EndpointConfig, model: Path, engine: EngineConfig) -> AsyncIterator[PolicyServer]:
    """Connect to the server for the length of a block.

    Args:
        endpoint: the server.
        model: Hugging Face folder of the checkpoint that it serves; its tokenizer knows the tokens that end a response.
        engine: has the number of requests in flight, and the context that the server must have.

    Raises:
        EngineError: the server does not answer.
        EngineOptionsError: it does not serve the model by this name, or with less context; the key is refused.
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
    """A server of the policy, as `tasks.generation.interface.Sampler`."""

    def __init__(self, client: AsyncOpenAI, endpoint: EndpointConfig, special: Sequence[str], *, at_once: int) -> None:
        self._client = client
        self._in_flight = asyncio.Semaphore(at_once)
        self._endpoint = endpoint
        self._special = sorted(special, key=len, reverse=True)

    async def check(self, context: int) -> None:
        """Check that the server has the model by its name, with a context of so many tokens where it states its own.

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
            answer = await self._completion(prompt_ids, sampling, seed)
        choices, usage = getattr(answer, "choices", None), getattr(answer, "usage", None)
        if not choices or usage is None:  # the client checks no answer
            raise EngineError(f"engine.server: {self._endpoint.url} sent an answer without a response and its tokens")
        choice = choices[0]
        if choice.finish_reason not in ("stop", "length"):
            raise EngineError(f"engine.server: {self._endpoint.url} ended a response by {choice.finish_reason!r}")
        stopped = choice.finish_reason == "stop"
        text = self._without_end(choice.text, sampling.stop) if stopped else choice.text
        return Response(text, usage.completion_tokens, choice.finish_reason)

    async def _completion(self, prompt_ids: Sequence[int], sampling: SamplingConfig, seed: int | None) -> Completion:
        with self._errors():
            return await self._client.completions.create(
                model=self._endpoint.model,
                prompt=list(prompt_ids),
                max_tokens=sampling.max_tokens,
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                stop=sampling.stop or None,
                seed=seed,
                extra_body=_beyond_openai(sampling),
            )

    def _without_end(self, text: str, stop: Sequence[str]) -> str:
        """The text without the special token that ended it, unless the user's own stop text is what it ends with."""
        if any(text.endswith(own) for own in stop):
            return text
        ending = next((token for token in self._special if text.endswith(token)), "")
        return text.removesuffix(ending)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Turn the client's errors into ours, with the server's own words."""
        import openai

        try:
            yield
        except (openai.APIConnectionError, openai.InternalServerError, openai.RateLimitError) as error:
            raise EngineError(self._sentence(error)) from error
        except openai.APIStatusError as error:
            raise EngineOptionsError(self._sentence(error)) from error
        except (openai.OpenAIError, ValueError) as error:  # an answer that is none
            raise EngineError(self._sentence(error)) from error

    def _sentence(self, error: Exception) -> str:
        """The error in one line; of a failed connection with its cause, which the client's own text lacks."""
        cause = f" ({one_line(error.__cause__)})" if error.__cause__ else ""
        return f"engine.server: {self._endpoint.url}: {one_line(error)}{cause}"


def _beyond_openai(sampling: SamplingConfig) -> dict[str, Any]:
    """The options that OpenAI's interface does not have, by vLLM's names, as far as they are not at their defaults."""
    fields: dict[str, Any] = {
        "include_stop_str_in_output": True,  # as in an engine: the text is that of the tokens
        "skip_special_tokens": False,
        "spaces_between_special_tokens": False,
    }
    if sampling.top_k:
        fields["top_k"] = sampling.top_k
    if sampling.min_p:
        fields["min_p"] = sampling.min_p
    if sampling.stop_token_ids:
        fields["stop_token_ids"] = sampling.stop_token_ids
    if sampling.guided_regex:
        fields["structured_outputs"] = {"regex": sampling.guided_regex}
    return fields | sampling.vllm
