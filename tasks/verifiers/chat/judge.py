"""Grades chat answers with an LLM judge behind an endpoint.

An answer cannot avoid its grade by breaking the judge. If the judge has not graded it within the retries (text without
a grade, no text, an end before the grade, a refusal because of length or content), the judge must grade another answer
to the same question, `CONTROL`. If that succeeds, the answer is at fault and scores 0. If not, the conversation, the
reference or the judge is at fault, and the result is an error. Any other failure of the judge (no connection, 5xx, a
body that is not a completion, a timeout) is an error without this check. `prepare_answer` is also used for reward
models.

    answer ──► graded? ── yes ──────────────────────────────► its grade
                  └─ no ──► is CONTROL graded? ── yes ──────► 0
                                                └─ no ──────► error
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tasks.failures import one_line
from tasks.verifiers.calls import Messages
from tasks.verifiers.chat.config import JudgeConfig, RewardModelConfig
from tasks.verifiers.chat.endpoint import Endpoint, TooLong, Unwanted, Usage
from tasks.verifiers.chat.fitting import Context
from tasks.verifiers.chat.injection import find_injections
from tasks.verifiers.chat.pairwise import PairwiseJudge, make_score
from tasks.verifiers.chat.prompt_parts import keep_ends
from tasks.verifiers.chat.prompts import Prompt, check_ground_truth, is_pairwise, render, turns
from tasks.verifiers.chat.reading import Judgement, build_response_format, read_completion
from tasks.verifiers.responses import strip_thinking
from tasks.verifiers.scores import CannotJudge, Score

MAX_REASON = 200
"""Maximum characters of a judge's reason in a score's detail."""
_CUT_AFTER_REFUSAL = 4
"""Factor by which an answer is shortened after a refusal because of its length."""

Prompts = Callable[[str, int, int], Prompt]
"""A function that renders the prompt, given the answer, the bytes of it to show, and the number of omitted tokens."""


def prepare_answer(
    config: JudgeConfig | RewardModelConfig, usage: Usage, response: Any, messages: Any
) -> tuple[str, str, Score | None]:
    """Prepare an answer for a judge, and score it if no judge is needed.

    Returns:
        The answer without its thinking part; a note on the injection rules that it matches, for the score's detail; and
        the score if no judge is needed, else None.

    Raises:
        CannotJudge: If the response is not text, or the conversation is missing or malformed.
    """
    if not isinstance(response, str):
        raise CannotJudge(f"the response is of type {type(response).__name__}, not a string")
    conversation = "\n".join(content for _, content in turns(messages))
    answer = strip_thinking(response)
    if not answer:
        return answer, "", Score.binary(False, "empty response")
    if config.injection == "off":
        return answer, "", None
    tried = find_injections(keep_ends(answer, config.max_response_chars)[0], conversation)
    if not tried:
        return answer, "", None
    usage.injections += 1
    if config.injection == "zero" and any(rule in config.zero_rules for rule in tried):
        return answer, "", Score.binary(False, f"the answer speaks to its grader: {', '.join(tried)}")
    return answer, f"flagged: {', '.join(tried)}; ", None


class ChatJudge:
    """A `Verifier` of chat that uses an LLM judge behind an OpenAI-compatible endpoint."""

    def __init__(self, config: JudgeConfig) -> None:
        """Create the client of the endpoint, and load the tokenizer if one is configured.

        Raises:
            ValueError: If `url` is None, the key's variable is not set, or the tokenizer cannot be loaded.
        """
        self._config = config
        self._usage = Usage()
        self._endpoint = Endpoint(config, self._usage)
        self._context = Context(config, self._endpoint)
        self._pairwise = PairwiseJudge(config, self._endpoint)

    async def judge(self, verifier: str, response: str, ground_truth: Any, messages: Messages | None) -> Score:
        """Grade one response, given the conversation and, for `chat_reference`, the reference.

        An empty answer scores 0 without a request. An answer that the judge does not grade, although it grades
        `CONTROL`, scores 0. Everything else is graded or raises.

        Raises:
            GroundTruthError: If the ground truth is not valid for the verifier.
            CannotJudge: If the conversation is missing, or too long together with the reference; if the endpoint
                refuses, fails or is too slow; or if the judge grades neither the answer nor `CONTROL`.
        """
        check_ground_truth(verifier, ground_truth)
        answer, note, score = prepare_answer(self._config, self._usage, response, messages)
        if is_pairwise(ground_truth):
            if score is not None:
                return make_score(score.value, answer, score.detail)
            return await self._pairwise.compare(answer, note, ground_truth, messages)
        if score is not None:
            return score

        def prompt(answer: str, most: int, omitted_tokens: int) -> Prompt:
            return render(
                self._config, verifier, answer, ground_truth, messages, most=most, omitted_tokens=omitted_tokens
            )

        request = partial(self._ask_judgement, prompt)
        judgement = await self._endpoint.judge(request, answer, "gave no judgement, of another answer neither")
        if isinstance(judgement, str):
            reason = one_line(judgement, MAX_REASON)
            return Score.binary(False, f"{note}the judge grades another answer here, and not this one: {reason}")
        return self._score(judgement, note)

    async def close(self) -> None:
        """Close the connections. Judgements in flight fail."""
        await self._endpoint.close()

    def usage(self) -> dict[str, float]:
        """Return the counters of requests, tokens and flagged answers so far, by name."""
        return self._usage.to_dict()

    async def _ask_judgement(self, prompt: Prompts, answer: str, deadline: float) -> Judgement | str:
        """Return the judgement of an answer cut to the judge's context, or the reason why there is none.

        If the judge refuses the prompt because of its length, the answer is cut once more.
        """
        whole = min(len(answer.encode("utf-8", "surrogatepass")), self._config.max_response_chars)
        fitted, shown = await self._context.fit_answer(partial(prompt, answer), answer, deadline)
        self._usage.shortened += shown < whole
        try:
            return await self._read(fitted, deadline)
        except TooLong:
            self._usage.shortened += shown == whole
            self._usage.retries += 1
        except Unwanted as reason:
            return str(reason)
        try:
            return await self._read(prompt(answer, shown // _CUT_AFTER_REFUSAL, 0), deadline)
        except (TooLong, Unwanted) as reason:
            return str(reason)

    async def _read(self, prompt: Prompt, deadline: float) -> Judgement | str:
        """Send the prompt, and return the judgement or the last problem."""
        config = self._config
        read = partial(read_completion, lowest=config.lowest, highest=config.highest, reasons=config.reasons)
        return await self._endpoint.read(prompt.messages, self._fields, read, deadline)

    def _fields(self, attempt: int) -> dict[str, Any]:
        config = self._config
        temperature = config.temperature if attempt == 0 else config.retry_temperature
        stated = {"temperature": temperature, "seed": None if config.seed is None else config.seed + attempt}
        return {
            "response_format": build_response_format(config.lowest, config.highest, config.reasons),
            config.max_tokens_field: config.max_tokens,
            **{name: value for name, value in stated.items() if value is not None},
        }

    def _score(self, judgement: Judgement, note: str) -> Score:
        lowest, highest = self._config.lowest, self._config.highest
        value = (judgement.score - lowest) / (highest - lowest)
        reason = one_line(judgement.reason, MAX_REASON)
        detail = f"{note}{judgement.score} on {lowest} to {highest}{': ' if reason else ''}{reason}"
        return Score(value, value >= self._config.pass_value, detail)
