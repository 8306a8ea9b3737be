"""Graded prompts into a training mixture and a held-out set.

Which prompts are held out or taken is decided by a seeded hash of their id: each source has its prompts in a fixed
order, the first are held out, the next are taken. So a prompt changes sides only when its source's counts change, by
a new spec or because another source of its domain takes over part of the domain's numbers; never because rows of
another source came or went under counts that stay the same.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tasks.config import SpecError
from tasks.mixing.shares import Claim, divide
from tasks.mixing.spec import DomainShare, MixtureSpec, SourceShare
from tasks.schemas import GRADED, MIXTURE, PROMPTS, TableError, validate

Strata = dict[str, dict[str, list[int]]]
"""Domain -> source -> rows of the graded table."""


@dataclass(frozen=True)
class Mixed:
    """A mixture.

    Attributes:
        train: table of `MIXTURE`, sorted by `order`. `weight` is the chance with which a sampler that draws at random
            draws the row: the counts already hold the proportions, so it is the same for all and adds up to 1.
        heldout: table of `GRADED`, by domain, source and seeded hash; shares no `prompt_id` with `train`.
        counts: per domain and source, `{domain, source, available, heldout, taken}`.
    """

    train: pa.Table
    heldout: pa.Table
    counts: list[dict[str, Any]]


def mix(graded: pa.Table, spec: MixtureSpec) -> Mixed:
    """Divide `graded` as `spec` says; equal inputs give equal tables, whatever the order of the rows.

    Args:
        graded: table of `GRADED`; a prompt with several rows is a `TableError`.
        spec: what to take; a share that `graded` cannot fill is a `SpecError`.
    """
    graded = validate(graded, GRADED, "graded prompts")
    strata, heldout, train = _choose(graded, spec, "graded prompts")
    return Mixed(
        train=_train_table(graded, train, spec.seed),
        heldout=graded.take(pa.array(_rows(heldout), pa.int64())).combine_chunks(),
        counts=[
            {
                "domain": domain,
                "source": source,
                "available": len(rows),
                "heldout": len(heldout[domain][source]),
                "taken": len(train[domain][source]),
            }
            for domain, sources in strata.items()
            for source, rows in sources.items()
        ],
    )


def check(prompts: pa.Table, spec: MixtureSpec) -> None:
    """Raise `SpecError` when not even all of `prompts` could fill the mixture, as they are before any is filtered out.

    Args:
        prompts: table of `PROMPTS`.
        spec: as for `mix`.
    """
    _choose(validate(prompts, PROMPTS, "prompts"), spec, "prompts")


def _choose(prompts: pa.Table, spec: MixtureSpec, name: str) -> tuple[Strata, Strata, Strata]:
    """All rows, those held out and those trained on; `name` is what errors call the table."""
    ids = prompts.column("prompt_id").to_pylist()
    if len(set(ids)) < len(ids):
        raise TableError(f"{name}: a prompt_id stands in several rows")
    strata = _strata(prompts, ids, spec.seed)
    _check_names(spec, strata, name)
    heldout, train = _split(strata, spec, name)
    assert not set(_rows(heldout)) & set(_rows(train)), "a prompt is both held out and trained on"
    return strata, heldout, train


def _strata(prompts: pa.Table, ids: list[str], seed: int) -> Strata:
    """The rows of each domain and source, in the order of the seeded hash of their prompt's id."""
    found: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    ranks = [hashlib.sha256(f"{seed}:{each}".encode()).digest() for each in ids]
    names = zip(prompts.column("domain").to_pylist(), prompts.column("source").to_pylist(), strict=True)
    for row, (domain, source) in enumerate(names):
        found[domain][source].append(row)
    return {
        domain: {source: sorted(found[domain][source], key=ranks.__getitem__) for source in sorted(found[domain])}
        for domain in sorted(found)
    }


def _check_names(spec: MixtureSpec, strata: Strata, prompts: str) -> None:
    if not strata:
        raise SpecError(f"mixture: there are no {prompts} to mix")
    sources = sorted({source for domain in strata.values() for source in domain})
    for field, named, present in (("domains", spec.domains, sorted(strata)), ("sources", spec.sources, sources)):
        for name in named:
            if name not in present:
                raise SpecError(f"mixture: {field}.{name}: no {prompts} of that name; there are {present}")


