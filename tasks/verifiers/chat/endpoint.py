"""One OpenAI-compatible endpoint: its requests are `tasks.verifiers.http`'s, their content is said here."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from tasks.verifiers.chat.config import JudgeConfig
from tasks.verifiers.http import Client, Traffic, read_key


@dataclass
class Usage(Traffic):
    """What judging cost so far.

    Attributes:
        input_tokens, output_tokens: as the judge counts them, of answers that were no judgement too.
        cost: of those tokens, in the currency of the prices.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0


class Endpoint(Client):
    """The client; it belongs to the event loop that uses it first."""

    def __init__(self, config: JudgeConfig, usage: Usage) -> None:
        """Raises `ValueError` where the configuration names no URL, or a variable that holds no key."""
        if config.url is None:
            raise ValueError("the judge has no url: give one, or start a server with serving(config)")
        key = read_key("api_key_env", config.api_key_env)
        super().__init__(f"the judge {config.model!r}", config.url, config, usage, key)
        self._config = config
        self._extra = json.loads(config.extra_body)

    async def ask(self, messages: list[dict[str, str]], fields: dict[str, Any], deadline: float) -> bytes:
        """The body of the endpoint's answer to one request.

        Args:
            messages: the prompt.
            fields: what the request says beside model and prompt.
            deadline: `time.monotonic()` at which the judgement must have ended: no wait reaches beyond it.

        Raises:
            CannotJudge: refused, or not answered within the retries or before the deadline.
        """
        config = self._config
        request = {**self._extra, **fields, "model": config.model, "messages": messages, "stream": False}
        return await self.post("/chat/completions", json.dumps(request).encode(), deadline)
