"""What a judge said: the one JSON object that was asked for, or an error. Nothing is guessed, clamped or sought."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, NoReturn

from tasks.verifiers.responses import strip_thinking

MAX_SHOWN = 1_000


class NoJudgement(ValueError):  # noqa: N818 - reads as the sentence it is
    """An endpoint's answer that holds no judgement: says what is wrong with it."""


class NoCompletion(NoJudgement):
    """It is not even the form in which a judge's words come: the endpoint's failure, whatever the judge read."""


@dataclass(frozen=True)
class Judgement:
    """A grade on the judge's own scale, and why; no reason where none was asked for."""

    reason: str
    score: int


def response_format(lowest: int, highest: int, reasons: bool = True) -> dict[str, Any]:
    """The structured output that is asked for: a reason, where one is wanted, then a whole number of the scale."""
    # an enumeration, as not every endpoint that takes a schema knows minimum and maximum
    score = {"type": "integer", "enum": list(range(lowest, highest + 1))}
    schema = {
        "type": "object",
        "properties": {"reason": {"type": "string"}, "score": score} if reasons else {"score": score},
        "required": ["reason", "score"] if reasons else ["score"],
        "additionalProperties": False,
    }
    return {"type": "json_schema", "json_schema": {"name": "judgement", "strict": True, "schema": schema}}


def read_completion(body: bytes, lowest: int, highest: int, reasons: bool = True) -> Judgement:
    """The judgement in the body of a chat completion; raises `NoJudgement`, and nothing else, for any bytes.

    It is `NoCompletion` where the judge's words cannot be told from the body.
    """
    try:
        completion = _parse(body, "the endpoint's answer")
    except NoJudgement as reason:
        raise NoCompletion(str(reason)) from None
    choices = completion.get("choices") if isinstance(completion, dict) else None
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        raise NoCompletion(f"the endpoint's answer does not hold one choice: {_shown(body)}")
    message, ended = choices[0].get("message"), choices[0].get("finish_reason")
    if ended == "content_filter":
        raise NoJudgement(f"the judge did not finish (finish_reason {ended!r})")
    if not isinstance(message, dict):
        raise NoCompletion(f"the choice holds no message: {_shown(body)}")
    if message.get("refusal"):
        raise NoJudgement(f"the judge refused: {message['refusal']!r:.200}")
    if ended != "stop":
        raise NoJudgement(f"the judge did not finish (finish_reason {ended!r:.50})")
    return read_judgement(message.get("content"), lowest, highest, reasons)


def read_judgement(content: Any, lowest: int, highest: int, reasons: bool = True) -> Judgement:
    """The judgement in a message: one JSON object and nothing beside it, but for a thinking part before it.

    Raises:
        NoJudgement: no text, other text, other keys or types, a score off the scale.
    """
    if not isinstance(content, str) or not content.strip():
        raise NoJudgement("the judge said nothing")
    text = strip_thinking(content) if content.lstrip().startswith("<think>") else content
    found = _parse(text, "the judge's message")
    wanted = {"reason", "score"} if reasons else {"score"}
    if not isinstance(found, dict) or set(found) != wanted:
        raise NoJudgement(f"the judge's message is not an object of {' and '.join(sorted(wanted))}: {_shown(text)}")
    reason, score = found.get("reason", ""), found["score"]
    if not isinstance(reason, str):
        raise NoJudgement(f"the reason is no text: {reason!r:.200}")
    if not isinstance(score, int) or isinstance(score, bool):
        raise NoJudgement(f"the score is no whole number: {score!r:.200}")
    if not lowest <= score <= highest:
        raise NoJudgement(f"the score {score!r:.50} is off the scale from {lowest} to {highest}")
    return Judgement(reason, score)


def read_usage(body: bytes) -> tuple[int, int]:
    """Tokens read and written as the endpoint counts them; zeros where it does not say."""
    try:
        completion = _parse(body, "")
    except NoJudgement:
        return 0, 0
    usage = completion.get("usage") if isinstance(completion, dict) else None
    counts = usage if isinstance(usage, dict) else {}
    return _count(counts.get("prompt_tokens")), _count(counts.get("completion_tokens"))


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def _parse(text: str | bytes, what: str) -> Any:
    """Strict JSON: UTF-8, no NaN, no key twice."""
    try:
        if isinstance(text, bytes):
            text = text.decode("utf-8")
        return json.loads(text, parse_constant=_refuse, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise NoJudgement(f"{what} is not JSON ({error!s:.100}): {_shown(text)}") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands twice")
    return found


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _shown(text: str | bytes) -> str:
    return repr(text[:MAX_SHOWN])