def _split(strata: Strata, spec: MixtureSpec, prompts: str) -> tuple[Strata, Strata]:
    """The rows that are held out and those that are trained on."""
    heldout: Strata = {}
    rest: Strata = {}
    for domain, sources in strata.items():
        claims = {
            name: Claim(f"mixture: sources.{name}: heldout", len(rows), quota=_source(spec, name).heldout)
            for name, rows in sources.items()
        }
        available = sum(map(len, sources.values()))
        own = _domain(spec, domain).heldout
        held = spec.heldout if own is None else own
        if held > available:
            raise SpecError(f"mixture: heldout = {held}: domain {domain!r} has only {available} {prompts} in all")
        counts = divide(held, claims, f"mixture: heldout of domain {domain!r}")
        heldout[domain] = {name: rows[: counts[name]] for name, rows in sources.items()}
        rest[domain] = {name: rows[counts[name] :] for name, rows in sources.items()}

    claims = {domain: _domain_claim(domain, sources, spec) for domain, sources in rest.items()}
    totals = divide(spec.size, claims, "mixture: size")
    train = {domain: _take(totals[domain], domain, sources, spec) for domain, sources in rest.items()}
    if not _rows(train):
        empty = [domain for domain, sources in rest.items() if not any(sources.values())]
        why = "all are held out or have weight 0"
        if empty and len(empty) < len(rest):
            why = (
                f"domain {empty[0]!r} has none beside those held out, and the domains' shares are kept; give it a "
                "smaller heldout or the weight 0"
            )
        raise SpecError(f"mixture: no prompt is left to train on: {why}")
    return heldout, train


def _domain_claim(domain: str, sources: dict[str, list[int]], spec: MixtureSpec) -> Claim:
    """What a domain can give, its sources' quotas and weights considered."""
    name = f"mixture: domains.{domain}"
    share = _domain(spec, domain)
    most = sum(divide(None, _source_claims(sources, spec), name).values())
    quotas = [_source(spec, source).quota for source in sources]
    if None in quotas or share.quota is not None:
        return Claim(name, most, share.weight, share.quota)
    if share.weight is not None:
        raise SpecError(f"{name}: weight {share.weight}, but each of its sources has a quota; give one or the other")
    return Claim(name, most, quota=most)


def _take(total: int, domain: str, sources: dict[str, list[int]], spec: MixtureSpec) -> dict[str, list[int]]:
    if total == 0:
        return {name: [] for name in sources}
    counts = divide(total, _source_claims(sources, spec), f"mixture: domains.{domain}")
    return {name: rows[: counts[name]] for name, rows in sources.items()}


def _source_claims(sources: dict[str, list[int]], spec: MixtureSpec) -> dict[str, Claim]:
    return {
        name: Claim(f"mixture: sources.{name}", len(rows), _source(spec, name).weight, _source(spec, name).quota)
        for name, rows in sources.items()
    }


def _domain(spec: MixtureSpec, name: str) -> DomainShare:
    return {str(key): value for key, value in spec.domains.items()}.get(name, DomainShare())


def _source(spec: MixtureSpec, name: str) -> SourceShare:
    return spec.sources.get(name, SourceShare())


def _rows(strata: Strata) -> list[int]:
    return [row for sources in strata.values() for rows in sources.values() for row in rows]


def _train_table(graded: pa.Table, train: Strata, seed: int) -> pa.Table:
    """The taken rows, each source spread evenly over the order from a seeded start.

    Row j of a source of n stands at (j + start) / n of the way, so any stretch of the order holds each source within
    two prompts of its proportion.
    """
    placed = []
    for domain, sources in train.items():
        for source, rows in sources.items():
            start = int.from_bytes(hashlib.sha256(f"{seed}:{domain}:{source}".encode()).digest()[:8]) / 2**64
            placed += [((position + start) / len(rows), domain, source, row) for position, row in enumerate(rows)]
    order = [row for *_, row in sorted(placed, key=lambda place: place[:3])]
    table = graded.take(pa.array(order, pa.int64())).combine_chunks()
    table = table.append_column("weight", pa.array(np.full(len(order), 1 / len(order))))
    return validate(table.append_column("order", pa.array(np.arange(len(order)))), MIXTURE, "mixture")
