"""Compares an answer with a reference by a judge's log-probabilities, as in AlpacaEval 2.

The judge sees both answers under the names m and M and generates one token. The score is the probability of the
answer's name, normalised over the two names. The order of the answers depends only on the instruction and the judge's
seed, so that it is the same for all policies. The protocol is `weighted_alpaca_eval_gpt4_turbo` (arXiv:2404.04475):
apart from invisible characters, texts are inserted unchanged. An answer can therefore address its judge, and the rules
for such answers (`injection`) are more important than for graded answers.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from functools import partial
from typing import Any

from tasks.verifiers.calls import Messages
from tasks.verifiers.chat.config import JudgeConfig
from tasks.verifiers.chat.endpoint import Endpoint, TooLong, Unwanted
from tasks.verifiers.chat.prompt_parts import keep_ends, remove_invisible
from tasks.verifiers.chat.prompts import load_template, turns
from tasks.verifiers.chat.reading import NoCompletion, NoJudgement, parse_json
from tasks.verifiers.scores import CannotJudge, Reward, Score

TEMPLATE = "pairwise.v1"
"""Name of the question's template."""
NAMES = ("m", "M")
"""Names of the first and of the second answer."""
FIELDS = {"temperature": 1.0, "logprobs": True, "top_logprobs": 5}
"""Fields of the request; the temperature does not affect log-probabilities."""
TOKENS = 1
"""Maximum tokens that the judge generates."""
PREFERENCE, CHARACTERS = "preference", "characters"
"""Names of the rewards of a comparison: the preference, and the length of the answer, which has a weight of 0."""


def build_pair(
    answer: str, reference: str, messages: Messages | None, *, seed: int | None, most: int
) -> tuple[list[dict[str, str]], bool]:
    """Return the question about an answer and a reference, and True if the answer is shown first.

    Args:
        answer: the answer, without its thinking part.
        reference: the answer to compare with.
        messages: the conversation: one user message, optionally after a system message.
        seed: seed of the order of the two answers.
        most: maximum bytes of UTF-8 of each answer that are shown.

    Raises:
        CannotJudge: If the conversation is missing or has several turns.
    """
    spoken = [content for role, content in turns(messages) if role != "system"]
    if len(spoken) != 1:
        raise CannotJudge(f"answers to one instruction are compared, and the conversation has {len(spoken)} turns")
    first = is_shown_first(spoken[0], seed)
    texts = [keep_ends(remove_invisible(text), most)[0] for text in (answer, reference)]
    filled: Any = load_template(TEMPLATE).make_module(
        {
            "instruction": remove_invisible(spoken[0]),
            "first": texts[0 if first else 1],
            "second": texts[1 if first else 0],
        }
    )
    shown = [{"role": "system", "content": str(filled.system)}, {"role": "user", "content": str(filled.user)}]
    return shown, first


def is_shown_first(instruction: str, seed: int | None) -> bool:
    """Return True if the answer is shown first. This is a hash of instruction and seed, True for half of them."""
    return hashlib.sha256(f"{seed}\n{instruction}".encode("utf-8", "surrogatepass")).digest()[0] % 2 == 0


def read_preference(body: bytes, *, first: bool) -> float:
    """Return the probability, in [0, 1], that the judge prefers the answer, from the body of a completion.

    Args:
        body: body of the endpoint's response.
        first: True if the answer was shown first.

    Raises:
        NoCompletion: If the body is not a completion, or has no log-probabilities.
        NoJudgement: If neither name is among the likeliest tokens.
    """
    try:
        likeliest = parse_json(body, "the endpoint's answer")["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
        logprobs = {one["token"]: float(one["logprob"]) for one in likeliest if one["token"] in NAMES}
    except (NoJudgement, TypeError, KeyError, IndexError, ValueError):
        raise NoCompletion("the endpoint's answer has no log-probabilities of its first token") from None
    if not logprobs or any(math.isnan(value) for value in logprobs.values()):
        raise NoJudgement(f"the judge's likeliest tokens are neither {NAMES[0]} nor {NAMES[1]}")
    largest = max(logprobs.values())
    chances = [math.exp(logprobs.get(name, -math.inf) - largest) for name in NAMES]
    return chances[0 if first else 1] / sum(chances)


def make_score(value: float, answer: str, detail: str) -> Score:
    """Return the score of a preference; the answer passes if it is preferred."""
    rewards = (Reward(PREFERENCE, 1.0, value), Reward(CHARACTERS, 0.0, float(len(answer))))
    return Score(value, value > 1 / 2, detail, rewards=rewards)


class PairwiseJudge:
    """Compares answers with references through one endpoint, whose counters it shares."""

    def __init__(self, config: JudgeConfig, endpoint: Endpoint) -> None:
        """Store the options and the client of the judge that grades."""
        self._config = config
        self._endpoint = endpoint

    async def compare(self, answer: str, note: str, truth: Mapping[str, str], messages: Messages | None) -> Score:
        """Return the preference for an answer, or 0 if the judge compares `CONTROL` but not this answer.

        Args:
            answer: the answer, without its thinking part; not empty.
            note: prefix of the score's detail.
            truth: the ground truth, whose `reference` the answer is compared with.
            messages: the conversation.

        Raises:
            CannotJudge: If the conversation has several turns; if the endpoint refuses, fails, is too slow or returns
                no log-probabilities; or if the judge compares neither the answer nor `CONTROL`.
        """
        request = partial(self._ask_preference, truth["reference"], messages)
        value = await self._endpoint.judge(request, answer, "has no preference, for another answer neither")
        if isinstance(value, str):
            return make_score(0.0, answer, f"{note}the judge compares another answer here, and not this one: {value}")
        return make_score(value, answer, f"{note}preferred to the reference with a probability of {value:.3f}")

    async def _ask_preference(
        self, reference: str, messages: Messages | None, answer: str, deadline: float
    ) -> float | str:
        """Send the question, and return the preference or the last problem."""
        config = self._config
        question, first = build_pair(answer, reference, messages, seed=config.seed, most=config.max_response_chars)
        fields = {**FIELDS, config.max_tokens_field: TOKENS}
        read = partial(read_preference, first=first)
        try:
            return await self._endpoint.read(question, lambda _: fields, read, deadline)
        except (TooLong, Unwanted) as refusal:
            return str(refusal)
