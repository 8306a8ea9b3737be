"""Defines the types of a verifier call: the call, the interface of a verifier, and its statistics."""

from __future__ import annotations

import hashlib
import json
import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from tasks.verifiers.scores import Score

Messages = Sequence[Mapping[str, str]]
"""Messages of a prompt: mappings with `role` and `content`."""
Response = str | list[str]
"""The text of a response; for a reward function of a group, the texts of all responses to a prompt."""
MAX_LATENCIES = 10_000
"""Number of latest calls whose latency is recorded, for percentiles."""


class Call(NamedTuple):
    """One response to score: its verifier, its text, its ground truth, and the messages of its prompt."""

    verifier: str
    response: Response
    ground_truth: Any
    messages: Messages | None = None

    def digest(self, isolation: str) -> bytes | None:
        """Return the key of the call in a cache of scores, or None if the call is not a JSON value.

        Args:
            isolation: the mechanism that isolates programs, as their scores may depend on it.
        """
        try:
            messages = None if self.messages is None else [dict(turn) for turn in self.messages]
            text = json.dumps([self.verifier, isolation, self.response, self.ground_truth, messages], sort_keys=True)
        except (TypeError, ValueError, RecursionError):
            return None
        return hashlib.sha256(text.encode()).digest()


class Verifier(Protocol):
    """The interface of what scores calls on one event loop. It implements limits, retries and concurrency itself."""

    async def judge(self, verifier: str, response: Any, ground_truth: Any, messages: Messages | None) -> Score:
        """Score a response; raise `CannotJudge` if that is impossible for a reason other than the response.

        `response` is a text; `function` also takes a list of all texts of a group.
        """

    async def close(self) -> None:
        """End processes and connections."""

    def usage(self) -> dict[str, float]:
        """Return the counters by name."""


@dataclass
class VerifierStats:
    """Counters of one verifier in one pool. A latency runs from submission to score and includes the wait for a worker.

    Attributes:
        calls: calls scored, including errors but not the `repeated` ones, which the cache answered.
        timeouts, errors: calls that ran out of time, or could not be scored.
        total_latency_s: seconds over all calls; `latencies_s` contains the last 10,000.
        busy_s: seconds during which its processes had calls, summed over its processes.
        in_flight: calls that are being scored now.
    """

    calls: int = 0
    repeated: int = 0
    timeouts: int = 0
    errors: int = 0
    total_latency_s: float = 0.0
    latencies_s: deque[float] = field(default_factory=lambda: deque(maxlen=MAX_LATENCIES), repr=False)
    busy_s: float = 0.0
    in_flight: int = 0
    _since: float = field(default=0.0, repr=False)

    def advance(self, now: float, processes: int, calls: int = 0) -> None:
        """Add the busy seconds of all processes up to `now` to `busy_s`; then `calls` calls begin, or end if negative.

        Until `now`, all `processes` were busy, or as many of them as there were calls.
        """
        self.busy_s += (now - self._since) * min(self.in_flight, processes)
        self._since = now
        self.in_flight += calls

    def add(self, latency_s: float, timed_out: bool, failed: bool) -> None:
        """Count one scored call."""
        self.calls += 1
        self.timeouts += timed_out
        self.errors += failed
        self.total_latency_s += latency_s
        self.latencies_s.append(latency_s)

    def figures(self) -> dict[str, float]:
        """Return the counters by name, with the mean, median and 99th percentile of the latency in seconds."""
        recent = sorted(self.latencies_s)
        cuts = statistics.quantiles(recent, n=100, method="inclusive") if len(recent) > 1 else [*recent, 0.0] * 99
        return {
            "calls": self.calls,
            "repeated": self.repeated,
            "timeouts": self.timeouts,
            "errors": self.errors,
            "busy_seconds": self.busy_s,
            "mean_seconds": self.total_latency_s / max(self.calls, 1),
            "p50_seconds": cuts[49],
            "p99_seconds": cuts[98],
        }
