"""Opens files and folders of the user's on blob storage, such as the rows of a source, and identifies their content.

Flytekit's configuration of a storage comes first, by which Flyte reads and writes outputs, then the environment's: the
rows may lie in the same storage, or in another one.
"""

from __future__ import annotations

import hashlib
import json
import pkgutil
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import fsspec

from tasks.failures import MistakeError
from tasks.storage.access import answer, is_refusal

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

CONFIGURED = "tasks.flyte.storage_options:configured"
"""Name of the function that returns flytekit's options of a storage; this package does not import `tasks.flyte`."""

S3 = "AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY"
AZURE = "AZURE_STORAGE_ACCOUNT_NAME, AZURE_STORAGE_ACCOUNT_KEY"
VARIABLES = {
    "s3": ("FLYTE_AWS_ENDPOINT, FLYTE_AWS_ACCESS_KEY_ID, FLYTE_AWS_SECRET_ACCESS_KEY", S3),
    "abfs": ("FLYTE_AZURE_STORAGE_ACCOUNT_NAME, FLYTE_AZURE_STORAGE_ACCOUNT_KEY", AZURE),
    "abfss": ("FLYTE_AZURE_STORAGE_ACCOUNT_NAME, FLYTE_AZURE_STORAGE_ACCOUNT_KEY", AZURE),
    "gs": ("", "GOOGLE_APPLICATION_CREDENTIALS"),
}
"""Variables with the credentials of a storage, by the protocol of its addresses: flytekit's, and the environment's."""


class AddressRefusedError(MistakeError):
    """A storage refuses to show what is at an address; the message has the variables with its credentials."""


CHECKSUMS = ("ETag", "etag", "blob_id", "md5Hash", "content_md5")
"""Names under which fsspec's file systems report a checksum of a file's content: S3, Azure and HTTP, the hub, GCS."""


def reported_checksum(filesystem: AbstractFileSystem, path: str) -> str:
    """Return what a file system reports of a file's content: a checksum, or what changes with the content.

    A checksum comes first, because what else is reported depends on what the file system was asked before.
    """
    about = filesystem.info(path)
    checksum = next((about[name] for name in CHECKSUMS if about.get(name)), None)
    return str(checksum or filesystem.checksum(path))


def reported_digest(filesystem: AbstractFileSystem, files: Mapping[str, str]) -> str:
    """Return a digest of files by what the storage reports; nothing is downloaded.

    Args:
        filesystem: of the files.
        files: paths by the names that count.
    """
    reported = [(name, reported_checksum(filesystem, path)) for name, path in sorted(files.items())]
    return hashlib.sha256(json.dumps(reported).encode()).hexdigest()


def open_address(address: str) -> tuple[AbstractFileSystem, str]:
    """Return the file system of an address, or of a local path, and the path there.

    Of a storage with credentials it is one that shows what is at the address; if none does, one that shows that nothing
    is there. An address may be a glob.

    Raises:
        AddressRefusedError: the storage refuses, with all credentials that are known here.
        ValueError, ImportError: it is no address that fsspec can open.
    """
    protocol = address.partition("://")[0]
    if "://" not in address or protocol not in VARIABLES:
        return fsspec.url_to_fs(address)
    without, refusal = None, None
    for options in _all_options(protocol):
        filesystem, path = fsspec.url_to_fs(address, **options)
        try:
            filesystem.info(_folder_of_glob(path))
        except FileNotFoundError:
            without = without or (filesystem, path)
        except Exception as error:  # fsspec's file systems share no kind of error
            if not is_refusal(error):
                raise
            refusal = error
        else:
            return filesystem, path
    if without is not None:
        return without
    assert refusal is not None
    configured, environment = VARIABLES[protocol]
    tried = f"with flytekit's configuration ({configured}, or storage of --config) and " if configured else ""
    raise AddressRefusedError(
        f"{address} cannot be read: {answer(refusal)}; tried {tried}with the environment's credentials ({environment})"
    )


def _all_options(protocol: str) -> Iterator[dict[str, Any]]:
    if options := pkgutil.resolve_name(CONFIGURED)(protocol):
        yield options
    yield {}


def _folder_of_glob(path: str) -> str:
    """Return the part of a pattern that names one folder, or a path that is none as it is."""
    parts = path.split("/")
    marked = [number for number, part in enumerate(parts) if set(part) & set("*?[")]
    return "/".join(parts[: marked[0]]) if marked else path
