"""Defines the types of an engine's results and errors, without importing vLLM."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from tasks.failures import InfrastructureError, MistakeError
from tasks.generation.config import SamplingConfig
from tasks.machine.precision import HeadDtype
from tasks.storage.tensor_digest import Contents
from tasks.verifiers.scores import FunctionFailure, Reward, Score

Routes = NDArray[np.uint8] | NDArray[np.uint16]
"""The experts of tokens, `[tokens, layers, k]`, also of layers without experts, whose numbers mean nothing."""


class EngineError(InfrastructureError):
    """The engine failed, and the failure was not caused by a request: another engine may succeed."""


class EngineOptionsError(MistakeError):
    """vLLM does not accept the model or the options. Another attempt would fail in the same way."""


class WeightsNotTakenError(MistakeError):
    """A tensor of the learner was not loaded, or a weight of the engine was not updated.

    Another engine would fail in the same way.
    """


class RequestRefusedError(MistakeError):
    """The engine refuses this request and continues to serve others."""


class ServedAdapter(NamedTuple):
    """The LoRA adapter that an engine applies to all requests."""

    rank: int
    """Rank of the adapter."""
    layers: tuple[str, ...]
    """Names of the adapted linear layers, such as `q_proj`."""


@dataclass(frozen=True)
class EngineUse:
    """The use of an engine, in addition to its options. By default, it only samples.

    Attributes:
        updatable: True if its weights will be replaced.
        adapter: the LoRA adapter that every request uses. Optional. `update_weights` then takes the adapter's folder,
            and must be called before the first request.
        can_sleep: True if `sleep` will be called.
        returns_routes: True if responses have routes, which needs a GPU and a mixture of experts.
        head_dtype: type of the logits.
    """

    updatable: bool = False
    adapter: ServedAdapter | None = None
    can_sleep: bool = False
    returns_routes: bool = False
    head_dtype: HeadDtype = "model"


SAMPLES_ONLY = EngineUse()
"""The use of an engine whose weights stay the same."""


@dataclass(frozen=True)
class VersionSpan:
    """The tokens [start, end) of a completion, sampled by policy `version`."""

    version: int
    start: int
    end: int


class EpisodeTurn(NamedTuple):
    """One turn of the policy in an episode.

    Attributes:
        start, end: its tokens are the episode's tokens [start, end).
        text: its text, without the end token.
        inserted: the messages with role and content that the environment inserted before it. The chat template turns
            them into the tokens between the end of the previous turn and `start`.
        context: int32 `[n]`, all tokens before the turn if the environment restarted the conversation with `inserted`.
            None if the turn follows the previous turn or the prompt.
    """

    start: int
    end: int
    text: str
    inserted: tuple[dict[str, str], ...] = ()
    context: NDArray[np.int32] | None = None


class Piece(NamedTuple):
    """A part of an episode that is one token sequence: the whole episode, unless its conversation was restarted.

    Attributes:
        context: the tokens before its first turn. If None, the tokens of the prompt.
        start, end: its tokens after the context are the episode's tokens [start, end).
    """

    context: NDArray[np.int32] | None
    start: int
    end: int


class EpisodeEnd(NamedTuple):
    """The end of an episode whose last turn is not scored by the verifier.

    Attributes:
        reward: the reward from the environment, or None if there is none for the reason in `error`.
        passed: whether the environment reports the episode as a success.
        error: why the episode has no reward, or None if it has one.
        failure: the failure of the environment that caused `error`, or None if it has another cause.
    """

    reward: float | None
    passed: bool = False
    error: str | None = None
    failure: FunctionFailure | None = None

    def to_fields(self) -> dict[str, Any]:
        """Return the end as plain values, for a table or as JSON."""
        return {**self._asdict(), "failure": self.failure and self.failure._asdict()}

    @classmethod
    def of_fields(cls, fields: Mapping[str, Any]) -> EpisodeEnd:
        """Return the end that `to_fields` has described."""
        failure = FunctionFailure(**fields["failure"]) if fields["failure"] else None
        return cls(**{**fields, "failure": failure})

    @property
    def may_pass(self) -> bool:
        """True if there is no reward and the cause is temporary, so that another attempt may succeed."""
        return self.reward is None and (self.failure is None or self.failure.may_pass)

    @property
    def score(self) -> Score:
        """The score of the episode, whose only reward is the environment's. `value` is the reward clipped to [0, 1]."""
        if self.reward is None:
            return Score.from_error(self.error or "the episode has no reward", self.failure)
        value = min(max(self.reward, 0.0), 1.0)
        rewards = (Reward("environment", 1.0, self.reward),)
        return Score(value, self.passed, f"environment: {self.reward:g}", rewards=rewards)


