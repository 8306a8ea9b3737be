"""Splits graded prompts into a training mixture and a held-out set, as tables."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from tasks.mixing.choosing import Chosen, Rows, choose, join_rows
from tasks.mixing.members import Member
from tasks.mixing.spec import MixtureSpec
from tasks.tables.parquet import add_user_columns, build_table, mapped, take_rows, validate
from tasks.tables.schemas import GRADED, MIXTURE, PROMPTS, SET_ASIDE, set_aside_prompt


@dataclass(frozen=True)
class Mixed:
    """A mixture and its held-out set.

    Attributes:
        train: table of `MIXTURE`, sorted by `order`.
        heldout: table of `GRADED`, sorted by domain, source and seeded hash. No `prompt_id` is also in `train`.
        counts: a row for each domain, source and stratum, `{domain, source, stratum, available, heldout, prompts,
            taken}`; `prompts` counts the distinct training prompts, and `taken` their entries in the mixture.
        set_aside: table of `SET_ASIDE`: prompts that are dropped because they are similar to a held-out prompt.
    """

    train: pa.Table
    heldout: pa.Table
    counts: list[dict[str, Any]]
    set_aside: pa.Table


def mix(graded: pa.Table, spec: MixtureSpec) -> Mixed:
    """Split `graded` as specified by `spec`. Equal inputs give equal tables, regardless of the order of the rows.

    The rows of both are in temporary files (`tasks.tables.parquet.mapped`).

    Args:
        graded: table of `GRADED`.
        spec: the mixture.

    Raises:
        SpecError: `graded` cannot fill a share.
        TableError: a prompt has several rows.
    """
    graded = validate(graded, add_user_columns(GRADED, graded.schema), "graded prompts")
    chosen = choose(graded, spec, "graded prompts")
    return Mixed(
        train=_train_table(graded, chosen.train, spec.seed),
        heldout=mapped(take_rows(graded, join_rows(chosen.heldout)), graded.schema),
        counts=_list_counts(chosen),
        set_aside=_set_aside(graded, chosen.like_heldout),
    )


def check(prompts: pa.Table, spec: MixtureSpec) -> None:
    """Raise `SpecError` if even all of `prompts`, before any is filtered out, could not fill the mixture.

    Args:
        prompts: table of `PROMPTS`.
        spec: the mixture.
    """
    choose(validate(prompts, PROMPTS, "prompts"), spec, "prompts")


def left_over(mixed: Mixed) -> dict[str, int]:
    """Return the number of prompts that are neither trained on nor held out, for each source that has any.

    The shares of the mixture leave them over. Prompts that are similar to held-out ones are not counted.
    """
    left: Counter[str] = Counter()
    for row in mixed.counts:
        left[row["source"]] += row["available"] - row["heldout"] - row["prompts"]
    left.subtract(mixed.set_aside.column("source").to_pylist())
    return {source: number for source, number in left.most_common() if number}


def _list_counts(chosen: Chosen) -> list[dict[str, Any]]:
    """Return the rows of `Mixed.counts`."""
    taken = {member.path: count for member, count in chosen.train}
    counts = []
    for domain, sources in chosen.all.items():
        for source in sources:
            available, heldout, rest = (
                _count_by_stratum(rows[domain][source], chosen.strata)
                for rows in (chosen.all, chosen.heldout, chosen.rest)
            )
            for stratum, count in available.items():
                path = (domain, source) if stratum is None else (domain, source, stratum)
                entries = taken.get(path, 0)
                counts.append(
                    {
                        "domain": domain,
                        "source": source,
                        "stratum": stratum,
                        "available": count,
                        "heldout": heldout.get(stratum, 0),
                        "prompts": min(entries, rest.get(stratum, 0)),
                        "taken": entries,
                    }
                )
    return counts


def _count_by_stratum(rows: Rows, strata: Mapping[int, str]) -> dict[str | None, int]:
    """Return the number of a source's rows in each stratum. The key is None for a source without strata."""
    return Counter(map(strata.get, rows.tolist())) if len(rows) and int(rows[0]) in strata else {None: len(rows)}


def _set_aside(graded: pa.Table, like_heldout: dict[int, int]) -> pa.Table:
    ids, reason = graded.column("prompt_id"), "like a prompt that is held out"
    numbers = sorted(like_heldout)
    rows = chain.from_iterable(part.to_pylist() for part in take_rows(graded, np.array(numbers, np.int64)))
    return build_table(
        (
            set_aside_prompt("mixing", "near_duplicate", row, reason, clashed_with=ids[like_heldout[number]].as_py())
            for number, row in zip(numbers, rows, strict=True)
        ),
        SET_ASIDE,
        "prompts like held-out ones",
    )


def _train_table(graded: pa.Table, train: list[tuple[Member, int]], seed: int) -> pa.Table:
    """Return the training rows, with each member distributed evenly over the order from a seeded start."""
    spread = []
    for member, count in sorted(train, key=lambda entry: entry[0].path):
        key = ":".join([str(seed), *member.path])
        start = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8]) / 2**64
        spread.append(member.spread(count, start))
    positions, rows, repeats = (np.concatenate(column) for column in zip(*spread, strict=True))
    # A stable sort keeps members at the same position in the order of their paths.
    order = np.argsort(positions, kind="stable")
    columns = add_user_columns(MIXTURE, graded.schema)
    return mapped(_make_training_parts(graded, rows[order], repeats[order], columns), columns)


def _make_training_parts(graded: pa.Table, rows: Rows, repeats: Rows, columns: pa.Schema) -> Iterator[pa.Table]:
    """Yield parts of the training rows: the `rows` of `graded` in the order of training, with their `repeats`."""
    start = 0
    for part in take_rows(graded, rows):
        order = np.arange(start, start + part.num_rows)
        repeated = part.append_column("repeat", pa.array(repeats[order], pa.int32()))
        yield validate(repeated.append_column("order", pa.array(order)), columns, "mixture")
        start += part.num_rows
