"""Opens the user's files and folders on blob storage, such as the rows of a source, and identifies their content.

Credentials in flytekit's configuration, which Flyte uses to read and write outputs, are tried first, and then the
credentials in the environment. The rows may be in the same storage as the outputs, or in another one.
"""

from __future__ import annotations

import hashlib
import json
import pkgutil
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import fsspec

from tasks.failures import MistakeError, list_causes, list_class_names, one_line
from tasks.storage.access import OTHERS, answer, is_refusal

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

CONFIGURED = "tasks.flyte.storage_options:configured"
"""Name of the function that returns flytekit's storage options, as text because this package must not import it."""

S3 = "AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY"
AZURE = "AZURE_STORAGE_ACCOUNT_NAME, AZURE_STORAGE_ACCOUNT_KEY"
VARIABLES = {
    "s3": ("FLYTE_AWS_ENDPOINT, FLYTE_AWS_ACCESS_KEY_ID, FLYTE_AWS_SECRET_ACCESS_KEY", S3),
    "abfs": ("FLYTE_AZURE_STORAGE_ACCOUNT_NAME, FLYTE_AZURE_STORAGE_ACCOUNT_KEY", AZURE),
    "abfss": ("FLYTE_AZURE_STORAGE_ACCOUNT_NAME, FLYTE_AZURE_STORAGE_ACCOUNT_KEY", AZURE),
    "gs": ("", "GOOGLE_APPLICATION_CREDENTIALS"),
}
"""Variables with credentials, by protocol of the addresses: flytekit's variables, and the general ones."""


class AddressRefusedError(MistakeError):
    """A storage refuses access to an address. The message names the variables with its credentials."""


CHECKSUMS = ("ETag", "etag", "blob_id", "md5Hash", "content_md5")
"""Keys of the checksum in fsspec's information about a file: S3, Azure and HTTP, the hub, GCS."""

VALIDATORS = (
    *("Last-Modified", "LastModified", "last_modified", "modified", "mtime", "modify", "updated", "modificationTime"),
    *("Digest", "Content-MD5", "sha", "version_id", "VersionId", "generation"),
)
"""Keys of other values there that change with the content: HTTP, S3, Azure, Dropbox, SFTP, FTP, GCS, HDFS, GitHub."""


def read_checksum(filesystem: AbstractFileSystem, path: str) -> str:
    """Return the checksum of a file that a file system reports, or another value that changes with its content.

    A checksum is preferred, because the other reported values depend on earlier requests to the file system. If
    neither a checksum nor a time or version is reported (by some HTTP servers), the file is read, because its size may
    stay the same when its content changes.
    """
    about = filesystem.info(path)
    if checksum := next((about[name] for name in CHECKSUMS if about.get(name)), None):
        return str(checksum)
    if any(about.get(name) for name in VALIDATORS):
        return str(filesystem.checksum(path))
    return content_sha256(filesystem, path)


def content_sha256(filesystem: AbstractFileSystem, path: str) -> str:
    """Read a file on a file system, and return the SHA-256 of its content as hex digits."""
    digest = hashlib.sha256()
    with filesystem.open(path, "rb") as file:  # a stream of unknown length has no `readinto`, which `file_digest` needs
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def read_digest(filesystem: AbstractFileSystem, files: Mapping[str, str]) -> str:
    """Return a digest of files from the checksums that the storage reports, without a download.

    Args:
        filesystem: file system of the files.
        files: paths of the files, by the names that are included in the digest.
    """
    reported = [(name, read_checksum(filesystem, path)) for name, path in sorted(files.items())]
    return hashlib.sha256(json.dumps(reported).encode()).hexdigest()


def convert_refused_credentials(error: BaseException) -> AddressRefusedError | None:
    """Return an error for storage whose credentials are missing or invalid, or None if `error` has no such cause."""
    cause = next((cause for cause in list_causes(error) if list_class_names(cause) & OTHERS), None)
    if cause is None:
        return None
    variables = "; ".join(f"{protocol}: {', '.join(filter(None, names))}" for protocol, names in VARIABLES.items())
    return AddressRefusedError(f"blob storage cannot be read: {one_line(cause)}; its credentials: {variables}")


def is_credentialed(address: str) -> bool:
    """Return whether an address is on blob storage that needs credentials."""
    protocol, separator, _ = address.partition("://")
    return bool(separator) and protocol in VARIABLES


def open_address(address: str) -> tuple[AbstractFileSystem, str]:
    """Return the file system of an address or a local path, and the path in it.

    If a storage needs credentials, all known ones are tried. The first file system that finds the address is returned,
    or else the first that reports that it does not exist. An address may be a glob.

    Raises:
        AddressRefusedError: the storage refuses access with all known credentials.
        ValueError, ImportError: fsspec cannot open the address.
    """
    protocol = address.partition("://")[0]
    if not is_credentialed(address):
        return fsspec.url_to_fs(address)
    without, refusal = None, None
    for options in _list_options(protocol):
        filesystem, path = fsspec.url_to_fs(address, **options)
        try:
            filesystem.info(_find_glob_folder(path))
        except FileNotFoundError:
            without = without or (filesystem, path)
        except Exception as error:  # fsspec's file systems have no common error type
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


def _list_options(protocol: str) -> Iterator[dict[str, Any]]:
    if options := pkgutil.resolve_name(CONFIGURED)(protocol):
        yield options
    yield {}


def _find_glob_folder(path: str) -> str:
    """Return the part of a glob before its first pattern, which is a folder. A path without patterns is unchanged."""
    parts = path.split("/")
    marked = [number for number, part in enumerate(parts) if set(part) & set("*?[")]
    return "/".join(parts[: marked[0]]) if marked else path
