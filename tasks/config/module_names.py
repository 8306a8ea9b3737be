"""Finds the user's modules that lie in the folder of the file that names them.

A file in `mine/` names a function of `mine/rewards.py` as `rewards.length`, as it names `mine/rows.jsonl` as
`rows.jsonl`. The name is changed to the one seen from the working directory, `mine.rewards.length`: processes and pods
import from there, and the working directory is what is sent to a cluster.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path


def resolve_module_name(name: str, folder: Path) -> str:
    """Return an import path in a file of `folder` as seen from the working directory.

    A name whose module is not in `folder` is unchanged: it is in the working directory or on the Python path.

    Raises:
        ValueError: the module is in `folder`, but Python cannot import from there.
    """
    first = name.partition(".")[0]
    here, own = Path.cwd().resolve(), folder.resolve()
    if "." not in name or not first.isidentifier() or own == here or not _has_module(own, first):
        return name
    parts = own.relative_to(here).parts if own.is_relative_to(here) else None
    if parts is not None and all(part.isidentifier() for part in parts):
        return ".".join((*parts, name))
    if _has_module(here, first) or importlib.util.find_spec(first) is not None:
        return name
    if parts is None:
        raise ValueError(
            f"{name!r}: {folder} contains {first}, but code is imported from the working directory and the folders "
            f"below it, which are what a cluster gets: run the command in {own}, or in a folder above it"
        )
    odd = next(part for part in parts if not part.isidentifier())
    raise ValueError(
        f"{name!r}: {folder} contains {first}, but Python cannot import from a folder called {odd!r}: rename it, with "
        "letters, digits and _ only"
    )


def _has_module(folder: Path, name: str) -> bool:
    return (folder / f"{name}.py").is_file() or any((folder / name).glob("*.py"))
