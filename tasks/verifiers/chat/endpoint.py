"""Builds the requests to an OpenAI-compatible endpoint; `tasks.verifiers.http_client` sends them."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from tasks.verifiers.chat.config import JudgeConfig
from tasks.verifiers.chat.reading import NoCompletion, NoJudgement, read_usage
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

Result = TypeVar("Result")

CONTROL = "I do not know."
"""A control answer that every judge can grade or compare, used if the judge did neither for an answer."""


@dataclass
class Usage(Traffic):
    """Counters of a judge's requests, tokens and cost.

    Attributes:
        input_tokens, output_tokens: tokens by the judge's count, including answers without a judgement.
        cost: cost of these tokens, in the currency of the prices.
        injections: answers that match a rule of `tasks.verifiers.chat.injection`.
        shortened: answers that were cut below `max_response_chars` to fit the judge's context.
        ungraded: answers that score 0 because the judge did not grade them, but did grade the control answer.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0
    injections: int = 0
    shortened: int = 0
    ungraded: int = 0


class TooLong(CannotJudge):
    """The endpoint refused a prompt because of its length."""


class Unwanted(CannotJudge):
    """The endpoint refused a prompt because of its content."""


class Endpoint(Client):
    """The HTTP client of one OpenAI-compatible endpoint. Use it on one event loop only."""

    def __init__(self, config: JudgeConfig, usage: Usage) -> None:
        """Create the client; raises `ValueError` if the URL is missing or the key's variable is not set."""
        if config.url is None:
            raise ValueError("the judge has no url: give one, or start a server with serving(config)")
        key = read_key("api_key_env", config.api_key_env)
        who = f"the judge {config.model!r}"
        super().__init__(who, config.url, config, usage, key)
        # vLLM's /tokenize is not below /v1
        self._beside = Client(who, config.url.removesuffix("/v1"), config, usage, key)
        self._config, self._usage = config, usage
        self._extra = json.loads(config.extra_body)

    async def ask(self, messages: list[dict[str, str]], fields: dict[str, Any], deadline: float) -> bytes:
        """Send one request and return the body of the endpoint's answer.

        Args:
            messages: the prompt.
            fields: fields of the request in addition to model and prompt.
            deadline: latest end of the judgement, as `time.monotonic()`; no wait continues after it.

        Raises:
            TooLong, Unwanted: If the endpoint refuses the prompt because of its length or its content.
            CannotJudge: If the request is refused for another reason, or not answered within the retries and the
                deadline.
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

    async def read(
        self,
        messages: list[dict[str, str]],
        fields_of: Callable[[int], dict[str, Any]],
        read: Callable[[bytes], Result],
        deadline: float,
    ) -> Result | str:
        """Send the prompt, with retries after answers without a judgement; return the judgement or the last problem.

        Args:
            messages: the prompt.
            fields_of: returns the fields of the request, given the number of the attempt, from 0.
            read: returns the judgement in the body of an answer; raises `NoJudgement` if there is none.
            deadline: latest end of all requests, as `time.monotonic()`.

        Raises:
            TooLong, Unwanted, CannotJudge: A request failed, or the last answer is not a completion.
        """
        config = self._config
        reason: NoJudgement | None = None
        for attempt in range(config.judgement_retries + 1):
            self._usage.retries += attempt > 0
            body = await self.ask(messages, fields_of(attempt), deadline)
            read_tokens, written = read_usage(body)
            self._usage.input_tokens += read_tokens
            self._usage.output_tokens += written
            self._usage.cost += (read_tokens * config.input_price + written * config.output_price) / 1e6
            try:
                return read(body)
            except NoJudgement as problem:
                reason = problem
        if isinstance(reason, NoCompletion):
            raise self.make_error(f"failed {config.judgement_retries + 1} times, at last: {reason}")
        return str(reason) if self._key is None else str(reason).replace(self._key.get_secret_value(), "[key]")

    async def judge(
        self, request: Callable[[str, float], Awaitable[Result | str]], answer: str, failure: str
    ) -> Result | str:
        """Return the result for an answer, or the reason why the judge gave none although it gave one for `CONTROL`.

        Args:
            request: returns the result for an answer within a deadline, or the reason why there is none.
            answer: the answer.
            failure: what the judge did if it gives a result for neither, for the error.

        Raises:
            CannotJudge: the judge gives no result for `CONTROL` either, or a request failed.
        """

        async def judge_or_control(deadline: float) -> Result | str:
            result = await request(answer, deadline)
            if isinstance(result, str):
                control = await request(CONTROL, deadline)
                if isinstance(control, str):
                    raise self.make_error(f"{failure}, at last: {control}")
            return result

        result = await self.judgement(judge_or_control)
        self._usage.ungraded += isinstance(result, str)
        return result

    async def tokens(self, text: str, deadline: float) -> tuple[int, int]:
        """Return the number of tokens of a text, and the judge's context length in tokens, from vLLM's `/tokenize`.

        Raises:
            CannotJudge: If the endpoint has no `/tokenize`, or fails.
        """
        request = {"model": self._config.model, "prompt": text, "add_special_tokens": False}
        body = await self._beside.post("/tokenize", json.dumps(request).encode(), deadline)
        try:
            answer = json.loads(body)
            count, context = answer["count"], answer["max_model_len"]
        except (ValueError, TypeError, KeyError, RecursionError):
            raise self.make_error("counts no tokens: its answer differs from vLLM's") from None
        if not (isinstance(count, int) and isinstance(context, int) and count >= 0 and context > 0):
            raise self.make_error("counts no tokens: its answer contains no numbers")
        return count, context

    async def close(self) -> None:
        """Close the connections. Judgements in flight fail."""
        await super().close()
        await self._beside.close()
