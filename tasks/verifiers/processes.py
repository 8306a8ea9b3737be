"""Processes that judge: started from a forkserver, watched, killed at their limit, replaced.

    submit ─► waiting ─► fast places     as many as there are cores for, for a call's patience
                             │    │
    again, put back ◄────────┘    ▼
                 └──────────► slow places    hang, or are at something long: behind all others, in turns
                                  └─► killed at the time limit

A call that takes longer than its verifier's patience no longer counts as one of the `workers`, so that the calls behind
it go on at once: it gets a slow place, or where there is none it is put back, to begin anew in one once no new call
waits. A program is looked at again before, for longer. A process that has to be killed for that is replaced from a
reserve. One thread does all the bookkeeping and owns all that it keeps; should it fail, every call ends as an error
that says so.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import threading
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

from tasks.verifiers import worker
from tasks.verifiers.clocks import STARVED_FACTOR
from tasks.verifiers.jobs import QUANTUM_FACTOR, Job, Worker
from tasks.verifiers.scores import Score

ATTEMPTS = 2
"""Workers that a call may lose before it is an error."""
FAILED_STARTS = 3
RECYCLE_AFTER = 20_000
"""Calls after which a worker is replaced, whatever its checkers have left behind in it."""
SLOW_PLACES = 16
"""Slow calls at one time, each of which may take all the memory that it is allowed."""
RESERVE = 8
"""Workers beside the others, started while no call waits: in a rush, one that is given up costs the others no start."""
IDLE_SECONDS = 30.0
"""How long a worker is kept that came back from a slow call, for the next one."""
GROW_SECONDS = 5.0
"""While calls wait, a slow one gets a process that must be started for it so often, lest it wait for ever."""
LOOK_SECONDS = 0.05
"""How often to look at a call in a slow place that others want, or that others took its time from."""
DEATH_SECONDS = 5.0
"""How long a worker that closed its pipe may take to end by itself."""

logger = logging.getLogger(__name__)


@dataclass
class Counters:
    """What happened to the processes so far. `put_back` are calls that had to wait for a slow place."""

    started: int = 0
    died: int = 0
    killed: int = 0
    retries: int = 0
    put_back: int = 0


class Processes:
    """The workers and the thread that directs them; thread-safe."""

    def __init__(
        self,
        workers: int,
        time_limit_s: float,
        settings: worker.Settings,
        *,
        on_demand: bool = False,
        reserve: int = 0,
    ) -> None:
        """Start `workers` processes, without waiting for them; with `on_demand`, not before the first job.

        From the first job on, `reserve` more are held ready.
        """
        self.counters = Counters()
        self.ready = threading.Semaphore(0)
        self.failed_starts = 0
        self.given_up = False
        self.ended: str | None = None
        self.neighbour: Processes | None = None
        """Others on the same cores, whose calls come before the slow ones here."""
        self._count = workers
        self._time_limit_s = time_limit_s
        self._settings = settings
        self._wanted = not on_demand
        self._reserve = reserve
        self._used = False
        self._grow_at = 0.0
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([worker.PRELOAD])
        self._unsettled: set[Job] = set()
        self._incoming: deque[Job] = deque()
        self._waiting: deque[Job] = deque()
        self._again: deque[Job] = deque()
        self._put_back: deque[Job] = deque()
        self._workers: list[Worker] = []
        self._dying: list[Any] = []
        self._gate = threading.Lock()
        self._wake_reading, self._wake_writing = os.pipe()
        os.set_blocking(self._wake_writing, False)
        self._closing = False
        self._thread = threading.Thread(target=self._direct, name="verifiers", daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> None:
        """Have a job done; it is settled from another thread, or at once as an error where all has ended."""
        with self._gate:
            if self.ended is None:
                self._unsettled.add(job)
                self._incoming.append(job)
                self._wake()
                return
        job.settle(Score.unjudged(self.ended), False)

    def close(self) -> None:
        """End the workers. Jobs that are not done are settled as errors. Callable from any thread, and twice."""
        with self._gate:
            self._closing = True
            if self.ended is None:
                self._wake()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # full: it is awake
            os.write(self._wake_writing, b"!")

    def _direct(self) -> None:
        reason = "the verifier pool was closed"
        try:
            while not self._closing:
                self._turn()
        except BaseException as error:
            logger.exception("the thread that directs the verifier workers failed")
            reason = f"the verifier pool broke: {type(error).__name__}: {error}"
        finally:
            self._end(reason)

    def _turn(self) -> None:
        self._used |= bool(self._incoming)
        self._wanted |= self._used
        self._replace()
        self._waiting.extend(self._take_incoming())
        self._hand_out()
        if not self._new_ones_wait:
            self._grow_at = time.monotonic() + GROW_SECONDS
        pipes = {each.pipe: each for each in self._workers}
        ends = [process.sentinel for process in self._dying]
        heard = wait([self._wake_reading, *pipes, *ends], self._until_next_moment())
        if self._wake_reading in heard:
            os.read(self._wake_reading, 4096)
        for pipe in heard:
            if isinstance(pipe, Connection):
                self._hear(pipes[pipe])
        self._watch_clocks()
        self._forget_the_dead()

    def _end(self, reason: str) -> None:
        """Settle every job that is left, whatever goes wrong with one of them, and end the processes."""
        with self._gate:
            self.ended = reason
            os.close(self._wake_reading)
            os.close(self._wake_writing)
        for each in list(self._workers):
            self._dismiss(each)
        for job in list(self._unsettled):
            try:
                self._settle(job, Score.unjudged(reason))
            except Exception:
                logger.exception("a call could not be settled")
        for process in self._dying:
            process.join()
        self._forget_the_dead()

    def _settle(self, job: Job, score: Score, timed_out: bool = False) -> None:
        self._unsettled.remove(job)
        job.settle(score, timed_out)

    def _take_incoming(self) -> list[Job]:
        return [self._incoming.popleft() for _ in range(len(self._incoming))]

    def _hand_out(self) -> None:
        idle = sorted((each for each in self._workers if each.ready and each.job is None), key=lambda each: each.calls)
        busy = sum(each.job is not None and not each.slow for each in self._workers)
        while idle and (slow_ones := self._put_back or self._again) and self._slow_place(slow_ones[0]):
            each = idle.pop()
            if self._hand(each, slow_ones.popleft(), slow_ones):
                self._make_way(each)
        while idle and busy < self._count and (queue := self._waiting or self._their_turn):
            busy += self._hand(idle.pop(), queue.popleft(), queue)

    def _hand(self, each: Worker, job: Job, queue: deque[Job]) -> bool:
        """Whether the worker has taken the job; one that has died leaves it at the head of its queue."""
        try:
            each.pipe.send(job.call)
        except (BrokenPipeError, ConnectionError):
            queue.appendleft(job)  # the death is heard of next
            return False
        except Exception as error:
            self._settle(job, Score.unjudged(f"the call cannot be handed to a process: {error}"))
            return False
        each.begin(job, self._time_limit_s)
        return True

    def _hear(self, each: Worker) -> None:
        try:
            message = each.pipe.recv()
        except (EOFError, OSError):
            self._bury(each)
            return
        match message:
            case worker.Says.READY:
                each.ready, each.idle_since = True, time.monotonic()
                self.ready.release()
            case worker.Says.SLOW:
                self._answer_slow(each)
            case worker.Says.PUT_BACK:
                self._put_off(each)
            case score:
                self.failed_starts = 0
                job = each.finish()
                if each.lowered or each.calls >= RECYCLE_AFTER:
                    self._dismiss(each)
                self._settle(job, score)

    def _answer_slow(self, each: Worker) -> None:
        assert each.job is not None
        if each.slow and self._has_had_its_turn(each):
            answer = worker.Slow(goes_on=False)
        elif each.slow or self._slow_place(each.job):
            self._make_way(each)
            answer = worker.Slow(goes_on=True, seconds=each.job.quantum_seconds)
        else:
            is_second_look = each.job.runs_again and not each.asked
            answer = worker.Slow(goes_on=is_second_look or not self._others_wait)
        each.asked = True
        with contextlib.suppress(BrokenPipeError, ConnectionError):  # its death is heard of next
            each.pipe.send(answer)

    def _bury(self, each: Worker) -> None:
        """A worker died by itself: its call is repeated once, and a start that fails is counted."""
        each.process.join(DEATH_SECONDS)
        exit_code, job = each.process.exitcode, each.job
        self._dismiss(each)
        self.counters.died += 1
        logger.warning("a verifier worker died (exit code %s)", exit_code)
        if job is None:
            self.failed_starts += not each.ready
            return
        job.lost_workers += 1
        if job.lost_workers == ATTEMPTS:
            self._settle(job, Score.unjudged(f"the worker died {ATTEMPTS} times (exit code {exit_code})"))
            return
        self.counters.retries += 1
        self._waiting.appendleft(job)

    def _watch_clocks(self) -> None:
        now = time.monotonic()
        for each in [each for each in self._workers if each.job is not None]:
            job = each.job
            assert job is not None
            if now >= each.look_at and (score := self._overdue(each, now)):
                self.counters.killed += 1
                self._dismiss(each)
                self._settle(job, score, timed_out=True)
            elif each.slow:
                if not job.patience.keeps_time and self._has_had_its_turn(each):
                    self._give_up(each)
            elif each.is_slow(now):
                if self._slow_place(job):
                    self._make_way(each)
                elif self._others_wait and job.patience.repeatable:
                    self._give_up(each)

    def _has_had_its_turn(self, each: Worker) -> bool:
        """Whether a slow call is to leave its place to one that was put back; new ones that wait come before both."""
        assert each.job is not None
        if self._new_ones_wait or not self._put_back or not each.job.patience.repeatable:
            return False
        return each.own.seconds() >= each.job.quantum_seconds

    def _give_up(self, each: Worker) -> None:
        """Kill it, and have its call begin anew."""
        self._put_off(each)
        self._dismiss(each)

    def _put_off(self, each: Worker) -> None:
        """Have its call begin anew where there is a place: after those that were put back before.

        A program is looked at a second time first. The first look is short, and a right answer that was taken for slow
        would wait here for all those that hang.
        """
        turn_is_over, job = each.slow, each.finish()
        self.counters.put_back += 1
        if turn_is_over:
            job.quantum_seconds *= QUANTUM_FACTOR
        elif job.patience.keeps_time and not job.runs_again:
            job.runs_again = True
            self._again.append(job)
            return
        self._put_back.append(job)

    def _overdue(self, each: Worker, now: float) -> Score | None:
        """What a call scores that took longer than the limit; None while others take the time from it.

        It is over when it has had half of the limit for itself. What keeps time itself is looked after in case it does
        not, no sooner than a call that starves.
        """
        assert each.job is not None
        limit, longest = self._time_limit_s, STARVED_FACTOR * self._time_limit_s
        own = 0.0 if each.job.patience.keeps_time else each.own.seconds()
        if own >= limit / 2:
            return Score.binary(False, f"time limit of {limit:g} s")
        if now - each.began >= longest:
            return Score.unjudged(f"this machine had no time for the call in {longest:g} s")
        each.look_at = min(now + max(limit / 2 - own, LOOK_SECONDS), each.began + longest)
        return None

    def _make_way(self, each: Worker) -> None:
        assert each.job is not None
        if not each.slow:
            each.slow, self._grow_at = True, time.monotonic() + GROW_SECONDS
            if each.job.patience.lowered:
                each.lower()

    def _slow_place(self, job: Job) -> bool:
        """Whether a worker may be slow with this job, and another take its stead, which must be started.

        While calls wait that happens now and then only: even behind all others, what is slow is in their way. A sandbox
        costs as much as a dozen programs, and a program that is given up as much as two.
        """
        if sum(other.slow for other in self._workers) >= SLOW_PLACES:
            return False
        if not self._new_ones_wait or time.monotonic() >= self._grow_at:
            return True
        spare = sum(other.ready and not other.slow for other in self._workers) > self._count
        return spare and not job.patience.lowered

    @property
    def _new_ones_wait(self) -> bool:
        """Whether calls wait that have not run, or are to be looked at again, here or for the other processes."""
        return any(each._waiting or each._again for each in (self, self.neighbour) if each is not None)

    @property
    def _their_turn(self) -> deque[Job]:
        """Calls to be looked at again, once none waits that has not run."""
        return deque() if self.neighbour is not None and self.neighbour._waiting else self._again

    @property
    def _others_wait(self) -> bool:
        return bool(self._new_ones_wait or self._put_back)

    def _until_next_moment(self) -> float:
        """Seconds until a call becomes slow or overdue; a look around now and then where nothing runs."""
        now = time.monotonic()
        # Nobody tells when the neighbour's last new call has begun.
        moments = [LOOK_SECONDS if self._put_back or self._again else 1.0]
        for each in self._workers:
            if each.job is not None:
                moments.append((each.slow_at if now < each.slow_at and not each.slow else each.look_at) - now)
        return max(0.0, min(moments))

    def _replace(self) -> None:
        """As many fast workers as there should be, unless they end as they start; those in reserve one by one."""
        if self.failed_starts >= FAILED_STARTS and not self.given_up:
            self.given_up = True
            reason = f"verifier workers died {self.failed_starts} times without a judgement between"
            self._refuse([*self._waiting, *self._again, *self._put_back, *self._take_incoming()], reason)
        if self.given_up and self._incoming:  # the next job gets another try
            self.given_up, self.failed_starts = False, 0
        fast = [each for each in self._workers if not each.slow]
        long_idle = [
            each
            for each in fast
            if each.ready and each.job is None and time.monotonic() - each.idle_since >= IDLE_SECONDS
        ]
        reserve = self._reserve if self._used else 0
        for each in long_idle[: max(0, len(fast) - self._count - reserve)]:
            self._dismiss(each)
        if not self._wanted or self.given_up:
            return
        missing = self._count - sum(not each.slow for each in self._workers)
        if -reserve < missing <= 0 and not self._new_ones_wait and all(each.ready for each in self._workers):
            missing = 1
        while missing > 0 and self._start_worker():
            missing -= 1

    def _refuse(self, jobs: Iterable[Job], reason: str) -> None:
        for queue in (self._waiting, self._again, self._put_back):
            queue.clear()
        for job in jobs:
            self._settle(job, Score.unjudged(reason))

    def _start_worker(self) -> bool:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(
            target=worker.work, args=(theirs, self._settings), name=worker.NAME, daemon=True
        )
        try:
            process.start()
        except (EOFError, OSError) as error:  # the forkserver died; the next start makes a new one
            logger.warning("a verifier worker could not be started: %s", error)
            self.failed_starts += 1
            ours.close()
            return False
        finally:
            theirs.close()
        self.counters.started += 1
        self._workers.append(Worker(process, ours))
        return True

    def _dismiss(self, each: Worker) -> None:
        """Kill it, without waiting: behind all others it may take its time to end, too."""
        self._workers.remove(each)
        each.pipe.close()
        if each.process.is_alive():
            each.process.kill()
        self._dying.append(each.process)

    def _forget_the_dead(self) -> None:
        for process in [process for process in self._dying if not process.is_alive()]:
            self._dying.remove(process)
            process.close()
