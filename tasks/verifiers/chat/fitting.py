"""Cuts long answers to a judge's context length: the middle is removed, and a note in the prompt marks the gap.

Tokens are counted by the configured tokenizer, or by the endpoint if it is vLLM, or otherwise as bytes of UTF-8. Bytes
are an upper bound, since a token of a byte-level vocabulary has at least one byte. If the context length is unknown, a
prompt is sent uncut, and cut once if it is refused because of its length.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from tasks.verifiers.chat.config import JudgeConfig
from tasks.verifiers.chat.endpoint import Endpoint
from tasks.verifiers.chat.prompt_parts import split_middle
from tasks.verifiers.chat.prompts import Prompt
from tasks.verifiers.chat.tokenizer import load_tokenizer
from tasks.verifiers.scores import CannotJudge

SMALLEST_CONTEXT = 4096
"""Assumed context length in tokens if it is unknown; a shorter prompt is sent without counting its tokens."""
CHAT_TEMPLATE_TOKENS = 128
"""Tokens reserved for the judge's chat template around two messages, and for the note on the omitted tokens."""
MOST_COUNTED = 500_000
"""Maximum characters of an omitted middle whose tokens are counted; the note on a longer one states only characters."""
_CLOSE_STEPS = 4
STEPS = 32
"""Number of cuts after which nothing is left of any answer."""

logger = logging.getLogger(__name__)


def choose_next_length(keep: int, tokens: int, fixed: int, budget: int, step: int) -> int:
    """Return the number of bytes of an answer to try next, after `keep` bytes gave a prompt with too many tokens.

    Args:
        keep: bytes tried last.
        tokens: tokens of the prompt with `keep` bytes of the answer.
        fixed: tokens of the prompt without the answer.
        budget: maximum tokens of the prompt.
        step: number of cuts so far. The first cuts are proportional to the tokens per byte, which can vary within an
            answer; later cuts halve the answer.
    """
    if step >= _CLOSE_STEPS:
        return keep // 2
    return int(keep * min(0.95, 0.98 * max(0, budget - fixed) / max(1, tokens - fixed)))


class Context:
    """Cuts answers to the context length of one judge, which it may request from the endpoint.

    Use it only on the event loop of the endpoint.
    """

    def __init__(self, config: JudgeConfig, endpoint: Endpoint) -> None:
        """Load the tokenizer if one is configured.

        Raises:
            ValueError: If the tokenizer is not a folder and has no revision, or cannot be loaded.
        """
        self._config = config
        self._endpoint = endpoint
        self._tokens = config.context_tokens
        self._tokenizer = (
            None if config.tokenizer is None else load_tokenizer(config.tokenizer, config.tokenizer_revision)
        )
        self._endpoint_counts: bool | None = None  # None if it was not requested yet

    async def fit_answer(
        self, render: Callable[[int, int], Prompt], answer: str, deadline: float
    ) -> tuple[Prompt, int]:
        """Return the prompt with as much of the answer as fits, and the number of bytes of the answer in it.

        Args:
            render: renders the prompt, given the bytes of the answer to show and the number of omitted tokens.
            answer: the answer.
            deadline: `time.monotonic()` by which requests must end.

        Raises:
            CannotJudge: If the prompt does not fit even without an answer.
        """
        keep = min(len(answer.encode("utf-8", "surrogatepass")), self._config.max_response_chars)
        prompt = render(keep, 0)
        size = len(prompt.text.encode())
        if size <= self._budget(self._tokens or SMALLEST_CONTEXT):
            return prompt, keep
        tokens = await self._count(prompt.text, deadline)
        if self._tokens is None:
            return prompt, keep
        budget = self._budget(self._tokens)
        if tokens <= budget:
            return prompt, keep
        fixed = await self._count(render(0, 0).text, deadline)
        if fixed > budget and not self._counts_tokens:
            return prompt, keep  # bytes are only an upper bound, so the endpoint decides
        if fixed > budget:
            raise CannotJudge(
                f"conversation and reference are too long for the judge: {fixed} tokens without the answer, and "
                f"{budget} with the {self._config.max_tokens} of a judgement"
            )
        for step in range(STEPS):
            keep = choose_next_length(keep, tokens, fixed, budget, step)
            tokens = await self._count(render(keep, 0).text, deadline)
            if tokens <= budget:
                break
        return render(keep, await self._count_omitted(answer, keep, deadline)), keep

    @property
    def _counts_tokens(self) -> bool:
        return self._tokenizer is not None or bool(self._endpoint_counts)

    def _budget(self, context: int) -> int:
        return context - self._config.max_tokens - CHAT_TEMPLATE_TOKENS

    async def _count_omitted(self, answer: str, keep: int, deadline: float) -> int:
        """Return the number of tokens of the omitted middle, or 0 if only its bytes could be counted."""
        _, gap, _ = split_middle(answer, keep)
        if not self._counts_tokens or len(gap) > MOST_COUNTED:
            return 0
        return await self._count(gap, deadline)

    async def _count(self, text: str, deadline: float) -> int:
        """Count the tokens of a text, or its bytes if tokens cannot be counted."""
        text = text.encode("utf-8", "replace").decode()
        if self._tokenizer is not None:
            return len(await asyncio.to_thread(self._tokenizer.encode, text, add_special_tokens=False))
        if self._endpoint_counts is not False:
            try:
                count, context = await self._endpoint.tokens(text, deadline)
            except CannotJudge as reason:
                if self._endpoint_counts is None:
                    logger.info("a judge's tokens are counted as bytes: %s", reason)
                    self._endpoint_counts = False
            else:
                self._endpoint_counts = True
                self._tokens = self._tokens or context
                return count
        return len(text.encode())
