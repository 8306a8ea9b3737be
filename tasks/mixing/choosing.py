"""Selects the held-out prompts, the training prompts, and how often each is repeated.

A seeded hash of a prompt's text decides (the hash of its cluster, if cleaning keeps near duplicates together). The
prompts of each source are sorted by hash; the first are held out, and the next are used for training. The held-out
prompts are given as a number, or as a share: all prompts whose hash is below it. With a share, the split of a prompt
depends only on its text and the seed. With a number, it only changes if its source's counts change: because of a new
spec, or because another source of its domain provides part of the domain's number. It never changes if rows of another
source are added or removed while the counts stay the same.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tasks.config.loading import SpecError, check_choice
from tasks.mixing.members import Member
from tasks.mixing.shares import Claim, divide
from tasks.mixing.spec import DomainShare, HeldOut, MixtureSpec, Share, SourceShare
from tasks.tables.losses import REASONS, count_reasons, format_counts
from tasks.tables.parquet import BATCH_ROWS, TableError, take_rows
from tasks.tables.texts import compute_prompt_keys

Rows = NDArray[np.int64]
"""Row numbers of the graded table."""

Sources = dict[str, dict[str, Rows]]
"""The rows of each source, by domain and by source."""

Ranks = NDArray[np.uint64]
"""The hash of each row. Prompts with the same text or in the same cluster have the same hash."""

_HASHES = 2**64


class Chosen(NamedTuple):
    """The split of the graded table.

    Attributes:
        all: all rows.
        heldout: the held-out rows, which are the first of each source.
        rest: the rows that may be used for training.
        strata: the stratum of each row of a source that is divided into strata.
        train: the members of the training mixture, with the number of entries of each.
        like_heldout: the rows that are similar to a held-out row, with that row.
    """

    all: Sources
    heldout: Sources
    rest: Sources
    strata: dict[int, str]
    train: list[tuple[Member, int]]
    like_heldout: dict[int, int]


def choose(prompts: pa.Table, spec: MixtureSpec, name: str) -> Chosen:
    """Split the rows of `prompts` as specified by `spec`.

    Args:
        prompts: table of `PROMPTS`, or one with more columns.
        spec: the mixture.
        name: the name of the table in errors.

    Raises:
        SpecError: `spec` names a domain, source or stratum that is not in the table, or a share that it cannot fill.
        TableError: a prompt has several rows.
    """
    ids = prompts.column("prompt_id")
    # Rows of equal rank are sorted by id. With equal ids, the split would depend on the order of the table.
    if pc.count_distinct(ids).as_py() < len(ids):
        raise TableError(f"{name}: a prompt_id occurs in several rows")
    ranks = _compute_ranks(prompts, spec.seed)
    every = _sort_sources(prompts, ranks)
    _check_names(spec, every, name)
    heldout = {domain: _choose_held_out(domain, sources, ranks, spec, name) for domain, sources in every.items()}
    held_rows = join_rows(heldout)
    # Several held-out rows may have the same hash. The reason in `SET_ASIDE` then names the last of them.
    held_row_of = dict(zip(ranks[held_rows].tolist(), held_rows.tolist(), strict=True))
    rest: Sources = {domain: {} for domain in every}
    like_heldout: dict[int, int] = {}
    for domain, sources in every.items():
        for source, rows in sources.items():
            left = rows[len(heldout[domain][source]) :]
            # A copy in another source, or right after the last held-out row, would train on a held-out prompt.
            is_alike = np.isin(ranks[left], ranks[held_rows])
            rest[domain][source], alike = left[~is_alike], left[is_alike]
            like_heldout |= {
                row: held_row_of[rank] for row, rank in zip(alike.tolist(), ranks[alike].tolist(), strict=True)
            }
    strata = _read_strata(prompts, every, spec)
    return Chosen(every, heldout, rest, strata, _choose_members(rest, strata, spec), like_heldout)


def check_some_left(prompts: pa.Table, name: str, set_aside: Iterable[pa.Table]) -> None:
    """Raise `SpecError` with the commonest reasons of `set_aside`, tables of `SET_ASIDE`, if `prompts` has no rows."""
    if prompts.num_rows:
        return
    lines = []
    for stage, by_source in count_reasons(set_aside).items():
        reasons = sum(by_source.values(), Counter[str]())
        lines.append(f"{stage} dropped {reasons.total():,} rows: {format_counts(dict(reasons.most_common(REASONS)))}")
    raise SpecError(". ".join([f"mixture: there are no {name} to mix", *lines]))


def _compute_ranks(prompts: pa.Table, seed: int) -> Ranks:
    """Return a seeded hash of each prompt's cluster, or of its text if it has none. It determines the split."""
    prefix = b"%d:" % seed
    # 8 bytes: among a million prompts, two have the same hash with a probability of 3e-8.
    # Big-endian, so that every machine makes the same split.
    hashes = (hashlib.sha256(prefix + cluster).digest()[:8] for cluster in _list_cluster_keys(prompts))
    return np.frombuffer(b"".join(hashes), ">u8").astype(np.uint64)


