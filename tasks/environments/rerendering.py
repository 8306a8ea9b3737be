"""Clients that send the whole conversation with every request: only what they add to it goes into the episode.

    request 1: prompt                      ──► generate()
    request 2: prompt, answer, message     ──► generate([message])
    request 3: prompt, another answer, ... ──► HistoryChanged

An episode only grows, so that the tokens of its turns stay those that the policy sampled. A client that edits, shortens
or drops an earlier turn speaks of another conversation, which no token of the episode belongs to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tasks.environments.interface import Generate, Message, Turn

SHOWN_CHARS = 80
"""Most characters of a turn that an error quotes."""


class HistoryChanged(ValueError):  # noqa: N818 - reads as the sentence it is
    """A request has other earlier turns than the episode: the episode is set aside."""


class Conversation:
    """The episode as a client of messages sees it. It answers one request after another."""

    def __init__(self, prompt: Sequence[Message], generate: Generate) -> None:
        """Begin with the turns of the prompt.

        Args:
            prompt: its turns.
            generate: continues the episode.
        """
        self._turns = [(message["role"], message["content"]) for message in prompt]
        self._generate = generate
        self._answer: Turn | None = None

    async def answer(self, messages: Sequence[Mapping[str, Any]]) -> Turn:
        """Return the policy's turn after these messages; the same again for a request that is sent once more.

        Raises:
            HistoryChanged: they do not begin with the turns so far, or add one of the assistant.
            EpisodeOver: a limit of the episode allows no further turn.
            ValueError: a message holds something else than text.
        """
        turns = [(str(message["role"]), text_of(message)) for message in messages]
        if self._answer is not None and turns == self._turns[:-1]:
            return self._answer
        for number, turn in enumerate(self._turns):
            if turns[number : number + 1] != [turn]:
                raise HistoryChanged(
                    f"turn {number + 1} of the episode is {_shown(turn)}, and in a request {_other(turns, number)}"
                )
        added = turns[len(self._turns) :]
        if self._answer is not None and not added:
            raise HistoryChanged("a request adds no turn after the policy's last one")
        if any(role == "assistant" for role, _ in added):
            raise HistoryChanged("a request adds a turn of the assistant that the policy did not say")
        self._answer = await self._generate([{"role": role, "content": content} for role, content in added])
        self._turns = [*turns, ("assistant", self._answer.text)]
        return self._answer


def text_of(message: Mapping[str, Any]) -> str:
    """Return the text of a message, whose content is a text or a list of parts that are texts.

    Raises:
        ValueError: it calls tools, or a part is no text.
    """
    content = message.get("content")
    if message.get("tool_calls"):
        raise ValueError("a message of the environment calls tools, where text alone goes into an episode")
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else [content]
    texts = [part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str)]
    if len(texts) < len(parts):
        shown = str(content)[:SHOWN_CHARS]
        raise ValueError(f"a message of the environment holds {shown}, where text alone goes into an episode")
    return "".join(texts)


def _shown(turn: tuple[str, str]) -> str:
    role, content = turn
    return f"{role}: {content[:SHOWN_CHARS]!r}"


def _other(turns: Sequence[tuple[str, str]], number: int) -> str:
    return _shown(turns[number]) if number < len(turns) else "absent"
