"""The types of an engine's results and errors; nothing here imports vLLM."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from tasks.failures import InfrastructureError, MistakeError
from tasks.generation.config import SamplingConfig
from tasks.storage.tensor_digest import Contents
from tasks.verifiers.scores import FunctionFailure, Reward, Score


class EngineError(InfrastructureError):
    """The engine failed, and no fault of a response made it: another engine may succeed."""


class EngineOptionsError(MistakeError):
    """vLLM does not accept the model or the options; another attempt would fail in the same way."""


class WeightsNotTakenError(MistakeError):
    """An update left a tensor of the learner, or a weight of the engine, aside; another engine would do the same."""


class RequestRefusedError(MistakeError):
    """The engine refuses this request, and keeps serving others."""


class ServedAdapter(NamedTuple):
    """The LoRA adapter that an engine applies to all requests."""

    rank: int
    """Rank of the adapter."""
    layers: tuple[str, ...]
    """Names of the adapted linear layers, such as `q_proj`."""


@dataclass(frozen=True)
class VersionSpan:
    """The tokens [start, end) of a completion, which were sampled by policy `version`."""

    version: int
    start: int
    end: int


class EpisodeTurn(NamedTuple):
    """One turn of the policy in an episode.

    Attributes:
        start, end: its tokens are [start, end) of those of the episode.
        text: what it said, without the token that ended it.
        inserted: the messages before it, by role and content, that the environment inserted; its tokens from the end of
            the turn before are the chat template's.
        context: int32 `[n]`, all tokens that it was sampled after, where the environment began the conversation anew
            with `inserted`; None: it follows the turn before, or the prompt.
    """

    start: int
    end: int
    text: str
    inserted: tuple[dict[str, str], ...] = ()
    context: NDArray[np.int32] | None = None


class Piece(NamedTuple):
    """A part of an episode that is one sequence of tokens: all of it, unless its conversation was begun anew.

    Attributes:
        context: the tokens before its first turn; None: the prompt's.
        start, end: its tokens after them are [start, end) of those of the episode.
    """

    context: NDArray[np.int32] | None
    start: int
    end: int


class EpisodeEnd(NamedTuple):
    """The end of an episode that does not leave the judgement of its last turn to the verifier.

    Attributes:
        reward: the reward that its environment gave; None where there is none, for the reason in `error`.
        passed: whether the environment calls the episode a success.
        error: why the episode has no reward; None where it has one.
        failure: the failure of the environment behind `error`; None where another reason is.
    """

    reward: float | None
    passed: bool = False
    error: str | None = None
    failure: FunctionFailure | None = None

    @property
    def may_pass(self) -> bool:
        """True where there is no reward for a cause that another attempt at the episode may not meet."""
        return self.reward is None and (self.failure is None or self.failure.may_pass)

    @property
    def score(self) -> Score:
        """The score of the episode: the environment's reward is its only one, and `value` is that clipped to [0, 1]."""
        if self.reward is None:
            return Score.unjudged(self.error or "the episode has no reward", self.failure)
        value = min(max(self.reward, 0.0), 1.0)
        rewards = (Reward("environment", 1.0, self.reward),)
        return Score(value, self.passed, f"environment: {self.reward:g}", rewards=rewards)


@dataclass(frozen=True, eq=False)
class Completion:
    """One sampled response, or the turns of one episode. Its numbers are arrays: a window of them has 10^8 tokens.

    Attributes:
        text: the response, with special tokens but for the one that ended it; of an episode, its last turn.
        token_ids: int32 `[n]`, sampled tokens, the end token included where the model ended the response; of an
            episode, the tokens that its environment inserted as well.
        logprobs: float32 `[n]`, log-probability of each sampled token under the distribution that it was sampled from,
            nats; 0 for an inserted token; `[0]` where they were not requested.
        finish_reason: `stop` (the model ended it) or `length` (truncated at the limit).
        versions: spans of tokens by the policy version that sampled them; in-flight updates make more than one.
        turns: the turns of an episode; empty for a single response, all of whose tokens are sampled.
        end: how the episode ended, where the verifier has nothing to judge; None otherwise.
    """

    text: str
    token_ids: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    finish_reason: str
    versions: list[VersionSpan]
    turns: tuple[EpisodeTurn, ...] = ()
    end: EpisodeEnd | None = None

    @property
    def num_tokens(self) -> int:
        """Number of sampled tokens."""
        if self.is_episode:
            return sum(turn.end - turn.start for turn in self.turns)
        return len(self.token_ids)

    @property
    def pieces(self) -> list[Piece]:
        """The sequences of tokens that a learner trains on, in their order; one for a single response."""
        turns = [turn for index, turn in enumerate(self.turns) if index == 0 or turn.context is not None]
        starts = [turn.start for turn in turns]
        starts[:1] = [0]
        ends = [*starts[1:], len(self.token_ids)]
        contexts = [turn.context for turn in turns] or [None]
        return [Piece(*piece) for piece in zip(contexts, starts or [0], ends, strict=True)]

    @property
    def is_episode(self) -> bool:
        """True for an episode; one that failed before its first turn has neither turns nor tokens."""
        return bool(self.turns) or self.end is not None

    @property
    def earlier(self) -> list[dict[str, str]]:
        """The messages between the prompt and the last turn of an episode; empty for a single response.

        A conversation that was begun anew is among them as a whole.
        """
        messages: list[dict[str, str]] = []
        for turn in self.turns:
            messages += [*turn.inserted, {"role": "assistant", "content": turn.text}]
        return messages[:-1]

    @property
    def truncated(self) -> bool:
        """True if the response was cut at the limit of its length."""
        return self.finish_reason == "length"


@dataclass(frozen=True)
class Response:
    """One sampled response where no token of it is needed.

    Attributes:
        text: the response, as in `Completion`.
        num_tokens: number of sampled tokens.
        finish_reason: `stop` or `length`, as in `Completion`.
    """

    text: str
    num_tokens: int
    finish_reason: str


class Sampler(Protocol):
    """A policy that responses are drawn from: an engine, or a server that someone else runs."""

    async def generate(
        self, prompt_ids: Sequence[int], sampling: SamplingConfig, *, seed: int | None, with_logprobs: Literal[False]
    ) -> Response | Completion:
        """Sample one response to a tokenised prompt; `seed` is that of this one request."""


@dataclass(frozen=True)
class WeightUpdate:
    """Describes a finished weight update of an engine."""

    pause_seconds: float
    """Time in which generation was paused."""
    total_seconds: float
    """Time from the call to the return."""
    contents: Contents
    """Contents of the tensors that the engine loaded."""


@dataclass
class EngineStatistics:
    """Figures of one engine: counters since it started, and its present load.

    Attributes:
        generated_tokens: number of tokens sampled since the start, those of unfinished responses included.
        running, queued: numbers of requests that are being decoded, and that wait for room.
        kv_cache_usage: share of the KV cache that is in use.
        preemptions: number of times since the start that a request lost its KV cache to others, to be computed again.
        gpu: name of the engine's first GPU, as torch reports it; empty: it has none.
    """

    generated_tokens: int = 0
    running: int = 0
    queued: int = 0
    kv_cache_usage: float = 0.0
    preemptions: int = 0
    gpu: str = ""


def sample_seed(seed: int, key: str, sample: int) -> int:
    """Derive the seed of sample `sample` of the prompt `key` from `seed`; it is equal in every run and process."""
    return zlib.crc32(f"{seed}:{key}:{sample}".encode())