def _list_cluster_keys(prompts: pa.Table) -> Iterator[bytes]:
    """Yield the key of each prompt's cluster, or of its text if it has none."""
    # In batches, because `compute_prompt_keys` copies the texts several times.
    for batch in prompts.select(["messages", "cluster"]).to_batches(BATCH_ROWS):
        table = pa.Table.from_batches([batch])
        keys, clusters = compute_prompt_keys(table.column("messages")), table.column("cluster").to_pylist()
        yield from (
            key if cluster is None else bytes.fromhex(cluster) for key, cluster in zip(keys, clusters, strict=True)
        )


def _sort_sources(prompts: pa.Table, ranks: Ranks) -> Sources:
    """Return the rows of each domain and source, sorted by rank, and by id if the ranks are equal."""
    keys = pa.table({"rank": ranks, "prompt_id": prompts.column("prompt_id")})
    order = pc.sort_indices(keys, [("rank", "ascending"), ("prompt_id", "ascending")])
    names = prompts.select(["domain", "source"]).take(order)
    rows_of_source: dict[str, dict[str, Rows]] = defaultdict(dict)
    pairs = names.group_by(names.column_names).aggregate([])
    for domain, source in sorted((row["domain"], row["source"]) for row in pairs.to_pylist()):
        is_own = pc.and_(pc.equal(names.column("domain"), domain), pc.equal(names.column("source"), source))
        # A filter keeps the order, so that the rows of each source stay sorted by rank.
        rows_of_source[domain][source] = order.filter(is_own.combine_chunks()).to_numpy().astype(np.int64)
    return dict(rows_of_source)


def _check_names(spec: MixtureSpec, every: Sources, prompts: str) -> None:
    if not every:
        raise SpecError(f"mixture: there are no {prompts} to mix")
    for domain in spec.domains:
        check_choice(domain, every, "mixture.domains", f"domain of the {prompts} that the filters left")
    sources = {source for domain in every.values() for source in domain}
    for source in spec.sources:
        check_choice(source, sources, "mixture.sources", f"source of the {prompts} that the filters left")


def _choose_held_out(
    domain: str, sources: dict[str, Rows], ranks: Ranks, spec: MixtureSpec, prompts: str
) -> dict[str, Rows]:
    """Return the held-out rows of a domain."""

    def count_held_out(source: str, asked: HeldOut) -> int:
        """Return the number of a source's prompts to hold out, which is `asked` or given by that share."""
        if isinstance(asked, int):
            return asked
        rows = sources[source]
        # The rows are sorted by rank, so the rows below the share are the first ones.
        return int(np.searchsorted(ranks[rows], np.uint64(asked * _HASHES)))

    # The option of a source counts before the one of its domain, and this before the one of the mixture.
    own = _get_domain(spec, domain).heldout
    held = spec.heldout if own is None else own
    quotas = {
        name: None if (asked := _get_source(spec, name).heldout) is None else count_held_out(name, asked)
        for name in sources
    }
    if isinstance(held, float):
        # A share applies to each source separately, so that the rows of another source change nothing.
        quotas = {name: count_held_out(name, held) if quota is None else quota for name, quota in quotas.items()}
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


