"""Divides a number of prompts among domains or sources, by quotas, weights and the prompts that they have."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from tasks.config import SpecError


@dataclass(frozen=True)
class Claim:
    """The claim of one member of a division: the share that it asks for, and the entries that it can fill.

    Attributes:
        name: the name of the member in errors.
        available: entries of the mixture that it can fill, repetitions included.
        weight: its share relative to the weights beside it (`tasks.mixing.spec.Share`).
        quota: the exact number of its entries.
        size: its prompts; None: as many as `available`.
        emphasis: the factor of its share by temperature.
    """

    name: str
    available: int
    weight: float | None = None
    quota: int | None = None
    size: int | None = None
    emphasis: float | None = None

    @property
    def distinct(self) -> int:
        """The entries that it can fill without repeating a prompt."""
        return self.available if self.size is None else min(self.size, self.available)


def divide(
    total: int | None, claims: Mapping[str, Claim], whole: str, temperature: float = 1.0, *, repeating: bool = False
) -> dict[str, int]:
    """Divide `total` entries of a mixture among claims.

    Quotas are met exactly. The rest is apportioned by weight, with largest remainders, so that it adds up. Where no
    weight is given, one of n prompts weighs n^(1 / temperature) times its emphasis. Without a `total`, the mixture is
    the largest one of these proportions in which not every member repeats its prompts, or `repeating` the largest.

    Args:
        total: the number of entries; None: as many as the claims allow.
        claims: the claims by name.
        whole: the name of the whole in errors.
        temperature: of the shares without weights.
        repeating: without a `total`, allow every member to repeat its prompts.

    Raises:
        SpecError: a share that is larger than the entries available, quotas that do not add up to `total`, weights
        given
            to some but not all of those without a quota, or a weight beside an emphasis.
    """
    counts = {key: claim.quota for key, claim in claims.items() if claim.quota is not None}
    for key, quota in counts.items():
        _check_available(claims[key], quota, "quota")
    open_claims = {key: claim for key, claim in claims.items() if claim.quota is None}
    weights = _weights(open_claims, whole, temperature)
    if total is None:
        return counts | _most(open_claims, weights, repeating)
    rest = total - sum(counts.values())
    if rest < 0 or (rest > 0 and not any(weights.values())):
        raise SpecError(f"{whole}: {total} prompts, but the quotas within add up to {sum(counts.values())}")
    shares = apportion(rest, weights)
    for key, share in shares.items():
        _check_available(open_claims[key], share, "share")
    return counts | shares


def apportion(total: int, weights: Mapping[str, float]) -> dict[str, int]:
    """Return whole numbers that add up to `total`, each within 1 of its share by weight; ties go by name."""
    everything = math.fsum(weights.values())
    if total == 0 or everything == 0:
        return dict.fromkeys(weights, 0)
    exact = {key: total * weight / everything for key, weight in weights.items()}
    counts = {key: math.floor(share) for key, share in exact.items()}
    by_remainder = sorted(weights, key=lambda key: (counts[key] - exact[key], key))
    for key in by_remainder[: total - sum(counts.values())]:
        counts[key] += 1
    return counts


def _weights(claims: Mapping[str, Claim], whole: str, temperature: float) -> dict[str, float]:
    given = {key: claim.weight for key, claim in claims.items() if claim.weight is not None}
    if not given:
        return {
            key: tempered(claim.distinct, temperature) * (1.0 if claim.emphasis is None else claim.emphasis)
            for key, claim in claims.items()
        }
    for key in given:
        if claims[key].emphasis is not None:
            raise SpecError(f"{claims[key].name}: give a weight or an emphasis, not both")
    without = [claim.name for key, claim in claims.items() if key not in given]
    if without:
        raise SpecError(
            f"{whole}: some have a weight, and without weight and quota are {', '.join(without)}: give each of these "
            "one, or no weight to any"
        )
    return given


def _most(claims: Mapping[str, Claim], weights: Mapping[str, float], repeating: bool) -> dict[str, int]:
    """The largest counts that keep the weights' proportions."""
    weighed = {key: weight for key, weight in weights.items() if weight > 0}
    scale = min((claims[key].available / weight for key, weight in weighed.items()), default=0.0)
    if not repeating:
        scale = min(scale, max((claims[key].distinct / weight for key, weight in weighed.items()), default=0.0))
    # A hair above, because 3 / 0.1 * 0.1 must still count as 3.
    return {
        key: min(math.floor(scale * weight * (1 + 1e-12)), claims[key].available) for key, weight in weights.items()
    }


def _check_available(claim: Claim, count: int, what: str) -> None:
    if count > claim.available:
        repeated = f", of {claim.distinct} prompts" if claim.available > claim.distinct else ""
        raise SpecError(
            f"{claim.name}: its {what} is {count} prompts, but {claim.available} are available{repeated}: "
            f"{count - claim.available} too many; lower it, or raise max_repeats"
        )


def tempered(size: int, temperature: float) -> float:
    """Return the weight of `size` prompts at this temperature: size^(1/T), the same for all where T is infinite.

    Temperature sampling over data sets of different sizes (Arivazhagan et al. 2019, arXiv:1907.05019, section 4.1).
    """
    return math.pow(size, 1 / temperature) if size else 0.0
