"""Graded prompts into a training mixture and a held-out set.

Which prompts are held out or taken is decided by a seeded hash of their text (of that of the prompt that they are like,
where cleaning keeps those together): each source has its prompts in that order, the first are held out, the next are
taken. How many are held out is a number, or all whose hash is below a share. By a share, a prompt's side depends on
nothing but its text and the seed. By a number, it changes only when its source's counts change, by a new spec or
because another source of its domain takes over part of the domain's numbers; never because rows of another source came
or went under counts that stay the same.
"""

from __future__ import annotations

import bisect
import hashlib
import json
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.config import SpecError
from tasks.mixing.shares import Claim, divide
from tasks.mixing.spec import DomainShare, HeldOut, MixtureSpec, SourceShare
from tasks.schemas import (
    BATCH_ROWS,
    CLUSTER,
    GRADED,
    MIXTURE,
    PROMPTS,
    SET_ASIDE,
    TableError,
    set_aside_row,
    table_from_rows,
    validate,
)
from tasks.texts import prompt_keys

Strata = dict[str, dict[str, list[int]]]
"""Domain -> source -> rows of the graded table."""

_HASHES = 2**64


@dataclass(frozen=True)
class Mixed:
    """A mixture.

    Attributes:
        train: table of `MIXTURE`, sorted by `order`. `weight` is the chance with which a sampler that draws at random
            draws the row: the counts already hold the proportions, so it is the same for all and adds up to 1.
        heldout: table of `GRADED`, by domain, source and seeded hash; shares no `prompt_id` with `train`.
        counts: per domain and source, `{domain, source, available, heldout, taken}`.
        set_aside: table of `SET_ASIDE`: prompts like one that is held out, which therefore are not trained on.
    """

    train: pa.Table
    heldout: pa.Table
    counts: list[dict[str, Any]]
    set_aside: pa.Table


def mix(graded: pa.Table, spec: MixtureSpec) -> Mixed:
    """Divide `graded` as `spec` says; equal inputs give equal tables, whatever the order of the rows.

    Args:
        graded: table of `GRADED`; a prompt with several rows is a `TableError`.
        spec: what to take; a share that `graded` cannot fill is a `SpecError`.
    """
    graded = validate(graded, GRADED, "graded prompts")
    strata, heldout, train, like_heldout = _choose(graded, spec, "graded prompts")
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
        set_aside=_set_aside(graded, like_heldout),
    )


def check(prompts: pa.Table, spec: MixtureSpec) -> None:
    """Raise `SpecError` when not even all of `prompts` could fill the mixture, as they are before any is filtered out.

    Args:
        prompts: table of `PROMPTS`.
        spec: as for `mix`.
    """
    _choose(validate(prompts, PROMPTS, "prompts"), spec, "prompts")


def _choose(prompts: pa.Table, spec: MixtureSpec, name: str) -> tuple[Strata, Strata, Strata, dict[int, int]]:
    """All rows, those held out and those trained on, and which are like which of those held out.

    `name` is what errors call the table.
    """
    ids = prompts.column("prompt_id").to_pylist()
    if len(set(ids)) < len(ids):
        raise TableError(f"{name}: a prompt_id stands in several rows")
    clusters = _clusters(prompts)
    ranks = [_rank(spec.seed, cluster) for cluster in clusters]
    strata = _strata(prompts, ids, ranks)
    _check_names(spec, strata, name)
    heldout = {domain: _held_out(domain, sources, ranks, spec, name) for domain, sources in strata.items()}
    holder = {clusters[row]: row for row in _rows(heldout)}
    rest = {
        domain: {
            source: [row for row in rows[len(heldout[domain][source]) :] if clusters[row] not in holder]
            for source, rows in sources.items()
        }
        for domain, sources in strata.items()
    }
    train = _trained_on(rest, spec)
    chosen = set(_rows(heldout))
    assert not chosen & set(_rows(train)), "a prompt is both held out and trained on"
    like_heldout = {
        row: holder[clusters[row]] for row in _rows(strata) if clusters[row] in holder and row not in chosen
    }
    return strata, heldout, train, like_heldout


