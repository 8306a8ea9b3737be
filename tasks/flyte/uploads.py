"""Uploads files to the storage of a backend with signed links. Files that are already there are not uploaded again."""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.flyte import backend

if TYPE_CHECKING:
    from flytekit.remote import FlyteRemote

TIMEOUT = 60.0
"""Timeout of a transfer without any data, seconds."""


def upload(
    remote: FlyteRemote,
    path: Path,
    name: str,
    project: str | None = None,
    domain: str | None = None,
    root: str | None = None,
) -> tuple[bytes, str, bool]:
    """Upload a file, and return its MD5, its address, and whether it had to be uploaded.

    Args:
        remote: the client of the backend.
        path: the file, which need not be writable.
        name: the name of the copy.
        project: Flyte project. If None, the client's project.
        domain: Flyte domain. If None, the client's domain.
        root: the folder of the copy. By default, the backend names it after the MD5, so that equal files have the same
            address.

    Raises:
        BackendError: the backend or its storage does not answer, or refuses the file.
    """
    import requests

    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "md5").digest()
    size, platform = path.stat().st_size, remote.config.platform
    verify = False if platform.insecure_skip_verify else platform.ca_cert_file_path
    try:
        location = remote.client.get_upload_signed_url(
            project=project or remote.default_project,
            domain=domain or remote.default_domain,
            content_md5=digest,
            filename=name,
            filename_root=root,
        )
        if root is None and _is_there(remote, location.native_url, size, verify):
            return digest, location.native_url, False
        headers = {
            "Content-Length": str(size),
            "Content-MD5": b64encode(digest).decode(),
            **remote.get_extra_headers_for_protocol(location.native_url),
            **location.headers,
        }
        with path.open("rb") as file:
            # An empty file object would be sent in chunks, which storage refuses.
            answer = requests.put(
                location.signed_url, data=file if size else b"", headers=headers, verify=verify, timeout=TIMEOUT
            )
    except Exception as error:
        raise backend.upload_error(error) or error from error
    if answer.status_code not in (requests.codes["ok"], requests.codes["created"]):  # Azure answers 201
        raise backend.make_storage_error(location.signed_url, f"refuses it with HTTP status {answer.status_code}")
    return digest, location.native_url, True


def upload_once(upload_file: Callable[..., Any]) -> Callable[..., Any]:
    """Patch flytekit's `FlyteRemote.upload_file`, which opens the file for writing and always uploads it."""

    @wraps(upload_file)
    def send(
        remote: FlyteRemote,
        to_upload: Path,
        project: str | None = None,
        domain: str | None = None,
        filename_root: str | None = None,
    ) -> tuple[bytes, str]:
        return upload(remote, to_upload, to_upload.name, project, domain, filename_root)[:2]

    return send


def _is_there(remote: FlyteRemote, address: str, size: int, verify: bool | str | None) -> bool:
    """Return whether a file of `size` bytes is at `address`; if the backend cannot tell, False. Its content is not
    compared. `verify` is the option of `requests` for TLS certificates.
    """
    import grpc
    import requests
    from flytekit.exceptions.base import FlyteException

    try:
        link = remote.client.get_download_signed_url(address).signed_url
        with requests.get(link, stream=True, verify=verify, timeout=TIMEOUT) as answer:
            return answer.status_code == requests.codes["ok"] and answer.headers.get("Content-Length") == str(size)
    except (requests.exceptions.RequestException, FlyteException, grpc.RpcError):
        return False
