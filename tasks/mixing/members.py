"""Defines the tree of a mixture: all prompts, their domains, the domains' sources, the sources' strata."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tasks.config.loading import SpecError
from tasks.mixing.shares import Claim, divide
from tasks.mixing.spec import Share


@dataclass
class Member:
    """A node of the tree: all prompts, a domain, a source or a stratum.

    Attributes:
        path: the names of the nodes from the root to this one. Nodes are ordered by path.
        name: the name of the node in errors.
        share: the weight, quota or emphasis that the spec gives it.
        repeats: maximum number of entries of one of its prompts in the mixture.
        rows: the prompts of a leaf, in order of use.
        parts: the child nodes, by name.
        temperature: the temperature used to divide it among its children.
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
        """The number of its distinct prompts, or of entries if a quota of its parts repeats prompts."""
        if not self.parts:
            return len(self.rows)
        return sum(max(part.size, part.share.quota or 0) for part in self.parts.values())

    @property
    def claim(self) -> Claim:
        """The entries that it can fill and the share that it requests, from the quotas and weights of its children.

        Raises:
            SpecError: its children cannot fill their quotas, or weights contradict each other.
        """
        share = self.share
        if not self.parts:
            return Claim(self.name, len(self.rows) * self.repeats, share.weight, share.quota, self.size, share.emphasis)
        most = sum(self._divide(None, repeating=True).values())
        if share.quota is not None or any(part.claim.quota is None for part in self.parts.values()):
            return Claim(self.name, most, share.weight, share.quota, self.size, share.emphasis)
        if share.weight is not None:
            raise SpecError(
                f"{self.name}: weight {share.weight}, but each of its parts has a quota; give one or the other"
            )
        return Claim(self.name, most, quota=most, size=self.size)

    def take(self, total: int | None) -> Iterator[tuple[Member, int]]:
        """Divide `total` entries of the mixture among the leaves. Yield each leaf with its number of entries.

        Args:
            total: the number of entries. If None, as many as the shares allow.

        Raises:
            SpecError: a share cannot be filled, or the quotas of children do not add up.
        """
        if not self.parts:
            yield self, len(self.rows) if total is None else total
        elif total != 0:
            for name, count in self._divide(total).items():
                yield from self.parts[name].take(count)

    def spread(self, count: int, start: float) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
        """Distribute `count` entries of this node evenly over the order of the mixture.

        Entry j of n is at (j + start) / n of the order, so that in any range of the order the number of entries of each
        node is within two prompts of its proportion. All prompts of the node are used once before any is repeated.

        Args:
            count: the number of entries.
            start: in [0, 1).

        Returns:
            The positions in the order, in [0, 1), the rows, and how often each row was used before; all `[count]`.
        """
        entries = np.arange(count)
        repeats, prompts = np.divmod(entries, len(self.rows))
        return (entries + start) / count, self.rows[prompts], repeats

    def _divide(self, total: int | None, *, repeating: bool = False) -> dict[str, int]:
        claims = {name: part.claim for name, part in self.parts.items()}
        return divide(total, claims, self.name, self.temperature, repeating=repeating)
