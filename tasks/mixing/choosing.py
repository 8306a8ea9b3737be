"""Which prompts are held out, which are trained on, and how often.

Which prompts are held out or taken is decided by a seeded hash of their text (of that of the prompt that they are like,
where cleaning keeps those together): each source has its prompts in that order, the first are held out, the next are
taken. How many are held out is a number, or all whose hash is below a share. By a share, a prompt's side depends on
nothing but its text and the seed. By a number, it changes only when its source's counts change, by a new spec or
because another source of its domain takes over part of the domain's numbers; never because rows of another source came
or went under counts that stay the same.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tasks.config import SpecError
from tasks.mixing.members import Member
from tasks.mixing.shares import Claim, divide
from tasks.mixing.spec import DomainShare, HeldOut, MixtureSpec, Share, SourceShare
from tasks.tables.parquet import BATCH_ROWS, TableError
from tasks.tables.texts import prompt_keys

Rows = NDArray[np.int64]
"""Rows of the graded table."""

Sources = dict[str, dict[str, Rows]]
"""Domain -> source -> its rows."""

Ranks = NDArray[np.uint64]
"""The hash of each row; prompts that are kept together have the same."""

_HASHES = 2**64


class Chosen(NamedTuple):
    """Which rows are what.

    Attributes:
        all: of each domain and source.
        heldout: those held out, which come first.
        rest: those that may be trained on.
        strata: of each row of a source that has strata, the name of its own.
        train: those that are trained on, by member, and how many places of the mixture each member has.
        like_heldout: those that are like a row held out, and which.
    """

    all: Sources
    heldout: Sources
    rest: Sources
    strata: dict[int, str]
    train: list[tuple[Member, int]]
    like_heldout: dict[int, int]


def choose(prompts: pa.Table, spec: MixtureSpec, name: str) -> Chosen:
    """Divide the rows; `name` is what errors call the table."""
    ids = prompts.column("prompt_id")
    if pc.count_distinct(ids).as_py() < len(ids):
        raise TableError(f"{name}: a prompt_id stands in several rows")
    ranks = _ranks(prompts, spec.seed)
    every = _sources(prompts, ranks)
    _check_names(spec, every, name)
    heldout = {domain: _held_out(domain, sources, ranks, spec, name) for domain, sources in every.items()}
    held = rows_of(heldout)
    holder = dict(zip(ranks[held].tolist(), held.tolist(), strict=True))
    rest: Sources = {domain: {} for domain in every}
    like_heldout: dict[int, int] = {}
    for domain, sources in every.items():
        for source, rows in sources.items():
            left = rows[len(heldout[domain][source]) :]
            is_alike = np.isin(ranks[left], ranks[held])
            rest[domain][source], alike = left[~is_alike], left[is_alike]
            like_heldout |= {row: holder[rank] for row, rank in zip(alike.tolist(), ranks[alike].tolist(), strict=True)}
    strata = _strata(prompts, every, spec)
    return Chosen(every, heldout, rest, strata, _trained_on(rest, strata, spec), like_heldout)


def _ranks(prompts: pa.Table, seed: int) -> Ranks:
    """A seeded hash of what decides the side of each prompt: its text, or what it shares with those like it."""
    prefix = b"%d:" % seed
    hashes = (hashlib.sha256(prefix + cluster).digest()[:8] for cluster in _clusters(prompts))
    return np.frombuffer(b"".join(hashes), ">u8").astype(np.uint64)


def _clusters(prompts: pa.Table) -> Iterator[bytes]:
    """The text of each prompt, or that of the first of those that it is kept together with."""
    for batch in prompts.select(["messages", "cluster"]).to_batches(BATCH_ROWS):
        table = pa.Table.from_batches([batch])
        keys, clusters = prompt_keys(table.column("messages")), table.column("cluster").to_pylist()
        yield from (
            key if cluster is None else bytes.fromhex(cluster) for key, cluster in zip(keys, clusters, strict=True)
        )


def _sources(prompts: pa.Table, ranks: Ranks) -> Sources:
    """The rows of each domain and source, in the order of their ranks; those of one rank by their id."""
    keys = pa.table({"rank": ranks, "prompt_id": prompts.column("prompt_id")})
    order = pc.sort_indices(keys, [("rank", "ascending"), ("prompt_id", "ascending")])
    names = prompts.select(["domain", "source"]).take(order)
    found: dict[str, dict[str, Rows]] = defaultdict(dict)
    pairs = names.group_by(names.column_names).aggregate([])
    for domain, source in sorted((row["domain"], row["source"]) for row in pairs.to_pylist()):
        is_own = pc.and_(pc.equal(names.column("domain"), domain), pc.equal(names.column("source"), source))
        found[domain][source] = order.filter(is_own.combine_chunks()).to_numpy().astype(np.int64)
    return dict(found)


def _check_names(spec: MixtureSpec, every: Sources, prompts: str) -> None:
    if not every:
        raise SpecError(f"mixture: there are no {prompts} to mix")
    sources = sorted({source for domain in every.values() for source in domain})
    for field, named, present in (("domains", spec.domains, sorted(every)), ("sources", spec.sources, sources)):
        for name in named:
            if name not in present:
                raise SpecError(f"mixture: {field}.{name}: no {prompts} of that name; there are {present}")


def _held_out(domain: str, sources: dict[str, Rows], ranks: Ranks, spec: MixtureSpec, prompts: str) -> dict[str, Rows]:
    """The rows of a domain that are held out."""

    def below(source: str, asked: HeldOut) -> int:
        """Prompts of a source that `asked` is: it is a number, or the share that their hash is below."""
        if isinstance(asked, int):
            return asked
        rows = sources[source]
        return int(np.searchsorted(ranks[rows], np.uint64(asked * _HASHES)))

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


def _strata(prompts: pa.Table, every: Sources, spec: MixtureSpec) -> dict[int, str]:
    """The stratum of each row whose source is divided into strata.

    Raises:
        SpecError: such a row has none, or a share is for a stratum that there is not.
    """
    found: dict[int, str] = {}
    for sources in every.values():
        for source, rows in sources.items():
            if (divided := _source(spec, source).strata) is None:
                continue
            texts = prompts.column("metadata").take(pa.array(rows, pa.int64())).to_pylist()
            for row, text in zip(rows.tolist(), texts, strict=True):
                value = json.loads(text).get("columns", {}).get(divided.by)
                if not isinstance(value, str | int | float):
                    raise SpecError(
                        f"mixture: sources.{source}: strata.by: a prompt has {value!r} in {divided.by!r}; it must be "
                        "text or a number, and a column that the source keeps (columns.keep)"
                    )
                found[row] = str(value)
            there = sorted({found[row] for row in rows.tolist()})
            for name in divided.shares:
                if name not in there:
                    raise SpecError(f"mixture: sources.{source}: strata.{name}: there is none; there are {there}")
    return found


def _trained_on(rest: Sources, strata: dict[int, str], spec: MixtureSpec) -> list[tuple[Member, int]]:
    """What to train on of the rows that are left."""
    temperature = float(spec.temperature)
    whole = Member((), "mixture: size", Share(), temperature=temperature)
    for domain, sources in rest.items():
        share = _domain(spec, domain)
        within = Member((domain,), f"mixture: domains.{domain}", share, temperature=temperature)
        within.parts = {source: _source_member(domain, source, rows, strata, spec) for source, rows in sources.items()}
        whole.parts[domain] = within
    train = [(member, count) for member, count in whole.take(spec.size) if count]
    if not train:
        empty = [domain for domain, sources in rest.items() if not any(map(len, sources.values()))]
        why = "all are held out or have weight 0"
        if empty and len(empty) < len(rest):
            why = (
                f"domain {empty[0]!r} has none beside those held out, and the domains' shares are kept; give it a "
                "smaller heldout or the weight 0"
            )
        raise SpecError(f"mixture: no prompt is left to train on: {why}")
    return train


def _source_member(domain: str, source: str, rows: Rows, strata: dict[int, str], spec: MixtureSpec) -> Member:
    share, temperature = _source(spec, source), float(spec.temperature)
    repeats = share.max_repeats or _domain(spec, domain).max_repeats or spec.max_repeats
    name = f"mixture: sources.{source}"
    member = Member((domain, source), name, share, repeats, rows, temperature=temperature)
    if share.strata is not None:
        parts: dict[str, list[int]] = defaultdict(list)
        for row in rows.tolist():
            parts[strata[row]].append(row)
        member.parts = {
            each: Member(
                (domain, source, each),
                f"{name}.strata.{each}",
                share.strata.shares.get(each, Share()),
                repeats,
                np.array(parts[each], np.int64),
            )
            for each in sorted(parts)
        }
    return member


def _domain(spec: MixtureSpec, name: str) -> DomainShare:
    return {str(key): value for key, value in spec.domains.items()}.get(name, DomainShare())


def _source(spec: MixtureSpec, name: str) -> SourceShare:
    return spec.sources.get(name, SourceShare())


def rows_of(sources: Sources) -> Rows:
    return np.concatenate([rows for each in sources.values() for rows in each.values()])
