"""What an engine gives: completions, figures, errors. Nothing here needs vLLM."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tasks.failures import InfrastructureError, MistakeError


class EngineError(InfrastructureError):
    """The engine failed, as opposed to a response being bad: infrastructure, worth a retry."""


class EngineOptionsError(MistakeError):
    """The model or the options are none that vLLM takes: another attempt ends as this one did."""


class RequestRefusedError(MistakeError):
    """The engine takes no such request; others it does."""


@dataclass(frozen=True)
class VersionSpan:
    """Tokens [start, end) of a completion were sampled by policy `version`."""

    version: int
    start: int
    end: int


@dataclass(frozen=True, eq=False)
class Completion:
    """One sampled response. Arrays, because a window of long responses is 10^8 numbers.

    Attributes:
        text: the response, special tokens left out.
        token_ids: `[n]`, sampled tokens, the end token included when the model stopped by itself.
        logprobs: `[n]`, log-probability of each sampled token under the distribution that it was sampled from, nats;
            `[0]` where they were not asked for.
        finish_reason: `stop` (the model ended) or `length` (cut at the limit).
        versions: which policy version sampled which tokens; in-flight updates make more than one span.
    """

    text: str
    token_ids: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    finish_reason: str
    versions: list[VersionSpan]

    @property
    def truncated(self) -> bool:
        """Whether it was cut at the limit."""
        return self.finish_reason == "length"


@dataclass(frozen=True)
class UpdateTiming:
    """Seconds of one weight update: how long generation stood still, and from the call to the return."""

    pause_seconds: float
    total_seconds: float


@dataclass
class EngineStatistics:
    """Of one engine since it started.

    Attributes:
        generated_tokens: tokens that it has sampled, those of unfinished responses included.
        running, queued: requests that it works on, and that wait for room in it.
        kv_cache_usage: share of the KV cache that is in use.
        preemptions: how often a request lost its KV cache to others, and was computed again.
    """

    generated_tokens: int = 0
    running: int = 0
    queued: int = 0
    kv_cache_usage: float = 0.0
    preemptions: int = 0


def sample_seed(seed: int, key: str, sample: int) -> int:
    """A seed for sample `sample` of the prompt `key`, equal in every run and process."""
    return zlib.crc32(f"{seed}:{key}:{sample}".encode())