@dataclass(frozen=True, eq=False)
class Completion:
    """One sampled response, or the turns of one episode.

    Numbers are stored in arrays, because a window of completions has 10^8 tokens.

    Attributes:
        text: the response with special tokens, except the end token. For an episode, its last turn.
        token_ids: int32 `[n]`, the sampled tokens, including the end token if the model ended the response. For an
            episode, they include the tokens that its environment inserted.
        logprobs: float32 `[n]`, log-probability (in nats) of each sampled token under the distribution that it was
            sampled from, and 0 for inserted tokens. Shape `[0]` if log-probabilities were not requested.
        finish_reason: `stop` (the model ended it) or `length` (truncated at the limit).
        versions: spans of tokens by the policy version that sampled them. More than one after in-flight updates.
        turns: the turns of an episode. Empty for a single response, whose tokens are all sampled.
        end: how the episode ended if the verifier does not score it, otherwise None.
        routes: the experts that the engine's routers chose for the tokens of the prompt and of the response, without
            the last, which the engine does not process. None if they were not requested.
    """

    text: str
    token_ids: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    finish_reason: str
    versions: list[VersionSpan]
    turns: tuple[EpisodeTurn, ...] = ()
    end: EpisodeEnd | None = None
    routes: Routes | None = None

    @property
    def num_tokens(self) -> int:
        """Number of sampled tokens."""
        if self.is_episode:
            return sum(turn.end - turn.start for turn in self.turns)
        return len(self.token_ids)

    @property
    def pieces(self) -> list[Piece]:
        """The token sequences that a learner trains on, in order. A single response has one."""
        turns = [turn for index, turn in enumerate(self.turns) if index == 0 or turn.context is not None]
        starts = [turn.start for turn in turns]
        starts[:1] = [0]
        ends = [*starts[1:], len(self.token_ids)]
        contexts = [turn.context for turn in turns] or [None]
        return [Piece(*piece) for piece in zip(contexts, starts or [0], ends, strict=True)]

    @property
    def is_episode(self) -> bool:
        """True for an episode. An episode that failed before its first turn has no turns and no tokens."""
        return bool(self.turns) or self.end is not None

    @property
    def earlier(self) -> list[dict[str, str]]:
        """The messages between the prompt and the last turn of an episode. Empty for a single response.

        If the conversation was restarted, they include all of its messages.
        """
        messages: list[dict[str, str]] = []
        for turn in self.turns:
            messages += [*turn.inserted, {"role": "assistant", "content": turn.text}]
        return messages[:-1]

    @property
    def truncated(self) -> bool:
        """True if the response was truncated at the maximum length."""
        return self.finish_reason == "length"


@dataclass(frozen=True)
class Response:
    """One sampled response without its tokens.

    Attributes:
        text: the response, as in `Completion`.
        num_tokens: number of sampled tokens.
        finish_reason: `stop` or `length`, as in `Completion`.
    """

    text: str
    num_tokens: int
    finish_reason: str


class Sampler(Protocol):
    """A policy that generates responses: an engine or an external server."""

    async def generate(
        self, prompt_ids: Sequence[int], sampling: SamplingConfig, *, seed: int | None, with_logprobs: Literal[False]
    ) -> Response | Completion:
        """Sample one response to a tokenised prompt. `seed` is the seed of this request."""


@dataclass(frozen=True)
class WeightUpdate:
    """Describes a finished weight update of an engine."""

    pause_seconds: float
    """Seconds during which generation was paused."""
    total_seconds: float
    """Seconds from the call to the return."""
    contents: Contents
    """Contents of the tensors that the engine loaded."""


@dataclass
class EngineStatistics:
    """Statistics of one engine: counters since its start, and its current load.

    Attributes:
        generated_tokens: number of tokens sampled since the start, including unfinished responses.
        running, queued: numbers of requests that are being decoded and that are queued.
        kv_cache_usage: share of the KV cache in use.
        preemptions: number of preemptions since the start. The KV cache of a preempted request is dropped to make room
            for others, and is computed again later.
        gpu: name of the engine's first GPU, as torch reports it. Empty if it has none.
    """

    generated_tokens: int = 0
    running: int = 0
    queued: int = 0
    kv_cache_usage: float = 0.0
    preemptions: int = 0
    gpu: str = ""


def sample_seed(seed: int, key: str, sample: int) -> int:
    """Derive the seed of sample `sample` of prompt `key` from `seed`. It is the same in every run and process."""
    return zlib.crc32(f"{seed}:{key}:{sample}".encode())
