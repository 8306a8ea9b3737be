"""Limits the number of restarts of an actor slot or the learner within a time window."""

from __future__ import annotations

from collections import deque


class RestartBudget:
    """Counts the restarts within the last `window_seconds`, and stores the allowed number (`limit`)."""

    def __init__(self, limit: int, window_seconds: float) -> None:
        """Allow `limit` restarts in any `window_seconds`."""
        self.limit = limit
        self.window_seconds = window_seconds
        self._times: deque[float] = deque()

    def record(self, now: float) -> None:
        """Record one restart at time `now`, in seconds of a monotonic clock."""
        self._times.append(now)

    def used(self, now: float) -> int:
        """Return the number of restarts within the window that ends at `now`."""
        while self._times and now - self._times[0] > self.window_seconds:
            self._times.popleft()
        return len(self._times)

    def compute_seconds_until_freed(self, now: float) -> float:
        """Return the seconds until the oldest restart leaves the window, or 0 without restarts."""
        return max(0.0, self._times[0] + self.window_seconds - now) if self.used(now) else 0.0
