"""Simulates actors and a learner: they take as much time as real ones, and compute nothing.

An engine with n running sequences generates a token of each in `step_seconds + sequence_seconds * n`: reading the
weights takes the same time for any batch, and attention and sampling take time for each sequence.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import brentq

from tasks.generation.config import SamplingConfig
from tasks.generation.interface import Completion, EngineStatistics, VersionSpan, WeightUpdate
from tasks.storage.tensor_digest import NOTHING
from tasks.tables.schemas import Message
from tasks.training.learner.client import StepReport, WrittenWeights
from tasks.training.learner.packing import Floats, Sequence
from tasks.verifiers import Score
from tasks.verifiers.calls import Response
from tasks.verifiers.code.running import Execution
from tasks.verifiers.scores import CannotJudge


@dataclass(frozen=True)
class EngineClock:
    """The speed of a simulated engine.

    Attributes:
        step_seconds: time of one decoding step, independent of the number of sequences.
        sequence_seconds: additional time of one step for each sequence.
        max_num_seqs: number of sequences that run at a time; others queue in the engine.
        update_seconds: time of a weight update, during which it generates nothing.
        prefill_tokens_per_second: rate at which it recomputes a KV cache that an update has dropped.
        start_seconds: time from its start until it accepts requests.
        sleep_seconds, wake_seconds: time to move its weights off the GPU, and back.
    """

    step_seconds: float
    sequence_seconds: float = 0.0
    max_num_seqs: int = 256
    update_seconds: float = 0.0
    prefill_tokens_per_second: float = float("inf")
    start_seconds: float = 0.0
    sleep_seconds: float = 0.0
    wake_seconds: float = 0.0


@dataclass(order=True)
class _Request:
    ends_at: float  # value of `_made` at which it ends
    order: int
    tokens: int = field(compare=False)
    began_at: float = field(compare=False)
    spans: list[VersionSpan] = field(compare=False)
    done: asyncio.Future[None] = field(compare=False)


class ClockActor:
    """A simulated actor (`actors.process.Actor`). Its responses have random lengths and no content.

    All running sequences have the engine's speed: `_made` is the number of tokens of a sequence that has run from the
    beginning.
    """

    def __init__(self, clock: EngineClock, draw_tokens: Callable[[], int]) -> None:
        self._clock = clock
        self._draw_tokens = draw_tokens
        self._loop = asyncio.get_running_loop()
        self._running: dict[int, _Request] = {}  # by `order`
        self._ends: list[_Request] = []  # a heap: the next to end first, including some that no longer run
        self._queued: dict[int, _Request] = {}
        self._numbers = itertools.count()
        self._made = 0.0
        self._at = 0.0
        self._paused = self._sleeps = False
        self._timer: asyncio.TimerHandle | None = None
        self.version = 0
        self.generated_tokens = 0.0
        self.busy_seconds = 0.0

    async def placed(self) -> str:
        """Return immediately: a simulated actor needs no machine."""
        return ""

    async def start(self) -> None:
        """Wait for `start_seconds` of virtual time."""
        await asyncio.sleep(self._clock.start_seconds)
        self._at = self._loop.time()

    async def generate(self, prompt_ids: list[int], sampling: SamplingConfig, seed: int | None) -> Completion:
        """Return a completion of random length, without text, after the time that it takes together with the others."""
        tokens = min(self._draw_tokens(), sampling.max_tokens)
        request = _Request(0.0, next(self._numbers), tokens, 0.0, [], self._loop.create_future())
        self._queued[request.order] = request
        self._update_running()
        try:
            await request.done
        except asyncio.CancelledError:
            self.advance()
            self._running.pop(request.order, None)
            self._queued.pop(request.order, None)
            self._update_running()
            raise
        self._close_span(request)
        reason = "length" if tokens >= sampling.max_tokens else "stop"
        ids: Any = range(tokens)  # as long as a response, without memory
        return Completion("", ids, ids, reason, request.spans)

    async def update(self, path: str, version: int, *, keep_cache: bool) -> WeightUpdate:
        """Pause for the time of an update, and of recomputing the cache unless `keep_cache`.

        A sleeping engine also wakes, and has no cache to keep.
        """
        self._pause()
        seconds = self._clock.update_seconds
        if self._sleeps:
            seconds += self._clock.wake_seconds
        if self._sleeps or not keep_cache:
            seconds += self._recompute_seconds()
        await asyncio.sleep(seconds)
        for request in self._running.values():
            self._close_span(request)
        self.version = version
        self._resume()
        return WeightUpdate(seconds, seconds, NOTHING)

    async def sleep(self) -> None:
        """Pause from now on; take the time to move the weights off the GPU."""
        self._pause()
        self._sleeps = True
        await asyncio.sleep(self._clock.sleep_seconds)

    async def wake(self) -> None:
        """Continue after the time to move the weights back and to recompute the cache."""
        if self._sleeps:
            await asyncio.sleep(self._clock.wake_seconds + self._recompute_seconds())
            self._resume()

    def _pause(self) -> None:
        self.advance()
        self._paused = True
        self._update_running()

    def _resume(self) -> None:
        self._at = self._loop.time()
        self._paused = self._sleeps = False
        self._update_running()

    def _recompute_seconds(self) -> float:
        context = sum(self._made - request.began_at for request in self._running.values())
        return context / self._clock.prefill_tokens_per_second

    async def statistics(self) -> EngineStatistics:
        """Return the number of tokens generated so far, and of running and queued sequences."""
        self.advance()
        return EngineStatistics(int(self.generated_tokens), len(self._running), len(self._queued))

    async def kill(self) -> None:
        """Stop generating."""
        if self._timer:
            self._timer.cancel()

    def _close_span(self, request: _Request) -> None:
        start = request.spans[-1].end if request.spans else 0
        end = min(request.tokens, round(self._made - request.began_at))
        if end > start:
            request.spans.append(VersionSpan(self.version, start, end))

    def advance(self) -> None:
        """Update the counters to the present time."""
        now = self._loop.time()
        if self._running and not self._paused:
            made = (now - self._at) / self._step()
            self._made += made
            self.generated_tokens += made * len(self._running)
            self.busy_seconds += now - self._at
        self._at = now

    def _step(self) -> float:
        return self._clock.step_seconds + self._clock.sequence_seconds * len(self._running)

    def _update_running(self) -> None:
        """Finish the sequences that have ended, start queued ones, and set a timer for the next end."""
        self.advance()
        while self._ends and (self._ends[0].order not in self._running or self._ends[0].ends_at <= self._made + 1e-6):
            request = heapq.heappop(self._ends)
            if self._running.pop(request.order, None):
                request.done.set_result(None)
        while self._queued and len(self._running) < self._clock.max_num_seqs:
            request = self._queued.pop(next(iter(self._queued)))
            request.began_at, request.ends_at = self._made, self._made + request.tokens
            self._running[request.order] = request
            heapq.heappush(self._ends, request)
        if self._timer:
            self._timer.cancel()
            self._timer = None
        if self._running and not self._paused:
            seconds = (self._ends[0].ends_at - self._made) * self._step()
            self._timer = self._loop.call_later(max(seconds, 0.0), self._update_running)


@dataclass
class ClockLearner:
    """A simulated learner (`learner.client.Learner`): a step takes `step_seconds` and a time for each token.

    Attributes:
        tokens_per_second: trained tokens/s.
        step_seconds: additional time of a step.
        publish_seconds: time to write its weights.
        offload_seconds, reload_seconds: time to move its states off its GPUs, and back.
        busy_seconds: time during which it has computed so far.
    """

    tokens_per_second: float
    step_seconds: float = 0.0
    publish_seconds: float = 0.0
    offload_seconds: float = 0.0
    reload_seconds: float = 0.0
    busy_seconds: float = 0.0

    async def start(self) -> None:
        """Return immediately."""

    async def step(self, sequences: list[Sequence], denominator: float, learning_rate: float) -> StepReport:
        """Take the time of an optimizer step on the tokens of `sequences`; report a loss of 0."""
        seconds = self.step_seconds + sum(sequence.length for sequence in sequences) / self.tokens_per_second
        await asyncio.sleep(seconds)
        self.busy_seconds += seconds
        return StepReport({"num_tokens": float(sum(sequence.num_trained for sequence in sequences)), "loss": 0.0})

    async def logprobs(self, sequences: list[Sequence]) -> list[Floats]:
        """Take the virtual time of a forward pass, a third of a step's; return zeros."""
        seconds = sum(sequence.length for sequence in sequences) / self.tokens_per_second / 3
        await asyncio.sleep(seconds)
        self.busy_seconds += seconds
        return [np.zeros(len(sequence.response_ids), np.float32) for sequence in sequences]

    async def reference_logprobs(self, sequences: list[Sequence]) -> list[Floats]:
        """Take the time of a forward pass; return zeros."""
        return await self.logprobs(sequences)

    async def write_weights(self, path: Path) -> WrittenWeights:
        """Take `publish_seconds`, and write nothing."""
        await asyncio.sleep(self.publish_seconds)
        return WrittenWeights("", NOTHING)

    async def export(self, folder: Path) -> None:
        """Make an empty folder, and take `publish_seconds`."""
        folder.mkdir(parents=True)
        await asyncio.sleep(self.publish_seconds)

    async def save(self, folder: Path) -> None:
        """Make an empty folder."""
        folder.mkdir()

    async def wait_until_written(self) -> bool:
        """Return True: the empty folder is complete."""
        return True

    async def wait_until_uploaded(self) -> bool:
        """Return True: nothing is uploaded."""
        return True

    async def load(self, folder: Path) -> None:
        """Load nothing: the learner has no state."""

    async def restart(self) -> None:
        """Return immediately."""

    async def offload_states(self) -> None:
        """Take `offload_seconds`."""
        await asyncio.sleep(self.offload_seconds)

    async def reload_states(self) -> None:
        """Take `reload_seconds`."""
        await asyncio.sleep(self.reload_seconds)


