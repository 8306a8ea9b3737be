"""Uploads the files that specifications name at launch, because pods cannot access the user's machine.

rows, data of win rates, certificates   a copy in storage; the option becomes a `SentFile` with address and SHA-256
folders                                 refused, unless the code that is sent contains them
addresses, paths below RLVR_MOUNTED     stay as they are
absolute paths that are not here        stay as they are: a pod may have them
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, NoReturn

from tasks.config.fields import PathMark, replace_files
from tasks.config.loading import SpecError
from tasks.flyte.uploads import upload
from tasks.sourcing.files import find_files, get_endings
from tasks.storage.sent_files import SentFile
from tasks.tables.content_digest import compute_sha256

MOST_MB = 1000
"""Maximum total size of the files of a launch, megabytes."""
MOUNTED = "RLVR_MOUNTED"
"""Environment variable with the folders that pods mount at the same paths as this machine, separated by colons."""
SHOWN = 3
"""Maximum number of files named in the error message."""


def with_sent_files(
    remote: Any, inputs: Mapping[str, Any], carried: Collection[Path] = (), say: Callable[[str], Any] = print
) -> dict[str, Any]:
    """Upload the user's files, and return the inputs of the launch with the copies in storage instead.

    Nothing is uploaded before all files are known to exist and to be small enough. Files that are already in storage
    are not uploaded again.

    Args:
        remote: flytekit's client of the backend.
        inputs: inputs by name, some of which are specifications.
        carried: resolved paths of the files that are sent with the code, by their paths below the working directory.
        say: called with a line for the user about each file.

    Raises:
        SpecError: a file does not exist, a folder would be missing in pods, or the files are too large together.
        BackendError: as `upload` raises it.
    """
    here: dict[str, list[Path]] = {}

    def find(where: str, mark: PathMark, value: Any) -> Any:
        for path in _list_items(value):
            if not isinstance(path, str):  # a copy
                continue
            if mark.names == "folder":
                _check_folder(where, mark, path, carried)
            elif (files := _find_files(where, mark, path)) is not None:
                here[path] = files
        return value

    def replace(_: str, mark: PathMark, value: Any) -> Any:
        if mark.names == "folder":
            return value
        changed: list[Any] = []
        for path in _list_items(value):
            changed += [_make_sent_file(path, file, addresses[file]) for file in here[path]] if path in here else [path]
        return changed if isinstance(value, list) or len(changed) > 1 else changed[0]

    for value in inputs.values():
        replace_files(value, find)
    files = list(dict.fromkeys(file for listed in here.values() for file in listed))
    _check_size(files)
    addresses = {file: _send(remote, file, say) for file in files}
    return {name: replace_files(value, replace) for name, value in inputs.items()}


def _list_items(value: Any) -> list[Any]:
    """Return the items of an option that may be a list or a single item."""
    return value if isinstance(value, list) else [value]


def _find_files(where: str, mark: PathMark, path: str) -> list[Path] | None:
    """Return the files of a path, or of a glob if the option may have one, or None if the path may exist in pods."""
    if "://" in path or _is_mounted(path):
        return None
    try:
        if mark.names == "file" and not Path(path).expanduser().is_file():
            raise SpecError(f"{where} = {path!r}: no such file")
        return [Path(file.path) for file in find_files(path, where)]
    except SpecError:
        if Path(path).expanduser().is_absolute():
            return None
        raise


def _check_folder(where: str, mark: PathMark, path: str, carried: Collection[Path]) -> None:
    folder = Path(path).expanduser()
    if "://" in path or not mark.is_path(path, Path()) or _is_mounted(path):
        return
    if not folder.is_dir():
        if folder.is_absolute():
            return
        raise SpecError(f"{where} = {path!r}: no such folder")
    files = {file.resolve() for file in folder.rglob("*") if file.is_file() and file.parent.name != "__pycache__"}
    if not folder.is_absolute() and files and files <= set(carried):
        return
    _refuse_folder(where, path)


def _refuse_folder(where: str, path: str) -> NoReturn:
    address = f"s3://BUCKET/{Path(path).name}"
    command = f"aws s3 cp --recursive {shlex.quote(path)} {address}"
    ways = {
        "source.path": f"put it into storage ({command}) and give source: {{kind: stored, address: {address}}}",
        "judge.model": "push it to the hub and give its id and revision, or serve it and give the url",
        "model": "push it to the hub and give its id and revision",
        "include_path": "move it below the working directory and launch with rlvr run --remote",
    }
    way = next((way for option, way in ways.items() if f".{where}".endswith(f".{option}")), "put it into storage")
    raise SpecError(
        f"{where} = {path!r}: a folder of this machine, which pods do not see, and only files are sent: {way}; if pods "
        f"mount it at this path, name it or a folder above it in {MOUNTED}"
    )


def _is_mounted(path: str) -> bool:
    absolute = Path(os.path.abspath(os.path.expanduser(path)))
    return any(absolute.is_relative_to(folder) for folder in os.environ.get(MOUNTED, "").split(":") if folder)


def _make_sent_file(named: str, file: Path, address: str) -> SentFile:
    named = os.path.abspath(os.path.expanduser(named))
    return SentFile(named=named, path=str(file), address=address, sha256=compute_sha256(file))


def _check_size(files: list[Path]) -> None:
    sizes = {file: file.stat().st_size for file in files}
    if (total := sum(sizes.values())) > MOST_MB * 1e6:
        largest = sorted(sizes, key=lambda file: -sizes[file])[:SHOWN]
        named = ", ".join(f"{file} ({sizes[file] / 1e6:,.1f} MB)" for file in largest)
        command = f"aws s3 cp {shlex.quote(str(largest[0]))} s3://BUCKET/"
        raise SpecError(
            f"the files of this launch are {total / 1e6:,.1f} MB, and at most {MOST_MB:,} are sent; the largest are "
            f"{named}: put them into storage ({command}) and give their addresses; if pods mount them at these paths, "
            f"name a folder above them in {MOUNTED}"
        )


def _send(remote: Any, file: Path, say: Callable[[str], Any]) -> str:
    _, address, was_sent = upload(remote, file, f"{compute_sha256(file)}{get_endings(file.name)}")
    size = file.stat().st_size
    amount = f"{size / 1e6:,.1f} MB" if size >= 1e6 else f"{size / 1e3:,.1f} kB"
    say(f"{'sent' if was_sent else 'in storage':<11} {os.path.relpath(file)} ({amount})")
    return address
