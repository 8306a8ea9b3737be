"""Reading of a judge's answer: the one JSON object that was asked for, or an error. Nothing is guessed or clamped."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, NoReturn

from tasks.verifiers.responses import strip_thinking

MAX_SHOWN = 1_000
"""Characters of a judge's answer that an error quotes."""


class NoJudgement(ValueError):  # noqa: N818 - reads as the sentence it is
    """An endpoint's answer holds no judgement; the message names its fault."""


class NoCompletion(NoJudgement):
    """An endpoint's answer is no chat completion: the endpoint's failure, whatever the judge read."""


@dataclass(frozen=True)
class Judgement:
    """A grade on the judge's own scale, and the reason for it; the reason is empty where none was asked for."""

    reason: str
    score: int


def response_format(lowest: int, highest: int, reasons: bool = True) -> dict[str, Any]:
    """Return the structured output that is asked for: a reason if `reasons`, then a whole number of the scale."""
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
    """Return the judgement in the body of a chat completion; for any bytes raises `NoJudgement` and nothing else.

    It is `NoCompletion` where the body holds no words of a judge.
    """
    try:
        completion = parsed(body, "the endpoint's answer")
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
    """Return the judgement in a message: one JSON object and nothing beside it, but for a thinking part before it.

    Raises:
        NoJudgement: no text, other text, other keys or types, a score off the scale.
    """
    if not isinstance(content, str) or not content.strip():
        raise NoJudgement("the judge said nothing")
    text = strip_thinking(content) if content.lstrip().startswith("<think>") else content
    fields = parsed(text, "the judge's message")
    wanted = {"reason", "score"} if reasons else {"score"}
    if not isinstance(fields, dict) or set(fields) != wanted:
        raise NoJudgement(f"the judge's message is not an object of {' and '.join(sorted(wanted))}: {_shown(text)}")
    reason, score = fields.get("reason", ""), fields["score"]
    if not isinstance(reason, str):
        raise NoJudgement(f"the reason is no text: {reason!r:.200}")
    if not isinstance(score, int) or isinstance(score, bool):
        raise NoJudgement(f"the score is no whole number: {score!r:.200}")
    if not lowest <= score <= highest:
        raise NoJudgement(f"the score {score!r:.50} is off the scale from {lowest} to {highest}")
    return Judgement(reason, score)


def read_usage(body: bytes) -> tuple[int, int]:
    """Return the tokens read and written by the endpoint's own count; zeros where it states none."""
    try:
        completion = parsed(body, "")
    except NoJudgement:
        return 0, 0
    usage = completion.get("usage") if isinstance(completion, dict) else None
    counts = usage if isinstance(usage, dict) else {}
    return _count(counts.get("prompt_tokens")), _count(counts.get("completion_tokens"))


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def parsed(text: str | bytes, what: str) -> Any:
    """Parse strict JSON: UTF-8, no NaN, no key twice; raises `NoJudgement` for anything else."""
    try:
        if isinstance(text, bytes):
            text = text.decode("utf-8")
        return json.loads(text, parse_constant=_refuse, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise NoJudgement(f"{what} is not JSON ({error!s:.100}): {_shown(text)}") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a key stands twice")
    return fields


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _shown(text: str | bytes) -> str:
    return repr(text[:MAX_SHOWN])
