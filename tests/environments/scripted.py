"""Plays an environment against a policy that says given texts, with a verifier that is a function."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

from tasks.environments.interface import ROLES, EpisodeOver, Judgement, Prompt, Turn


@dataclass
class Played:
    """What an environment returned, inserted and asked the verifier, and where it began anew, in order."""

    result: Any = None
    inserted: list[dict[str, str]] = field(default_factory=list)
    judged: list[str] = field(default_factory=list)
    anew: list[bool] = field(default_factory=list)

    @property
    def contents(self):
        """The texts that it inserted."""
        return [message["content"] for message in self.inserted]


def equals(right):
    """A verifier that wants exactly this text, and whose reason names it."""

    def judge(text):
        passed = text == right
        return Judgement(float(passed), passed, f"{text!r} {'equals' if passed else 'differs from'} {right!r}")

    return judge


def play(
    environment,
    texts,
    /,
    *,
    turns=None,
    judge=None,
    seed=0,
    control_tokens=(),
    messages=({"role": "user", "content": "Begin."},),
    finish_reason="stop",
    tools=None,
    **columns,
):
    """Run one episode: `turns` of the policy at most, by default as many as it has texts."""
    played = Played()
    limit = len(texts) if turns is None else turns
    said = 0

    async def generate(inserted=(), /, *, anew=False):
        nonlocal said
        if said == limit:
            raise EpisodeOver
        for message in [{"role": "user", "content": inserted}] if isinstance(inserted, str) else inserted:
            if message["role"] not in (*ROLES, *["assistant"] * anew):
                raise ValueError(f"a turn of another role: {message}")
            if any(token in message["content"] for token in control_tokens):
                raise ValueError(f"a control token in {message}")
            played.inserted.append(dict(message))
        played.anew.append(anew)
        said += 1
        return Turn(texts[said - 1], finish_reason, last=said == limit)

    async def judged(text):
        played.judged.append(text)
        return (judge or equals("right"))(text)

    prompt = Prompt(messages, 0, seed, judged, control_tokens, tools, turns)
    played.result = asyncio.run(environment(prompt, generate, **columns))
    return played
