"""Answers clients that send the whole conversation with every request: `generate` gets only the new messages.

    request 1: prompt                      ──► generate()
    request 2: prompt, answer, message     ──► generate([message])
    request 3: prompt, another answer, ... ──► generate([prompt, another answer, ...], anew=True)

A conversation can only grow, so that its turns keep the tokens that the policy sampled. If a client edits, shortens or
drops an earlier turn, the episode restarts with the new conversation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tasks.environments.interface import Generate, Message, Turn

SHOWN_CHARS = 80
"""Maximum characters of a message that an error quotes."""


class Conversation:
    """Tracks the messages of an episode for such a client, and answers its requests one after another."""

    def __init__(
        self, prompt: Sequence[Message], generate: Generate, plain: Callable[[str], str] = lambda text: text
    ) -> None:
        """Start with the messages of the prompt.

        Args:
            prompt: messages of the prompt.
            generate: continues the episode.
            plain: makes a text insertable (`Prompt.plain`). Clients quote the policy, which may write control tokens.
        """
        self._plain = plain
        self._turns = [(message["role"], message["content"]) for message in prompt]
        self._generate = generate
        self._answer: Turn | None = None

    async def answer(self, messages: Sequence[Mapping[str, Any]]) -> Turn:
        """Return the policy's turn after these messages. A repeated request gets the same turn.

        A request that does not start with the turns so far, or that adds an assistant turn, restarts the conversation.

        Raises:
            EpisodeOver: If a limit of the episode allows no further turn.
            ValueError: If a message contains anything other than text, or the last one is the assistant's.
        """
        turns = [(str(message["role"]), get_text(message)) for message in messages]
        if self._answer is not None and turns == self._turns[:-1]:
            return self._answer
        added = turns[len(self._turns) :]
        anew = turns[: len(self._turns)] != self._turns or any(role == "assistant" for role, _ in added)
        if not turns or turns[-1][0] == "assistant":
            raise ValueError("a request does not end with a turn that the policy could answer")
        inserted = [{"role": role, "content": self._plain(content)} for role, content in (turns if anew else added)]
        self._answer = await self._generate(inserted, anew=anew)
        self._turns = [*turns, ("assistant", self._answer.text)]
        return self._answer


def get_text(message: Mapping[str, Any]) -> str:
    """Return the text of a message, whose content is a string or a list of text parts.

    Raises:
        ValueError: If the message calls tools, or a part is not text.
    """
    content = message.get("content")
    if message.get("tool_calls"):
        raise ValueError("a message of the environment calls tools, but an episode contains only text")
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else [content]
    texts = [part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str)]
    if len(texts) < len(parts):
        shown = str(content)[:SHOWN_CHARS]
        raise ValueError(f"a message of the environment contains {shown}, but an episode contains only text")
    return "".join(texts)
