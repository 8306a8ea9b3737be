"""One OpenAI-compatible endpoint: the content of its requests. `tasks.verifiers.http_client` sends them."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from tasks.verifiers.chat.config import JudgeConfig
from tasks.verifiers.http_client import Client, RefusedError, Traffic, read_key
from tasks.verifiers.scores import CannotJudge

_TOO_LONG = re.compile(
    r"context.{0,3}(?:length|window|size)|too (?:long|many (?:input )?tokens|large)|string_above_max_length"
    r"|max(?:imum)?.{0,3}(?:model|input|prompt).{0,3}len|exceeds? the (?:maximum|limit)"
    r"|(?:reduce|shorten) (?:the length|your|the (?:input|prompt))",
    re.IGNORECASE,
)
_UNWANTED = re.compile(
    r"content.{0,3}(?:policy|filter|management|moderation|safety)|responsible.?ai|moderation|flagged"
    r"|safety (?:system|filter)|usage polic|data_inspection_failed|inappropriate content",
    re.IGNORECASE,
)


@dataclass
class Usage(Traffic):
    """Counters of a judge's requests, tokens and cost.

    Attributes:
        input_tokens, output_tokens: tokens by the judge's count, those of answers without a judgement included.
        cost: cost of those tokens, in the currency of the prices.
        injections: answers that set off a rule of `tasks.verifiers.chat.injection`.
        shortened: answers of which the judge saw less than `max_response_chars`, as its context holds no more.
        ungraded: answers that score 0 because the judge grades another answer in their place, and not them.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0
    injections: int = 0
    shortened: int = 0
    ungraded: int = 0


class TooLong(CannotJudge):
    """The endpoint refused a prompt for its length."""


class Unwanted(CannotJudge):
    """The endpoint refused a prompt for its content."""


class Endpoint(Client):
    """The HTTP client of one OpenAI-compatible endpoint. It belongs to the event loop that uses it first."""

    def __init__(self, config: JudgeConfig, usage: Usage) -> None:
        """Create the client; raises `ValueError` where the configuration names no URL, or a variable without a key."""
        if config.url is None:
            raise ValueError("the judge has no url: give one, or start a server with serving(config)")
        key = read_key("api_key_env", config.api_key_env)
        who = f"the judge {config.model!r}"
        super().__init__(who, config.url, config, usage, key)
        # vLLM counts tokens beside the versioned interface, not in it
        self._beside = Client(who, config.url.removesuffix("/v1"), config, usage, key)
        self._config = config
        self._extra = json.loads(config.extra_body)

    async def ask(self, messages: list[dict[str, str]], fields: dict[str, Any], deadline: float) -> bytes:
        """Send one request, and return the body of the endpoint's answer.

        Args:
            messages: the prompt.
            fields: further fields of the request, beside model and prompt.
            deadline: `time.monotonic()` at which the judgement must have ended: no wait reaches beyond it.

        Raises:
            TooLong, Unwanted: refused, and the endpoint gives the length or the content of the prompt as the reason.
            CannotJudge: refused otherwise, or not answered within the retries or before the deadline.
        """
        config = self._config
        request = {**self._extra, **fields, "model": config.model, "messages": messages, "stream": False}
        try:
            return await self.post("/chat/completions", json.dumps(request).encode(), deadline)
        except RefusedError as error:
            if error.status == 413 or (error.status in (400, 422) and _TOO_LONG.search(error.explanation)):
                raise TooLong(str(error)) from None
            if error.status in (400, 403, 422) and _UNWANTED.search(error.explanation):
                raise Unwanted(str(error)) from None
            raise

    async def tokens(self, text: str, deadline: float) -> tuple[int, int]:
        """Return the number of tokens of a text, and the context of the judge in tokens, by vLLM's `/tokenize`.

        Raises:
            CannotJudge: the endpoint has no `/tokenize`, or failed.
        """
        request = {"model": self._config.model, "prompt": text, "add_special_tokens": False}
        body = await self._beside.post("/tokenize", json.dumps(request).encode(), deadline)
        try:
            answer = json.loads(body)
            count, context = answer["count"], answer["max_model_len"]
        except (ValueError, TypeError, KeyError, RecursionError):
            raise self.failed("counts no tokens: its answer is another one than vLLM's") from None
        if not (isinstance(count, int) and isinstance(context, int) and count >= 0 and context > 0):
            raise self.failed("counts no tokens: its answer holds no numbers")
        return count, context

    def without_key(self, text: str) -> str:
        """Return a text of the endpoint's with the key, which it may quote, replaced by `[key]`."""
        return text if self._key is None else text.replace(self._key.get_secret_value(), "[key]")

    async def close(self) -> None:
        """Close the connections; judgements in flight fail."""
        await super().close()
        await self._beside.close()
