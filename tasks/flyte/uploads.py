"""Send files to the storage of a backend, through links that it signs; what is there already is not sent again."""

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
"""Seconds without a byte after which a transfer fails."""


def upload(
    remote: FlyteRemote,
    path: Path,
    name: str,
    project: str | None = None,
    domain: str | None = None,
    root: str | None = None,
) -> tuple[bytes, str, bool]:
    """Send a file, and return its MD5, its address, and whether it had to be sent.

    Args:
        remote: the client of the backend.
        path: the file, which need not be writable.
        name: the name of the copy.
        project: Flyte's project, or None for that of the client.
        domain: Flyte's domain, or None for that of the client.
        root: the folder of the copy. By default the backend names it by the MD5, so that equal files have one address.

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
        raise backend.storage_error(location.signed_url, f"refuses it with HTTP status {answer.status_code}")
    return digest, location.native_url, True


def sent_once(upload_file: Callable[..., Any]) -> Callable[..., Any]:
    """Replace flytekit's `FlyteRemote.upload_file`, which wants to write to the file, and always sends it."""

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
    """Return whether a whole file is at an address. A backend that cannot tell says that it is not."""
    import grpc
    import requests
    from flytekit.exceptions.base import FlyteException

    try:
        link = remote.client.get_download_signed_url(address).signed_url
        with requests.get(link, stream=True, verify=verify, timeout=TIMEOUT) as answer:
            return answer.status_code == requests.codes["ok"] and answer.headers.get("Content-Length") == str(size)
    except (requests.exceptions.RequestException, FlyteException, grpc.RpcError):
        return False
