"""Parses a judge's answer, which must be the requested JSON object. Nothing is guessed or clamped."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, NoReturn

from tasks.verifiers.responses import strip_thinking

MAX_SHOWN = 1_000
"""Maximum characters of a judge's answer that an error quotes."""


class NoJudgement(ValueError):  # noqa: N818 - the name says what is wrong
    """An endpoint's response contains no judgement; the message states why."""


class NoCompletion(NoJudgement):
    """An endpoint's response is not a chat completion: the endpoint failed, independently of the prompt."""


@dataclass(frozen=True)
class Judgement:
    """A grade on the judge's scale and the reason for it; the reason is empty if none was requested."""

    reason: str
    score: int


def build_response_format(lowest: int, highest: int, reasons: bool = True) -> dict[str, Any]:
    """Return the structured output format of a request: a reason if `reasons`, then an integer of the scale."""
    # an enumeration, because not every endpoint that accepts a schema supports minimum and maximum
    score = {"type": "integer", "enum": list(range(lowest, highest + 1))}
    schema = {
        "type": "object",
        "properties": {"reason": {"type": "string"}, "score": score} if reasons else {"score": score},
        "required": ["reason", "score"] if reasons else ["score"],
        "additionalProperties": False,
    }
    return {"type": "json_schema", "json_schema": {"name": "judgement", "strict": True, "schema": schema}}


def read_completion(body: bytes, lowest: int, highest: int, reasons: bool = True) -> Judgement:
    """Return the judgement in the body of a chat completion.

    Raises:
        NoJudgement: If the body contains no judgement. No input raises any other exception.
        NoCompletion: If the body contains no message of a judge.
    """
    try:
        completion = parse_json(body, "the endpoint's answer")
    except NoJudgement as reason:
        raise NoCompletion(str(reason)) from None
    choices = completion.get("choices") if isinstance(completion, dict) else None
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        raise NoCompletion(f"the endpoint's answer does not contain one choice: {_show(body)}")
    message, ended = choices[0].get("message"), choices[0].get("finish_reason")
    if ended == "content_filter":
        raise NoJudgement(f"the judge did not finish (finish_reason {ended!r})")
    if not isinstance(message, dict):
        raise NoCompletion(f"the choice contains no message: {_show(body)}")
    if message.get("refusal"):
        raise NoJudgement(f"the judge refused: {message['refusal']!r:.200}")
    if ended != "stop":
        raise NoJudgement(f"the judge did not finish (finish_reason {ended!r:.50})")
    return read_judgement(message.get("content"), lowest, highest, reasons)


def read_judgement(content: Any, lowest: int, highest: int, reasons: bool = True) -> Judgement:
    """Return the judgement in a message, which must be one JSON object, optionally after a thinking part.

    Raises:
        NoJudgement: If there is no text or other text, or the object has other keys or types or a score off the scale.
    """
    if not isinstance(content, str) or not content.strip():
        raise NoJudgement("the judge's message is empty")
    text = strip_thinking(content) if content.lstrip().startswith("<think>") else content
    fields = parse_json(text, "the judge's message")
    wanted = {"reason", "score"} if reasons else {"score"}
    if not isinstance(fields, dict) or set(fields) != wanted:
        raise NoJudgement(f"the judge's message is not an object of {' and '.join(sorted(wanted))}: {_show(text)}")
    reason, score = fields.get("reason", ""), fields["score"]
    if not isinstance(reason, str):
        raise NoJudgement(f"the reason is not a text: {reason!r:.200}")
    if not isinstance(score, int) or isinstance(score, bool):
        raise NoJudgement(f"the score is not a whole number: {score!r:.200}")
    if not lowest <= score <= highest:
        raise NoJudgement(f"the score {score!r:.50} is off the scale from {lowest} to {highest}")
    return Judgement(reason, score)


def read_usage(body: bytes) -> tuple[int, int]:
    """Return the input and output tokens that the endpoint reports, or zeros if it reports none."""
    try:
        completion = parse_json(body, "")
    except NoJudgement:
        return 0, 0
    usage = completion.get("usage") if isinstance(completion, dict) else None
    counts = usage if isinstance(usage, dict) else {}
    return _count(counts.get("prompt_tokens")), _count(counts.get("completion_tokens"))


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def parse_json(text: str | bytes, what: str) -> Any:
    """Parse strict JSON (UTF-8, no NaN, no duplicate keys); raises `NoJudgement` for anything else."""
    try:
        if isinstance(text, bytes):
            text = text.decode("utf-8")
        return json.loads(text, parse_constant=_refuse, object_pairs_hook=_require_unique_keys)
    except (ValueError, RecursionError) as error:
        raise NoJudgement(f"{what} is not JSON ({error!s:.100}): {_show(text)}") from None


def _require_unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a key occurs twice")
    return fields


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _show(text: str | bytes) -> str:
    return repr(text[:MAX_SHOWN])
