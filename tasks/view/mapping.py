"""Maps a row of rollouts and its prompt to a sample of a log of Inspect, as plain values.

    prompt, row of rollouts ──► {"id", "epoch", "messages", "scores", "metadata", ...}     a response
    prompt, rows of two policies ──► the same, with one message of each policy             a flipped question

A group of responses to a prompt is one sample with epochs. Only the standard library is imported, because
`tasks.view.child` maps rows in Inspect's environment. All texts are untrusted, and stay texts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

HERMES = r"<tool_call>(.*?)</tool_call>"
"""Pattern of a tool call if the environment has no `tool_pattern`; its one group is the JSON."""
ROLES = ("system", "user", "assistant", "tool")
"""The roles of messages that Inspect knows. A message with another role is the user's, with the role in `metadata`."""
VERDICTS = {True: "C", False: "I"}
"""Inspect's values of the score `passed`: correct and incorrect."""
TRAINING_METADATA = (
    *("group", "sample", "step", "actor", "first_version", "last_version", "advantage", "advantage_spread"),
)
"""Columns of training's responses in a sample's metadata, if the table has them."""
OTHER_METADATA = ("policy", "sample", "finish_reason", "num_tokens", "answer_class", "prompt_id")
PROMPT_METADATA = ("source", "row", "domain", "verifier")

MOST_LEVELS = 32
"""Maximum number of levels of a tool call's arguments. Deeper ones, which no library writes, are shown as text."""

Values = dict[str, Any]


