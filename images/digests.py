"""Pins the base images of a Dockerfile by digest: `python -m images.digests FILE`, which `make image-digests` runs.

Each line `FROM image:tag` becomes `FROM image:tag@sha256:...`, with the digest that the image's registry currently
returns for the tag (the manifest endpoint of the OCI distribution specification, sections "Pulling manifests" and
"Checking if content exists in the registry"). If a line already has a digest, the digest of its tag is fetched again.
"""

from __future__ import annotations

import json
import re
import sys
import urllib.error
import urllib.parse
import urllib.request
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path

BASE = re.compile(r"^(FROM )(\S+?):([\w.-]+)(@sha256:[0-9a-f]{64})?(?=\s)", re.MULTILINE)
"""The line of a base image: its repository, its tag, and its digest if it has one. Other build stages have no tag."""
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
DOCKER_HUB = "registry-1.docker.io"
MANIFESTS = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
"""Accepted media types: a multi-platform index, or else the manifest of one platform."""
TIMEOUT = 20
"""Timeout of a registry request, seconds."""


def registry_and_name(repository: str) -> tuple[str, str]:
    """Return the host of an image's registry, and the image's name there.

    The first part of a repository is a host if it has a dot or a port. Otherwise the registry is Docker Hub, whose own
    images are in `library/`.
    """
    first, _, rest = repository.partition("/")
    if rest and ("." in first or ":" in first or first == "localhost"):
        return first, rest
    return DOCKER_HUB, repository if rest else f"library/{repository}"


class NoDigestError(Exception):
    """Raised if a registry cannot be reached, refuses the request, or does not follow the specification."""


def digest(repository: str, tag: str) -> str:
    """Return the digest of an image's tag from its registry. Raises `NoDigestError` if there is none."""
    host, name = registry_and_name(repository)
    scheme = "http" if host.partition(":")[0] in {"localhost", "127.0.0.1"} else "https"
    try:
        digest = _answer(f"{scheme}://{host}/v2/{name}/manifests/{tag}")
    except (OSError, HTTPException, ValueError, KeyError) as error:
        raise NoDigestError(f"{host} does not give the digest of {name}:{tag}: {error}") from error
    if not DIGEST.fullmatch(digest):
        raise NoDigestError(f"{host} gives {digest!r} as the digest of {name}:{tag}")
    return digest


def _answer(address: str) -> str:
    """Request the digest of a manifest, with a token if the registry requires one."""
    headers = {"Accept": ", ".join(MANIFESTS)}
    try:
        return _head(address, headers)
    except urllib.error.HTTPError as error:
        if error.code != HTTPStatus.UNAUTHORIZED:
            raise
        token = _token(error.headers.get("WWW-Authenticate", ""))
    return _head(address, headers | {"Authorization": f"Bearer {token}"})


def _head(address: str, headers: dict[str, str]) -> str:
    request = urllib.request.Request(address, headers=headers, method="HEAD")  # noqa: S310 (http for this machine alone)
    with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:  # noqa: S310
        return answer.headers.get("Docker-Content-Digest", "")


def _token(challenge: str) -> str:
    """Fetch the token that `WWW-Authenticate: Bearer realm="...",service="...",scope="..."` asks for."""
    fields = dict(re.findall(r'(\w+)="([^"]*)"', challenge))
    if not challenge.startswith("Bearer ") or "realm" not in fields:
        raise ValueError(f"it requires another authentication than a token ({challenge!r})")
    query = urllib.parse.urlencode({key: fields[key] for key in ("service", "scope") if key in fields})
    with urllib.request.urlopen(f"{fields['realm']}?{query}", timeout=TIMEOUT) as answer:  # noqa: S310
        granted = json.load(answer)
    return granted.get("token") or granted["access_token"]


def pinned(dockerfile: str) -> str:
    """Return the text of a Dockerfile with the digest of each base image after its tag. Raises like `digest`."""
    return BASE.sub(lambda base: f"{base[1]}{base[2]}:{base[3]}@{digest(base[2], base[3])}", dockerfile)


def main(path: str) -> str | None:
    """Rewrite the Dockerfile at `path`. If a digest is not available, return an error message and change nothing."""
    file = Path(path)
    try:
        file.write_text(pinned(file.read_text(encoding="utf-8")), encoding="utf-8")
    except NoDigestError as error:
        return f"{path} was not changed: {error}"
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
