"""Computes content digests of tables and model folders. A stored digest is used instead of reading the data.

    a table         its rows' digest is in its footer          one read of the footer
    a model folder  its files' digests are in `sha256.json`    one listing, and that file
    anything else   has none                                   all of it is read

A stored digest is called a claim, and only the writers of this project store one. A table's claim includes the number
of bytes of its pages. A file with another number was written by another program that copied the entries of the table's
footer, and is treated as a file without a claim. The pages of a local table are compared with the claim when it is read
(`tasks.tables.parquet.read_table`), and again after the file has changed. A folder's claim is compared with the names
and sizes of its files, and with the content of the files once per process if the folder is on this machine.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq
from fsspec import AbstractFileSystem

from tasks.failures import MistakeError
from tasks.tables.row_groups import split_row_groups

CLAIM = "content"
"""The entry of a table's footer with the digest of its columns' names and pages, and the number of the pages' bytes."""
MANIFEST = "sha256.json"
"""The file in a folder with the size in bytes and the SHA-256 of each other file, by path."""
CARD = "README.md"
"""The file in a folder that is only for human readers and not included in the digest."""
MAGIC = b"PAR1"
"""The first bytes of a Parquet file."""
SETTLED = 0.1
"""Seconds without a write after which a file's digest is kept for the next time: ten ticks of a file system's clock."""
_BLOCK = 1 << 20
_OTHER_FILES = f"{MANIFEST} was written for other files; delete it to use them as they are"


class ContentError(MistakeError):
    """The content of a file or folder does not match its digest. The message names it and the remedy."""


def write_parquet(
    path: Path,
    tables: Iterable[pa.Table],
    schema: pa.Schema,
    last: Callable[[], dict[str, str]] = dict,
) -> None:
    """Write `tables`, one after the other, to one Parquet file whose footer contains the digest of its content.

    Equal rows give equal bytes, and therefore an equal digest.

    The row groups of the file (`tasks.tables.row_groups`) do not depend on how the rows are divided into `tables`. One
    row group is in memory at a time. The digest covers the names and pages of the columns but not the metadata of the
    schema, so that it does not depend on the table's provenance. `last` is called for further entries of the metadata
    after all rows are written.
    """
    with pa.OSFile(str(path), "wb") as sink, pq.ParquetWriter(sink, schema, compression="zstd") as writer:
        for group in split_row_groups(tables, schema):
            writer.write_table(group.combine_chunks())
        size = sink.tell()  # the footer is written at the end of the block
        claim = {"bytes": size, "sha256": _compute_pages_digest(str(path), size, tuple(schema.names))}
        writer.add_key_value_metadata({**last(), CLAIM: json.dumps(claim, sort_keys=True)})


def check_pages(path: Path) -> str | None:
    """Compare the pages of a table with its claimed digest, and return the digest, or None if it claims none.

    Raises:
        ContentError: the footer cannot be read, or the pages do not match the digest in it.
    """
    with path.open("rb") as file:
        claim = _read_claim(file, str(path))
        if claim is None:
            return None
        names = pq.read_schema(file).names
    if _read_pages_digest(str(path), claim["bytes"], tuple(names), *_read_state(path)) != claim["sha256"]:
        raise ContentError(
            f"{path}: its rows are not those that the digest in its footer was made for: the file is damaged, or was "
            f"changed by a program that kept the entry {CLAIM!r} of its metadata; write it without that entry"
        )
    return claim["sha256"]


def file_digest(path: str | Path) -> str:
    """Return the digest of a file or folder on this machine: 64 hex digits.

    It is equal for equal tables regardless of their provenance, for other files with equal bytes, and for folders with
    equal files at equal paths.

    Raises:
        ContentError: the pages of a table do not match its digest, or the files of a folder do not match its manifest.
    """
    path = Path(path)
    if path.is_dir():
        entries = _list_entries(path)
        if (path / MANIFEST).is_file() and _parse_manifest((path / MANIFEST).read_bytes(), str(path)) != entries:
            raise ContentError(f"{path}: {_OTHER_FILES}")
        return _compute_folder_digest(entries)
    return check_table(path) or compute_sha256(path)


def check_table(path: Path) -> str | None:
    """Check a file and return its digest as `check_pages` does, or None if it is not a table.

    Raises:
        ContentError: as `check_pages` raises it.
    """
    return check_pages(path) if _is_table(path) else None