def make_plain(value: Any) -> Any:
    """Return a JSON value whose texts can be encoded as UTF-8: a surrogate, which JSON may contain, is escaped."""
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if isinstance(value, Mapping):
        return {make_plain(str(key)): make_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [make_plain(item) for item in value]
    return value


def sample(row: Mapping[str, Any], prompt: Mapping[str, Any] | None, identity: str, epoch: int) -> Values:
    """Return the sample of a response.

    Args:
        row: a row of `ROLLOUTS`, of `EVALUATION_ROLLOUTS` or of training's responses.
        prompt: its row of `PROMPTS`, or None if no table has it.
        identity: the sample's id, the same for all responses of a group.
        epoch: the number of the response in its group, from 1.
    """
    answered = _build_answer(row, prompt)
    restarts = [number for number, message in enumerate(answered) if message.get("restarted")]
    scores = dict(_list_scores(row))
    return make_plain(
        {
            "id": identity,
            "epoch": epoch,
            "input": _build_input(row, prompt),
            "target": _format_target(prompt),
            "messages": [*_build_input(row, prompt), *answered],
            "tokens": row["num_tokens"],
            "scores": scores,
            "error": None if scores else row.get("error") or row.get("detail") or "this response was not scored",
            "metadata": {
                **({"outcome": row["fate"]} if "fate" in row else {}),
                **{name: row[name] for name in (*TRAINING_METADATA, *OTHER_METADATA) if row.get(name) is not None},
                **_describe_prompt(prompt),
                **({"environment": _parse_json(row["outcome"])} if row.get("outcome") else {}),
                **({"conversation begins again at turns": restarts} if restarts else {}),
            },
        }
    )


def make_flipped_sample(
    sides: Sequence[tuple[str, Mapping[str, Any] | None]],
    prompt: Mapping[str, Any] | None,
    identity: str,
    epoch: int,
) -> Values:
    """Return the sample of a question whose pass rate changed, with a response of each policy.

    Args:
        sides: the name of each policy and its row of `EVALUATION_ROLLOUTS`, or None if it has fewer responses.
        prompt: the question's row of `PROMPTS`, or None if no table has it.
        identity: the sample's id.
        epoch: the number of the responses, from 1.
    """
    rows = [(policy, row) for policy, row in sides if row is not None]
    return make_plain(
        {
            "id": identity,
            "epoch": epoch,
            "input": _build_input(rows[0][1], prompt),
            "target": _format_target(prompt),
            "messages": [
                *_build_input(rows[0][1], prompt),
                *(message | {"policy": policy} for policy, row in rows for message in _build_answer(row, prompt)),
            ],
            "tokens": sum(row["num_tokens"] for _, row in rows),
            # The viewer lists the first score: that of the policy which is compared with the other.
            "scores": {
                policy: {
                    "value": VERDICTS[row["passed"]],
                    "answer": row.get("answer"),
                    "explanation": row.get("detail") or "",
                }
                for policy, row in reversed(rows)
                if row["passed"] is not None
            },
            "error": None,
            "metadata": {"prompt_id": rows[0][1]["prompt_id"], **_describe_prompt(prompt)},
        }
    )


def compute_means(samples: Iterable[Mapping[str, Any]]) -> dict[str, tuple[float, int]]:
    """Return the mean of each score of samples and the number of samples that have it, with `passed` as 0 or 1.

    The names have the order of the sample with the most scores.
    """
    totals: dict[str, tuple[float, int]] = {}
    for one in sorted(samples, key=lambda one: -len(one["scores"])):
        for name, score in one["scores"].items():
            value = float(score["value"] == "C") if isinstance(score["value"], str) else score["value"]
            total, count = totals.get(name, (0.0, 0))
            totals[name] = (total + value, count + 1)
    return {name: (total / count, count) for name, (total, count) in totals.items()}


def _build_input(row: Mapping[str, Any], prompt: Mapping[str, Any] | None) -> list[Values]:
    if prompt is None:
        return [_make_message("user", f"(the prompt {row['prompt_id']} is in no table of this run)")]
    return [_make_message(turn["role"], turn["content"]) for turn in prompt["messages"]]


def _build_answer(row: Mapping[str, Any], prompt: Mapping[str, Any] | None) -> list[Values]:
    """Return the messages after the prompt: a response, or the turns of an episode with their tool calls."""
    turns = row.get("turns")
    if not turns:
        return [_make_message("assistant", row["response"])]
    pattern = _make_pattern(prompt)
    messages, waiting = [], []
    for number, turn in enumerate(turns):
        message = _make_message(turn["role"], turn["content"])
        if turn["anew"] and not (number and turns[number - 1]["anew"]):
            message["restarted"] = True
        if turn["sampled"]:
            waiting = list(_parse_calls(turn["content"], pattern, number))
            message["calls"] = list(waiting)
        elif message["role"] == "tool" and waiting:
            message["answers"] = waiting.pop(0)
        messages.append(message)
    return messages


def _make_message(role: str, content: str) -> Values:
    return {"role": role if role in ROLES else "user", "said_by": role, "content": content}


def _parse_calls(text: str, pattern: re.Pattern[str], turn: int) -> Iterator[Values]:
    """Yield the tool calls in a turn. A call that is not an object with a name has the name `(unreadable)`."""
    for number, match in enumerate(pattern.findall(text)):
        call = _parse_json(match)
        name, arguments = (call.get("name"), call.get("arguments")) if isinstance(call, dict) else (None, None)
        if isinstance(arguments, str):
            arguments = _parse_json(arguments)
        yield {
            "id": f"call-{turn}-{number}",
            "name": name if isinstance(name, str) and name else "(unreadable)",
            "arguments": arguments if isinstance(arguments, dict) and _is_shallow(arguments) else {"text": match},
        }


def _is_shallow(value: Any, levels: int = MOST_LEVELS) -> bool:
    """Return whether a JSON value, which the policy wrote, has at most this many levels."""
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels > 0 and all(_is_shallow(item, levels - 1) for item in items)


def _make_pattern(prompt: Mapping[str, Any] | None) -> re.Pattern[str]:
    environment = _parse_json(prompt["environment"]) if prompt and prompt.get("environment") else None
    own = environment.get("tool_pattern") if isinstance(environment, dict) else None
    return re.compile(own or HERMES, re.DOTALL)


def _list_scores(row: Mapping[str, Any]) -> Iterator[tuple[str, Values]]:
    """Yield the score, the verdict and each reward of a response by name. A response without a score has none."""
    if row["score"] is None:
        return
    reason = row.get("detail") or ""
    yield "score", {"value": row["score"], "answer": row.get("answer"), "explanation": reason}
    if row["passed"] is not None:
        yield "passed", {"value": VERDICTS[row["passed"]], "answer": row.get("answer"), "explanation": reason}
    for name, value in _list_rewards(row["rewards"]):
        if value is not None:
            taken = name in ("score", "passed")
            yield f"reward_{name}" if taken else name, {"value": value, "answer": None, "explanation": ""}


def _list_rewards(rewards: Iterable[Any] | None) -> Iterator[tuple[str, float | None]]:
    """Yield rewards by name: pairs in training's tables, and mappings in others."""
    for part in rewards or ():
        yield (part["name"], part["value"]) if isinstance(part, Mapping) else (part[0], part[1])


def _describe_prompt(prompt: Mapping[str, Any] | None) -> Values:
    if prompt is None:
        return {}
    columns = _parse_json(prompt.get("metadata") or "{}")
    return {name: prompt[name] for name in PROMPT_METADATA} | ({"columns": columns} if columns else {})


def _format_target(prompt: Mapping[str, Any] | None) -> str:
    truth = "" if prompt is None else _parse_json(prompt["ground_truth"])
    return truth if isinstance(truth, str) or prompt is None else str(prompt["ground_truth"])


def _parse_json(text: str) -> Any:
    """Return the value of a JSON text, or the text itself if it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
