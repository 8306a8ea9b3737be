"""The interface of an environment: what it is handed, and what it may return.

    async def guess(prompt, generate, number):
        turn = await generate()                 # the policy's first answer to the prompt
        while number not in turn.text and not turn.last:
            turn = await generate("Try again.") # a user's turn, and the policy's answer to it
        return float(number in turn.text)

The columns that the data file names come as keyword arguments. Nothing here imports a library.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

Message = Mapping[str, str]
"""A turn of a conversation: `role` and `content`."""

ROLES = ("user", "tool", "system")
"""Roles of the turns that an environment may insert; those of `assistant` are the policy's."""


class EpisodeOver(Exception):  # noqa: N818 - it is no error of the environment
    """A limit of the episode allows no further turn. An environment that does not catch it ends, without a reward."""


class ServiceError(RuntimeError):
    """The verifier cannot judge, or the sandbox cannot run a program: the reason is not the policy's.

    Attributes:
        may_pass: True where another attempt may succeed, as after an outage.
    """

    def __init__(self, reason: str, *, may_pass: bool) -> None:
        super().__init__(reason)
        self.may_pass = may_pass


@dataclass(frozen=True)
class Turn:
    """One turn of the policy.

    Attributes:
        text: what it said, without the token that ended it.
        finish_reason: `stop` (the policy ended it) or `length` (a limit of tokens cut it).
        last: True where the limits allow no further turn: `generate` would raise `EpisodeOver`.
    """

    text: str
    finish_reason: str
    last: bool


@dataclass(frozen=True)
class Judgement:
    """The verifier's judgement of a text, as `Prompt.judge` returns it.

    Attributes:
        score: the degree to which it is right, in [0, 1].
        passed: whether it is right as a whole.
        detail: the verifier's reason, one line.
    """

    score: float
    passed: bool
    detail: str


@dataclass(frozen=True)
class Outcome:
    """The end of an episode whose environment gives the reward itself.

    Attributes:
        reward: any finite number.
        passed: whether the episode succeeded, as pass rates count it; None: where `reward` is 1 or more.
    """

    reward: float
    passed: bool | None = None


@dataclass(frozen=True)
class ToolCall:
    """A call of a tool, as a turn of the policy holds it.

    Attributes:
        name: name of the function.
        arguments: JSON values by the names of its parameters; nothing of them has been checked.
        problem: why it cannot be read, for the policy; empty where it can.
    """

    name: str
    arguments: dict[str, Any]
    problem: str = ""


class Tools(Protocol):
    """The functions that the data file names in `environment.tools`."""

    def calls_in(self, text: str) -> list[ToolCall]:
        """Return the calls in a turn of the policy, in their order."""

    async def result_of(self, call: ToolCall) -> str:
        """Call the function, and return its result as text; where the call is wrong, a text that says so.

        An exception of the function is the environment's, but for `ValueError`, `LookupError` and `ArithmeticError`,
        which the policy reads.
        """


@dataclass(frozen=True)
class Prompt:
    """The prompt of an episode.

    Attributes:
        messages: its turns.
        sample: number of the sample of this prompt, from 0.
        seed: a number for random choices: another one for each prompt and sample, and the same one when an interrupted
            episode is played again.
        judge: asks the prompt's verifier about a text of the policy; raises `ServiceError` where it cannot judge.
        control_tokens: texts of the model's control tokens, which an inserted message may not hold.
        tools: the functions that the policy may call; None where the data file names none.
    """

    messages: Sequence[Message]
    sample: int
    seed: int
    judge: Callable[[str], Awaitable[Judgement]]
    control_tokens: Sequence[str] = ()
    tools: Tools | None = None

    def plain(self, text: str) -> str:
        """Return `text` with a space inside every control token in it, so that it may be inserted."""
        for token in self.control_tokens:
            text = text.replace(token, f"{token[:1]} {token[1:]}")
        return text


class Generate(Protocol):
    """The function that continues the conversation."""

    async def __call__(self, messages: str | Sequence[Message] = (), /, *, anew: bool = False) -> Turn:
        """Insert messages, and return the policy's next turn.

        Args:
            messages: turns by `ROLES`, or the text of one user's turn; before the first turn of the policy they are
                added to the prompt, and may be empty there alone.
            anew: the messages are a whole conversation, turns of `assistant` among them, that takes the place of the
                one so far: the policy sees nothing else. The turns before it are trained on under what they saw.

        Raises:
            EpisodeOver: a limit of turns or tokens allows no further turn.
            ValueError: a message has another role or no text, or holds a control token of the model; a conversation
                that is begun anew ends in a turn of `assistant`.
        """


Result = float | Outcome | None
"""The value that an environment returns: a reward, or None, where the prompt's verifier judges the last turn."""
