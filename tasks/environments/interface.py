"""Defines the interface of an environment: its arguments and its return values.

    async def guess(prompt, generate, number):
        turn = await generate()                 # the policy's first answer to the prompt
        while number not in turn.text and not turn.last:
            turn = await generate("Try again.") # a user's turn, and the policy's answer to it
        return float(number in turn.text)

The columns listed in the data file are passed as keyword arguments. This module imports the standard library only.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

Message = Mapping[str, str]
"""A turn of a conversation: `role` and `content`."""

ROLES = ("user", "tool", "environment", "system")
"""Roles of the turns that an environment may insert; turns of `assistant` are the policy's. A chat template has some of
them: the results of tools have the role `tool` for most models, and `environment` for Olmo 3."""


def make_encodable(text: str) -> str:
    r"""Return `text` with unpaired surrogates escaped (`\ud83d`), because no tokenizer or file takes them.

    JSON may contain them, so a policy can write one in a tool call.
    """
    return text.encode(errors="backslashreplace").decode()


class EpisodeOver(Exception):  # noqa: N818 - it is not an error of the environment
    """A limit of the episode (turns, tokens or seconds) was reached.

    An environment that catches this can still return a reward. Otherwise the verifier scores the episode.
    """


class ServiceError(RuntimeError):
    """The verifier cannot score a text, or the sandbox cannot run a program, for a reason other than the policy.

    Attributes:
        may_pass: True if a retry may succeed, for example after an outage.
    """

    def __init__(self, reason: str, *, may_pass: bool) -> None:
        super().__init__(reason)
        self.may_pass = may_pass


@dataclass(frozen=True)
class Turn:
    """One turn of the policy.

    Attributes:
        text: the generated text, without the token that ended it.
        finish_reason: `stop` (the policy ended it) or `length` (truncated by a token limit).
        last: True if the limits allow no further turn: `generate` would raise `EpisodeOver`. If False, it may raise it
            nevertheless, because the next messages may have too many tokens.
    """

    text: str
    finish_reason: str
    last: bool


@dataclass(frozen=True)
class Judgement:
    """The verifier's score of a text, as returned by `Prompt.judge`.

    Attributes:
        score: the score, in [0, 1].
        passed: True if the text is correct as a whole.
        detail: the verifier's reason, in one line.
    """

    score: float
    passed: bool
    detail: str


@dataclass(frozen=True)
class Outcome:
    """The outcome of an episode whose environment computes the reward.

    Attributes:
        reward: any finite number.
        passed: True if the episode counts as a success in pass rates. Optional. If None, it does if `reward` is at
            least 1.
    """

    reward: float
    passed: bool | None = None


@dataclass(frozen=True)
class ToolCall:
    """A tool call in a turn of the policy.

    Attributes:
        name: name of the function.
        arguments: JSON values by parameter name, not validated yet.
        problem: error message for the policy if the call cannot be parsed, else empty.
    """

    name: str
    arguments: dict[str, Any]
    problem: str = ""


class Tools(Protocol):
    """The functions that the data file lists in `environment.tools`."""

    def calls_in(self, text: str) -> list[ToolCall]:
        """Return the tool calls in a turn of the policy, in order."""

    async def result_of(self, call: ToolCall) -> str:
        """Call the function and return its result as text, or an error message if the call is invalid.

        `ValueError`, `LookupError` and `ArithmeticError` of the function become error messages for the policy. Any
        other exception is a failure of the environment.
        """


@dataclass(frozen=True)
class Prompt:
    """The prompt of an episode.

    Attributes:
        messages: its turns.
        sample: index of the sample of this prompt, from 0.
        seed: seed for random choices. It differs between prompts and samples, and stays the same when an interrupted
            episode is replayed.
        judge: scores a text of the policy with the prompt's verifier; raises `ServiceError` if it cannot.
        control_tokens: texts of the model's control tokens, which an inserted message may not contain.
        tools: the functions that the policy may call, or None if the data file lists none.
        turns: maximum number of turns of the policy (`environment.turns`). Optional. If None, it is not known.
    """

    messages: Sequence[Message]
    sample: int
    seed: int
    judge: Callable[[str], Awaitable[Judgement]]
    control_tokens: Sequence[str] = ()
    tools: Tools | None = None
    turns: int | None = None

    def plain(self, text: str) -> str:
        """Return `text` with a space inside every control token, so that it can be inserted safely."""
        text = make_encodable(text)
        for token in self.control_tokens:
            text = text.replace(token, f"{token[:1]} {token[1:]}")
        return text


class Generate(Protocol):
    """The function that continues the conversation."""

    async def __call__(self, messages: str | Sequence[Message] = (), /, *, anew: bool = False) -> Turn:
        """Insert messages, and return the policy's next turn.

        Args:
            messages: turns with roles of `ROLES`, or the text of one user turn. Before the first turn of the policy
                they are added to the prompt; only then may there be none. Unpaired surrogates are escaped.
            anew: True if `messages` is a whole conversation that replaces the current one, and may contain turns of
                `assistant`. The policy then sees nothing else. Earlier turns are trained on with the context in which
                they were sampled.

        Raises:
            EpisodeOver: If a limit of turns or tokens allows no further turn, or the environment's seconds are over.
            ValueError: If a message has another role or content that is not text, or contains a control token of the
                model, or if a conversation passed with `anew` ends in a turn of `assistant`.
        """


Result = float | Outcome | None
"""Return value of an environment: a reward, or None if the prompt's verifier scores the last turn."""
