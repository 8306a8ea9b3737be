"""Classes as TRL's `environment_factory` takes them."""

import asyncio
import time


class Counter:
    """Counts up to a target."""

    def reset(self, target, **row):
        self.target, self.count = target, 0
        return f" Reach {target}.<|im_end|>"

    def add(self, amount: int) -> str:
        """Add to the count.

        Args:
            amount: how much.
        """
        if amount < 0:
            raise ValueError("the count never falls")
        self.count += amount
        return f"The count is {self.count}."

    async def look(self) -> str:
        """Look at the count."""
        return f"{self.count} of {self.target}"

    def get_reward(self) -> float:
        return float(self.count == self.target)

    def _hidden(self):
        pass


class Silent:
    """Observes nothing at first, and has no reward of its own."""

    def reset(self, **row):
        return None

    def ping(self) -> str:
        """Answer."""
        return "pong"


class WithoutReset:
    def ping(self) -> str:
        """Answer."""
        return "pong"


class WithoutTools:
    def reset(self):
        return None


class Limited:
    """Has tools that overrun limits, and is worth 0.75 however it ends."""

    def reset(self, **row):
        return None

    def long(self) -> str:
        """Return more than fits."""
        return "x" * 1999

    def short(self) -> str:
        """Return little."""
        return "x"

    def slow(self) -> str:
        """Block for an hour."""
        time.sleep(3600)
        return "x"

    async def slow_async(self) -> str:
        """Wait for an hour."""
        await asyncio.sleep(3600)
        return "x"

    def get_reward(self) -> float:
        return 0.75
