"""Divides a number of prompts among domains or sources, by quotas, weights and the number of available prompts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from tasks.config.loading import SpecError

LARGEST_LOG = math.log(1e100)
"""Logarithm of the largest weight that is used as it is. Sums and products of such weights are finite."""


@dataclass(frozen=True)
class Claim:
    """The claim of one member: the share that it requests, and the number of entries that it can fill.

    Attributes:
        name: the name of the member in errors.
        available: the number of entries of the mixture that it can fill, including repetitions.
        weight: its share relative to the weights of the other members (`tasks.mixing.spec.Share`).
        quota: the exact number of its entries.
        size: the number of its prompts. If None, it is `available`.
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
        """The number of entries that it can fill without repeating a prompt."""
        return self.available if self.size is None else min(self.size, self.available)


def divide(
    total: int | None, claims: Mapping[str, Claim], whole: str, temperature: float = 1.0, *, repeating: bool = False
) -> dict[str, int]:
    """Divide `total` entries of a mixture among claims.

    Quotas are met exactly. The rest is divided by weight, rounded by the largest-remainder method, so that it adds up.
    If no weights are given, the weight of n prompts is n^(1 / temperature) times the emphasis. Without a `total`, the
    mixture is the largest one with these proportions in which at least one member does not repeat its prompts, or with
    `repeating` the largest one overall.

    Args:
        total: the number of entries. If None, as many as the claims allow.
        claims: the claims by name.
        whole: the name of the whole in errors.
        temperature: the temperature of shares without weights.
        repeating: without a `total`, allow every member to repeat its prompts.

    Raises:
        SpecError: a share is larger than the available entries, quotas do not add up to `total`, only some of the
            claims without a quota have a weight, or a claim has both a weight and an emphasis.
    """
    counts = {key: claim.quota for key, claim in claims.items() if claim.quota is not None}
    for key, quota in counts.items():
        if quota > claims[key].available:
            raise SpecError(f"{_describe_shortage(claims[key], quota, 'quota')}; lower it, or raise max_repeats")
    open_claims = {key: claim for key, claim in claims.items() if claim.quota is None}
    weights = _compute_weights(open_claims, whole, temperature)
    if total is None:
        return counts | _compute_largest(open_claims, weights, repeating)
    rest = total - sum(counts.values())
    if rest < 0 or (rest > 0 and not any(weights.values())):
        raise SpecError(f"{whole}: {total} prompts, but the quotas within add up to {sum(counts.values())}")
    shares = apportion(rest, weights)
    for key, share in shares.items():
        if share > open_claims[key].available:
            most = sum(counts.values()) + sum(_compute_largest(open_claims, weights, repeating=True).values())
            cause = _describe_cause(open_claims[key], temperature)
            raise SpecError(
                f"{_describe_shortage(open_claims[key], share, 'share')}. The share follows from {whole} = {total} "
                f"and {cause}: "
                f"these shares fit {most} prompts in all: lower {total} to that, or lower this share, raise "
                "max_repeats, or read more rows"
            )
    return counts | shares


def apportion(total: int, weights: Mapping[str, float]) -> dict[str, int]:
    """Return integers that add up to `total`, each within 1 of its share by weight. Ties are broken by name."""
    everything = math.fsum(weights.values())
    if total == 0 or everything == 0:
        return dict.fromkeys(weights, 0)
    exact = {key: total * weight / everything for key, weight in weights.items()}
    counts = {key: math.floor(share) for key, share in exact.items()}
    by_remainder = sorted(weights, key=lambda key: (counts[key] - exact[key], key))
    for key in by_remainder[: total - sum(counts.values())]:
        counts[key] += 1
    return counts


def _compute_weights(claims: Mapping[str, Claim], whole: str, temperature: float) -> dict[str, float]:
    given = {key: claim.weight for key, claim in claims.items() if claim.weight is not None}
    if not given:
        sizes = apply_temperature({key: claim.distinct for key, claim in claims.items()}, temperature)
        return {key: sizes[key] * (1.0 if claim.emphasis is None else claim.emphasis) for key, claim in claims.items()}
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


def _compute_largest(claims: Mapping[str, Claim], weights: Mapping[str, float], repeating: bool) -> dict[str, int]:
    """Return the largest counts with the proportions of the weights."""
    weighed = {key: weight for key, weight in weights.items() if weight > 0}
    scale = min((claims[key].available / weight for key, weight in weighed.items()), default=0.0)
    if not repeating:
        scale = min(scale, max((claims[key].distinct / weight for key, weight in weighed.items()), default=0.0))
    # The factor corrects rounding errors: 3 / 0.1 * 0.1 must still count as 3.
    return {
        key: min(math.floor(scale * weight * (1 + 1e-12)), claims[key].available) for key, weight in weights.items()
    }


def _describe_shortage(claim: Claim, count: int, what: str) -> str:
    """Return the message about a member that cannot fill its quota or share of `count` entries."""
    repeated = f", of {claim.distinct} prompts" if claim.available > claim.distinct else ""
    return (
        f"{claim.name}: its {what} is {count} prompts, but {claim.available} are available{repeated}: "
        f"{count - claim.available} too many"
    )


def _describe_cause(claim: Claim, temperature: float) -> str:
    """Return the options that determine the share of a member without a quota."""
    if claim.weight is not None:
        return f"its weight {claim.weight:g}"
    emphasis = "" if claim.emphasis is None else f" and its emphasis {claim.emphasis:g}"
    return f"temperature = {temperature:g}{emphasis}"


def apply_temperature(sizes: Mapping[str, int], temperature: float) -> dict[str, float]:
    """Return the weights of members of `sizes` prompts at this temperature: size^(1/T), or 1 if T is infinite.

    If a weight would be too large for a float, all are divided by the largest. Members without prompts have the weight
    0.

    This is temperature sampling over datasets of different sizes (Arivazhagan et al. 2019, arXiv:1907.05019, section
    4.1).
    """
    largest = max(sizes.values(), default=0)
    is_large = largest > 1 and math.log(largest) / temperature > LARGEST_LOG
    unit = largest if is_large else 1
    return {key: math.pow(size / unit, 1 / temperature) if size else 0.0 for key, size in sizes.items()}
