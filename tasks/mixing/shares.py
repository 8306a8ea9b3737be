"""How a number of prompts is divided among domains or sources: quotas, weights, and what there is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from tasks.config import SpecError


@dataclass(frozen=True)
class Claim:
    """What one member of a division has and asks for. `name` is how an error speaks of it."""

    name: str
    available: int
    weight: float | None = None
    quota: int | None = None


def divide(total: int | None, claims: Mapping[str, Claim], whole: str) -> dict[str, int]:
    """How many of `total` each claim gets; None divides as many as the claims allow. `whole` names what is divided.

    Quotas are met exactly. The rest is apportioned by weight, or by what is available where no weight is given, with
    largest remainders, so that it adds up. Raises `SpecError` for a share that is larger than what is available, for
    quotas that do not add up to `total`, and for weights given to some but not all of those without a quota.
    """
    counts = {key: claim.quota for key, claim in claims.items() if claim.quota is not None}
    for key, quota in counts.items():
        _check_available(claims[key], quota, "quota")
    open_claims = {key: claim for key, claim in claims.items() if claim.quota is None}
    weights = _weights(open_claims, whole)
    if total is None:
        return counts | _most(open_claims, weights)
    rest = total - sum(counts.values())
    if rest < 0 or (rest > 0 and not any(weights.values())):
        raise SpecError(f"{whole}: {total} prompts, but the quotas within add up to {sum(counts.values())}")
    shares = apportion(rest, weights)
    for key, share in shares.items():
        _check_available(open_claims[key], share, "share")
    return counts | shares


def apportion(total: int, weights: Mapping[str, float]) -> dict[str, int]:
    """Whole numbers that add up to `total`, each within 1 of its share by weight; ties go by name."""
    everything = math.fsum(weights.values())
    if total == 0 or everything == 0:
        return dict.fromkeys(weights, 0)
    exact = {key: total * weight / everything for key, weight in weights.items()}
    counts = {key: math.floor(share) for key, share in exact.items()}
    by_remainder = sorted(weights, key=lambda key: (counts[key] - exact[key], key))
    for key in by_remainder[: total - sum(counts.values())]:
        counts[key] += 1
    return counts


def _weights(claims: Mapping[str, Claim], whole: str) -> dict[str, float]:
    given = {key: claim.weight for key, claim in claims.items() if claim.weight is not None}
    if not given:
        return {key: float(claim.available) for key, claim in claims.items()}
    without = [claim.name for key, claim in claims.items() if key not in given]
    if without:
        raise SpecError(f"{whole}: give a weight or a quota to all or a weight to none; without: {', '.join(without)}")
    return given


def _most(claims: Mapping[str, Claim], weights: Mapping[str, float]) -> dict[str, int]:
    """The largest counts that keep the weights' proportions."""
    scales = [claims[key].available / weight for key, weight in weights.items() if weight > 0]
    scale = min(scales, default=0.0)
    # A hair above, because 3 / 0.1 * 0.1 must still count as 3.
    return {
        key: min(math.floor(scale * weight * (1 + 1e-12)), claims[key].available) for key, weight in weights.items()
    }


def _check_available(claim: Claim, count: int, what: str) -> None:
    if count > claim.available:
        raise SpecError(f"{claim.name}: its {what} is {count} prompts, but {claim.available} are available")