def read_claimed_digest(files: AbstractFileSystem, address: str) -> str | None:
    """Return the claimed digest of a remote file or folder (equal to `file_digest`), or None if it claims none.

    Raises:
        ContentError: a claim is malformed, or the files of a folder do not match it.
    """
    if files.isdir(address):
        return _read_folder_claim(files, address)
    if files.cat_file(address, start=0, end=len(MAGIC)) != MAGIC:
        return None
    with files.open(address, "rb", cache_type="none") as file:
        claim = _read_claim(file, address)
    return claim["sha256"] if claim else None


def seal(folder: Path) -> Path:
    """Write the manifest of a complete folder, replacing an earlier one, and return the folder."""
    (folder / MANIFEST).unlink(missing_ok=True)
    (folder / MANIFEST).write_text(json.dumps(_list_entries(folder), indent=1, sort_keys=True) + "\n")
    return folder


def _read_claim(file: BinaryIO, where: str) -> dict[str, Any] | None:
    try:
        metadata = pq.read_metadata(file)
    except (pa.ArrowInvalid, OSError) as error:
        raise ContentError(f"{where}: not a readable Parquet file: {error}") from None
    entry = (metadata.metadata or {}).get(CLAIM.encode())
    if entry is None:
        return None
    claim = _parse(entry, f"{where}: the entry {CLAIM!r} of the footer")
    if not isinstance(claim, dict) or set(claim) != {"bytes", "sha256"}:
        raise ContentError(f"{where}: the entry {CLAIM!r} of the footer is not one of this project")
    trailer = 4 + len(MAGIC)
    pages = file.seek(0, 2) - trailer - metadata.serialized_size
    return claim if claim["bytes"] == pages else None


@lru_cache(maxsize=4096)
def _read_pages_digest(path: str, size: int, names: tuple[str, ...], *_state: int) -> str:
    """Return the digest of a table's pages (`_compute_pages_digest`). An unchanged file is read only once."""
    return _compute_pages_digest(path, size, names)


def _compute_pages_digest(path: str, size: int, names: tuple[str, ...]) -> str:
    digest = hashlib.sha256(json.dumps(names).encode())
    with open(path, "rb") as file:
        while block := file.read(min(_BLOCK, size)):
            digest.update(block)
            size -= len(block)
    return digest.hexdigest()


def _is_table(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def _read_folder_claim(files: AbstractFileSystem, address: str) -> str | None:
    below = {str(name): info["size"] for name, info in files.find(address, detail=True).items()}
    root = files._strip_protocol(address).rstrip("/") + "/"
    sizes = {name.removeprefix(root): size for name, size in below.items()}
    if sizes.pop(MANIFEST, None) is None:
        return None
    sizes.pop(CARD, None)
    manifest = _parse_manifest(files.cat_file(f"{root}{MANIFEST}"), address)
    if {name: entry["bytes"] for name, entry in manifest.items()} != sizes:
        raise ContentError(f"{address}: {_OTHER_FILES}")
    return _compute_folder_digest(manifest)


def _list_entries(folder: Path) -> dict[str, dict[str, Any]]:
    left_out = (folder / MANIFEST, folder / CARD)
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path not in left_out)
    return {
        path.relative_to(folder).as_posix(): {"bytes": path.stat().st_size, "sha256": compute_sha256(path)}
        for path in files
    }


def _compute_folder_digest(entries: dict[str, dict[str, Any]]) -> str:
    return hashlib.sha256(json.dumps(entries, sort_keys=True).encode()).hexdigest()


def _parse_manifest(text: bytes, folder: str) -> dict[str, dict[str, Any]]:
    manifest = _parse(text, f"{folder}: {MANIFEST}")
    entries = manifest.values() if isinstance(manifest, dict) else [None]
    if not all(isinstance(entry, dict) and set(entry) == {"bytes", "sha256"} for entry in entries):
        raise ContentError(f"{folder}: {MANIFEST} is not one of this project; delete it, or give the file another name")
    return manifest


def _parse(text: bytes, where: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ContentError(f"{where} is not JSON: {error}") from None


def compute_sha256(path: Path) -> str:
    """Return the SHA-256 of a file's bytes. An unchanged file is read once per process."""
    return _read_sha256(str(path), *_read_state(path))


@lru_cache(maxsize=4096)
def _read_sha256(path: str, *_state: int) -> str:
    """Return the SHA-256 of a file in this state. Weights of many gigabytes are read once per process."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read_state(path: Path) -> tuple[int, ...]:
    """Return numbers that change if the file's content may have changed."""
    file = path.stat()
    # Two writes within a tick of the file system's clock give a file the same times, so a new file equals nothing yet.
    just_now = time.time() - file.st_ctime < SETTLED
    return file.st_ino, file.st_size, file.st_mtime_ns, file.st_ctime_ns, time.monotonic_ns() if just_now else 0