def _read_strata(prompts: pa.Table, every: Sources, spec: MixtureSpec) -> dict[int, str]:
    """Return the stratum of each row whose source is divided into strata.

    Raises:
        SpecError: such a row has no stratum, or a share is for a stratum without rows.
    """
    stratum_of: dict[int, str] = {}
    for sources in every.values():
        for source, rows in sources.items():
            if (divided := _get_source(spec, source).strata) is None:
                continue
            # Metadata is parsed only for sources with strata, and read in parts.
            parts = take_rows(prompts.select(["metadata"]), rows)
            texts = chain.from_iterable(part.column("metadata").to_pylist() for part in parts)
            for row, text in zip(rows.tolist(), texts, strict=True):
                value = json.loads(text).get("columns", {}).get(divided.by)
                if not isinstance(value, str | int | float):
                    raise SpecError(
                        f"mixture: sources.{source}: strata.by: a prompt has {value!r} in {divided.by!r}; it must be "
                        "text or a number, and a column that the source keeps (columns.keep)"
                    )
                stratum_of[row] = str(value)
            present = {stratum_of[row] for row in rows.tolist()}
            for name in divided.shares:
                check_choice(name, present, f"mixture.sources.{source}.strata.shares", "stratum")
    return stratum_of


def _choose_members(rest: Sources, strata: dict[int, str], spec: MixtureSpec) -> list[tuple[Member, int]]:
    """Return the members of the training mixture, with the number of entries of each."""
    temperature = float(spec.temperature)
    whole = Member((), "mixture: size", Share(), temperature=temperature)
    for domain, sources in rest.items():
        share = _get_domain(spec, domain)
        within = Member((domain,), f"mixture: domains.{domain}", share, temperature=temperature)
        within.parts = {
            source: _build_source_member(domain, source, rows, strata, spec) for source, rows in sources.items()
        }
        whole.parts[domain] = within
    train = [(member, count) for member, count in whole.take(spec.size) if count]
    if not train:
        empty = [domain for domain, sources in rest.items() if not any(map(len, sources.values()))]
        why = "all are held out or have weight 0"
        if empty and len(empty) < len(rest):
            # An empty domain keeps its share, so that the largest mixture with these shares is empty.
            why = (
                f"domain {empty[0]!r} has none except those held out, and the domains' shares are kept; give it a "
                "smaller heldout or the weight 0"
            )
        raise SpecError(f"mixture: no prompt is left to train on: {why}")
    return train


def _build_source_member(domain: str, source: str, rows: Rows, strata: dict[int, str], spec: MixtureSpec) -> Member:
    share, temperature = _get_source(spec, source), float(spec.temperature)
    repeats = share.max_repeats or _get_domain(spec, domain).max_repeats or spec.max_repeats
    name = f"mixture: sources.{source}"
    member = Member((domain, source), name, share, repeats, rows, temperature=temperature)
    if share.strata is not None:
        parts: dict[str, list[int]] = defaultdict(list)
        for row in rows.tolist():
            parts[strata[row]].append(row)
        member.parts = {
            stratum: Member(
                (domain, source, stratum),
                f"{name}.strata.{stratum}",
                share.strata.shares.get(stratum, Share()),
                repeats,
                np.array(parts[stratum], np.int64),
            )
            for stratum in sorted(parts)  # the order of the keys depends on which row comes first
        }
    return member


def _get_domain(spec: MixtureSpec, name: str) -> DomainShare:
    return {str(key): value for key, value in spec.domains.items()}.get(name, DomainShare())


def _get_source(spec: MixtureSpec, name: str) -> SourceShare:
    return spec.sources.get(name, SourceShare())


def join_rows(sources: Sources) -> Rows:
    """Return the rows of all domains and sources, in order."""
    return np.concatenate([rows for domain in sources.values() for rows in domain.values()])
