"""Judges of chat answers: a language model behind an endpoint or a reward model, and who makes them."""

from __future__ import annotations

from functools import partial
from typing import Any

from tasks.verifiers.calls import Messages
from tasks.verifiers.chat.config import AnyJudgeConfig, JudgeConfig, RewardModelConfig
from tasks.verifiers.chat.endpoint import Endpoint, Usage
from tasks.verifiers.chat.injection import find_injection
from tasks.verifiers.chat.material import shortened
from tasks.verifiers.chat.prompts import Prompt, check_ground_truth, render, turns
from tasks.verifiers.chat.reading import Judgement, NoJudgement, read_completion, read_usage, response_format
from tasks.verifiers.correspondence import Correspondent
from tasks.verifiers.responses import strip_thinking
from tasks.verifiers.scores import CannotJudge, Score

MAX_REASON = 200


def make_judge(config: AnyJudgeConfig) -> Correspondent:
    """The judge that `config` describes; a reward model is loaded before this returns.

    Raises `ValueError` for what the configuration promises and this machine lacks: a key, a URL, a usable model.
    """
    if isinstance(config, RewardModelConfig):
        from tasks.verifiers.chat.reward_model import RewardModelJudge

        return RewardModelJudge(config)
    return ChatJudge(config)


def settled(config: JudgeConfig | RewardModelConfig, response: Any, messages: Any) -> tuple[str, str, Score | None]:
    """What is known before a judge is asked: the answer itself, what it tries, and the score where that decides it.

    Raises `CannotJudge` for a response that is no text and for a missing or malformed conversation.
    """
    if not isinstance(response, str):
        raise CannotJudge(f"the response is of type {type(response).__name__}, not a string")
    conversation = "\n".join(content for _, content in turns(messages))
    answer = strip_thinking(response)
    if not answer:
        return answer, "", Score(0.0, False, "empty response")
    if config.on_injection == "ignore":
        return answer, "", None
    tried = find_injection(shortened(answer, config.max_response_chars)[0], conversation)
    if tried is None:
        return answer, "", None
    if config.on_injection == "zero":
        return answer, tried, Score(0.0, False, f"the answer speaks to its grader: {tried}")
    return answer, f"flagged: {tried}; ", None


class ChatJudge:
    """A language model behind an OpenAI-compatible endpoint; see `JudgeConfig`."""

    def __init__(self, config: JudgeConfig) -> None:
        """Raises `ValueError` where there is no `url`, or no key in the environment variable that should hold it."""
        self._config = config
        self._usage = Usage()
        self._endpoint = Endpoint(config, self._usage)

    async def judge(self, verifier: str, response: str, ground_truth: Any, messages: Messages | None) -> Score:
        """Grade one response, in the light of the conversation and, for `chat_reference`, of the reference.

        An empty answer scores 0 without a request. Everything else is graded by the judge or raises:

        Raises:
            GroundTruthError: a ground truth that is not the verifier's.
            CannotJudge: no conversation; an endpoint that refuses, fails or is too slow; no judgement in its answers.
        """
        check_ground_truth(verifier, ground_truth)
        answer, note, score = settled(self._config, response, messages)
        if score is not None:
            return score
        prompt = render(self._config, verifier, answer, ground_truth, messages)
        judgement = await self._endpoint.judgement(partial(self._graded, prompt))
        return self._score(judgement, note)

    async def close(self) -> None:
        """Close the connections; judgements in flight fail."""
        await self._endpoint.close()

    def usage(self) -> dict[str, float]:
        """The counters so far."""
        return self._usage.as_dict()

    async def _graded(self, prompt: Prompt, deadline: float) -> Judgement:
        config = self._config
        for attempt in range(config.judgement_retries + 1):
            body = await self._endpoint.ask(prompt.messages, self._fields(attempt), deadline)
            self._count(body)
            try:
                return read_completion(body, config.lowest, config.highest, config.reasons)
            except NoJudgement as reason:
                last = reason
            self._usage.retries += attempt < config.judgement_retries
        raise self._endpoint.failed(f"gave no judgement {config.judgement_retries + 1} times, at last: {last}")

    def _fields(self, attempt: int) -> dict[str, Any]:
        config = self._config
        temperature = config.temperature if attempt == 0 else config.retry_temperature
        stated = {"temperature": temperature, "seed": None if config.seed is None else config.seed + attempt}
        return {
            "response_format": response_format(config.lowest, config.highest, config.reasons),
            config.max_tokens_field: config.max_tokens,
            **{name: value for name, value in stated.items() if value is not None},
        }

    def _count(self, body: bytes) -> None:
        read, written = read_usage(body)
        self._usage.input_tokens += read
        self._usage.output_tokens += written
        self._usage.cost += (read * self._config.input_price + written * self._config.output_price) / 1e6

    def _score(self, judgement: Judgement, note: str) -> Score:
        lowest, highest = self._config.lowest, self._config.highest
        value = (judgement.score - lowest) / (highest - lowest)
        reason = " ".join(judgement.reason.split())[:MAX_REASON]
        detail = f"{note}{judgement.score} on {lowest} to {highest}{': ' if reason else ''}{reason}"
        return Score(value, value >= self._config.pass_value, detail)