class ChanceJudge:
    """A simulated verifier: a random half of the responses pass, and none if the ground truth is None."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    async def score(self, verifier: str, response: Response, ground_truth: Any, messages: list[Message]) -> Score:
        """Return a passing score with a probability of one half, but never if the ground truth is None."""
        return Score.binary(ground_truth is not None and self._chance.random() < 0.5, "")

    async def run_program(self, program: str, output_chars: int) -> Execution:
        """Raise an error: a simulation runs no programs."""
        raise CannotJudge("a simulation runs no programs")

    async def figures(self) -> dict[str, float]:
        """Return nothing: the simulation has no counters."""
        return {}


def make_length_sampler(chance: random.Random, mean: float, longest: int, spread: float = 0.8) -> Callable[[], int]:
    """Return a function that samples response lengths: log-normal, cut at `longest`, with `mean` after the cut.

    Args:
        chance: the source of randomness.
        mean: mean number of tokens, at most `longest`.
        longest: largest number of tokens.
        spread: standard deviation of the logarithm.
    """
    if mean >= longest:
        return lambda: longest
    sample = random.Random(0)
    uncut = np.exp([sample.gauss(0, spread) for _ in range(20_000)])  # lengths whose logarithm has the mean 0

    def compute_excess(location: float) -> float:
        return float(np.minimum(math.exp(location) * uncut, longest).mean()) - mean

    location = brentq(compute_excess, -20.0, 30.0)
    return lambda: max(1, min(longest, round(chance.lognormvariate(location, spread))))


def estimate_mean_context(draw_tokens: Callable[[], int], samples: int = 20_000) -> float:
    """Return the mean number of tokens that a response in flight has so far: E[L^2] / 2 E[L], for lengths L.

    It is more than half of the mean length E[L], since a long response is in flight for longer.
    """
    drawn = np.array([draw_tokens() for _ in range(samples)], float)
    return float((drawn**2).sum() / (2 * drawn.sum()))
