"""The tree that a mixture is shared out in: all prompts, domains, their sources, and the strata of these."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tasks.config import SpecError
from tasks.mixing.shares import Claim, divide
from tasks.mixing.spec import Share


@dataclass
class Member:
    """A domain, a source or a stratum.

    Attributes:
        path: its name and those above it, which together are its place in the order.
        name: how an error speaks of it.
        share: what it asks for.
        repeats: how often a prompt of it may stand in the mixture.
        rows: of a member without parts: its prompts, in the order in which they are taken.
        parts: what it is divided into.
        temperature: of this division.
    """

    path: tuple[str, ...]
    name: str
    share: Share
    repeats: int = 1
    rows: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    parts: dict[str, Member] = field(default_factory=dict)
    temperature: float = 1.0

    @property
    def size(self) -> int:
        """Prompts, each counted once."""
        return sum(part.size for part in self.parts.values()) if self.parts else len(self.rows)

    @property
    def claim(self) -> Claim:
        """What it can give and asks for, the quotas and weights of its parts considered.

        Raises:
            SpecError: its parts cannot give what they are asked for.
        """
        share = self.share
        if not self.parts:
            return Claim(self.name, len(self.rows) * self.repeats, share.weight, share.quota, self.size, share.emphasis)
        most = sum(self._divided(None, repeating=True).values())
        if share.quota is not None or any(part.claim.quota is None for part in self.parts.values()):
            return Claim(self.name, most, share.weight, share.quota, self.size, share.emphasis)
        if share.weight is not None:
            raise SpecError(
                f"{self.name}: weight {share.weight}, but each of its parts has a quota; give one or the other"
            )
        return Claim(self.name, most, quota=most, size=self.size)

    def take(self, total: int | None) -> Iterator[tuple[Member, int]]:
        """Those without parts, and how many places of the mixture each has; None: as many as there may be.

        Raises:
            SpecError: a share cannot be filled, or the quotas within do not add up.
        """
        if not self.parts:
            yield self, len(self.rows) if total is None else total
        elif total != 0:
            for name, count in self._divided(total).items():
                yield from self.parts[name].take(count)

    def placed(self, count: int, start: float) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
        """`count` of its rows, spread evenly: where in the order (0 to 1), the rows, how often each stood before.

        Prompt j of n stands at (j + start) / n of the way, so that any stretch of the order holds each member within
        two prompts of its proportion. All of its prompts stand once before any stands again.
        """
        positions = np.arange(count)
        repeats, places = np.divmod(positions, len(self.rows))
        return (positions + start) / count, self.rows[places], repeats

    def _divided(self, total: int | None, *, repeating: bool = False) -> dict[str, int]:
        claims = {name: part.claim for name, part in self.parts.items()}
        return divide(total, claims, self.name, self.temperature, repeating=repeating)