def _clusters(prompts: pa.Table) -> list[bytes]:
    """What decides the side of each prompt: its text, or what it shares with those that it is kept together with."""
    found: list[bytes] = []
    for batch in prompts.select(["messages", "metadata"]).to_batches(BATCH_ROWS):
        table = pa.Table.from_batches([batch])
        keys = prompt_keys(table.column("messages"))
        found += [
            bytes.fromhex(json.loads(text).get(CLUSTER, key.hex())) if marked else key
            for key, text, marked in zip(
                keys,
                table.column("metadata").to_pylist(),
                pc.match_substring(table.column("metadata"), f'"{CLUSTER}"').to_pylist(),
                strict=True,
            )
        ]
    return found


def _rank(seed: int, cluster: bytes) -> int:
    return int.from_bytes(hashlib.sha256(b"%d:%b" % (seed, cluster)).digest()[:8])


def _strata(prompts: pa.Table, ids: list[str], ranks: list[int]) -> Strata:
    """The rows of each domain and source, in the order of their ranks; those of one rank by their id."""
    found: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    names = zip(prompts.column("domain").to_pylist(), prompts.column("source").to_pylist(), strict=True)
    for row, (domain, source) in enumerate(names):
        found[domain][source].append(row)
    return {
        domain: {
            source: sorted(found[domain][source], key=lambda row: (ranks[row], ids[row]))
            for source in sorted(found[domain])
        }
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


def _held_out(
    domain: str, sources: dict[str, list[int]], ranks: list[int], spec: MixtureSpec, prompts: str
) -> dict[str, list[int]]:
    """The rows of a domain that are held out."""

    def below(source: str, asked: HeldOut) -> int:
        """Prompts of a source that `asked` is: it is a number, or the share that their hash is below."""
        if isinstance(asked, int):
            return asked
        rows = sources[source]
        return bisect.bisect_left(rows, asked * _HASHES, key=ranks.__getitem__)

    own = _domain(spec, domain).heldout
    held = spec.heldout if own is None else own
    quotas = {name: None if (asked := _source(spec, name).heldout) is None else below(name, asked) for name in sources}
    if isinstance(held, float):
        quotas = {name: below(name, held) if quota is None else quota for name, quota in quotas.items()}
        held = sum(quota for quota in quotas.values() if quota is not None)
    available = sum(map(len, sources.values()))
    if held > available:
        raise SpecError(f"mixture: heldout = {held}: domain {domain!r} has only {available} {prompts} in all")
    claims = {
        name: Claim(f"mixture: sources.{name}: heldout", len(rows), quota=quotas[name])
        for name, rows in sources.items()
    }
    counts = divide(held, claims, f"mixture: heldout of domain {domain!r}")
    return {name: rows[: counts[name]] for name, rows in sources.items()}


def _trained_on(rest: Strata, spec: MixtureSpec) -> Strata:
    """Of the rows that are left, those to train on."""
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
    return train


def _set_aside(graded: pa.Table, like_heldout: dict[int, int]) -> pa.Table:
    ids = graded.column("prompt_id")
    rows = sorted(like_heldout)
    return table_from_rows(
        [
            set_aside_row(
                "mixing",
                "near_duplicate",
                row["source"],
                json.loads(row["metadata"]).get("row", -1),
                "like a prompt that is held out",
                row["messages"][-1]["content"],
                prompt_id=row["prompt_id"],
                clashed_with=ids[like_heldout[place]].as_py(),
            )
            for place, row in zip(rows, graded.take(pa.array(rows, pa.int64())).to_pylist(), strict=True)
        ],
        SET_ASIDE,
        "prompts like held-out ones",
    )


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
