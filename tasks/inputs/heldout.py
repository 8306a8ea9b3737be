"""Refuses a mixture that holds out every prompt, if the sizes of the sources are known before they are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tasks.config.loading import SpecError
from tasks.inputs.files import DataFile
from tasks.sourcing.loaders import PEEK, Row
from tasks.sourcing.spec import SourceSpec


def check_heldout(data: DataFile, first_rows: Mapping[str, Sequence[Row]]) -> None:
    """Check that at least one domain can have more prompts than are held out of it.

    This is assumed if a source's size is unknown, or if a fraction is held out. Cleaning and difficulty can still leave
    fewer prompts than are held out. The mixing stage refuses these.

    Args:
        data: the data file.
        first_rows: the first rows of each source that is read, by its name.

    Raises:
        SpecError: in every domain, all prompts that its sources can have would be held out.
    """
    most = {source.name: find_most_prompts(source, first_rows[source.name]) for source in data.used_sources}
    shares = {str(name): share.heldout for name, share in data.mixture.domains.items()}
    taken = []
    for domain in sorted({name for source in data.used_sources for name in source.domains}):
        share = shares.get(domain)
        heldout = data.mixture.heldout if share is None else share
        sizes = [most[source.name] for source in data.used_sources if domain in source.domains]
        available = sum(size for size in sizes if size is not None)
        if isinstance(heldout, float) or None in sizes or heldout < available:
            return
        taken.append(f"heldout of domain {domain!r} is {heldout}, and its sources have at most {available} prompts")
    raise SpecError(f"{data.name}: mixture: no prompt is left to train on: all are held out: {'; '.join(taken)}")


def find_most_prompts(source: SourceSpec, first_rows: Sequence[Row]) -> int | None:
    """Return the maximum number of prompts of a source, or None if it is unknown before the source is read.

    Args:
        source: the source.
        first_rows: its first rows, as `loaders.check` returns them. If there are fewer than `PEEK`, these are all rows.
    """
    bounds = [source.limit]
    if source.transform is None:  # a transform may turn one row into several
        bounds.append(getattr(source.loader, "size", None))
    if not source.where and len(first_rows) < PEEK:
        bounds.append(len(first_rows))
    return min((bound for bound in bounds if bound is not None), default=None)
