"""A stand-in of the Hugging Face hub on this machine: the part of its HTTP interface that reading takes.

`huggingface_hub` and `datasets` reach it through HF_ENDPOINT, or through the fixture of `tests.hub.fixture`. A
repository has one commit, `main`, and perhaps branches, and is gated, renamed or neither.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

from tests.paths import ROOT

SMALL = "small-"
"""Beginning of the name of a small model, which has the commits of the model that it stands in for."""
PIN = re.compile(r"(?:dataset|name): ([\w.-]+/[\w.-]+),[^}]*?revision: ([0-9a-f]{40})")


@cache
def pinned_commits() -> dict[str, str]:
    """The commits that the shipped files pin, by repository."""
    paths = [path for folder in ("data_specs", "workflows") for path in (ROOT / folder).rglob("*.yaml")]
    return dict(pin for path in paths for pin in PIN.findall(path.read_text()))


@dataclass(frozen=True)
class Repository:
    """A repository of the stand-in.

    Attributes:
        kind: `dataset` or `model`.
        name: its id, such as `openai/gsm8k`.
        files: the content of its files by path.
        commit: the commit that `main` is.
        gated: it is listed, and its files are refused.
        former_names: ids from which the hub redirects.
        branches: the files of other revisions, such as `refs/pr/2`, by name; each has a commit of its own.
    """

    kind: str
    name: str
    files: dict[str, bytes] = field(repr=False)
    commit: str = ""
    gated: bool = False
    former_names: tuple[str, ...] = ()
    branches: dict[str, dict[str, bytes]] = field(default_factory=dict, repr=False)

    def at(self, revision: str) -> Repository | None:
        """The repository as it is at a branch or commit, with nothing else in it; None where it has no such one."""
        if revision in ("main", self.sha):
            return self
        for name, files in self.branches.items():
            commit = hashlib.sha1(f"{self.name} {name}".encode()).hexdigest()  # noqa: S324 - as long as a commit
            if revision in (name, commit):
                return replace(self, files=files, commit=commit, branches={})
        return None

    @property
    def sha(self) -> str:
        """The commit: the given one, the one that a shipped file pins, or a hash of the name."""
        pinned = pinned_commits().get(self.name.replace(f"/{SMALL}", "/"))
        return self.commit or pinned or hashlib.sha1(self.name.encode()).hexdigest()  # noqa: S324 - as long as a commit

    @property
    def address(self) -> str:
        """The path of the repository's pages."""
        return f"datasets/{self.name}" if self.kind == "dataset" else self.name

    def info(self) -> dict:
        """What the interface answers about the repository."""
        return {
            "id": self.name,
            "sha": self.sha,
            "private": False,
            "gated": "manual" if self.gated else False,
            "disabled": False,
            "downloads": 0,
            "likes": 0,
            "tags": [],
            "siblings": [{"rfilename": path} for path in sorted(self.files)],
        }

    def entries(self, folder: str, *, recursive: bool) -> list[dict]:
        """The files and folders within `folder`, as the interface lists them."""
        prefix = f"{folder}/" if folder else ""
        listed: dict[str, dict] = {}
        for path in sorted(self.files):
            if not path.startswith(prefix):
                continue
            parts = path.removeprefix(prefix).split("/")
            for depth in range(1, len(parts)):
                inner = prefix + "/".join(parts[:depth])
                if recursive or depth == 1:
                    listed[inner] = {"type": "directory", "path": inner, "size": 0, "oid": _oid(inner.encode())}
            if recursive or len(parts) == 1:
                listed[path] = self.entry(path)
        return list(listed.values())

    def entry(self, path: str) -> dict:
        """A file, as the interface lists it."""
        return {"type": "file", "path": path, "size": len(self.files[path]), "oid": _oid(self.files[path])}


def _oid(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()  # noqa: S324 - git's hash


@contextmanager
def serving(repositories: list[Repository]) -> Iterator[str]:
    """Serve `repositories` for the length of the block; yields the address for HF_ENDPOINT."""
    handler = type("Handler", (_Handler,), {"repositories": repositories})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    repositories: list[Repository]

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        path, query = parts.path.strip("/"), parse_qs(parts.query)
        for repository in self.repositories:
            for name in (repository.name, *repository.former_names):
                if self._answered(repository, name, path, query):
                    return
        self._send(404, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"})

    do_HEAD = do_POST = do_GET  # noqa: N815 - names of the base class

    def _answered(self, repository: Repository, name: str, path: str, query: dict[str, list[str]]) -> bool:
        """Answer a request that is about the repository by this name; return whether it is.

        The path is as it was sent: the slashes of a revision are quoted in it, and those of a file's path are not.
        """
        api = f"api/{repository.kind}s/{name}"
        files = f"datasets/{name}" if repository.kind == "dataset" else name
        base = api if f"{path}/".startswith(f"{api}/") else files
        if not f"{path}/".startswith(f"{base}/"):
            return False
        if name != repository.name:
            self._send(307, {}, {"Location": self.path.replace(name, repository.name, 1)})
            return True
        action, _, rest = path.removeprefix(base).strip("/").partition("/")
        revision, _, inner = (unquote(part) for part in rest.partition("/"))
        at = repository.at(revision or "main")
        if at is None:
            self._send(404, {"error": "Invalid rev id"}, {"X-Error-Code": "RevisionNotFound"})
        elif base == files:
            self._file(at, inner)
        elif action in ("", "revision"):
            self._send(200, at.info())
        else:
            self._list(at, action, inner, query)
        return True

    def _list(self, repository: Repository, action: str, folder: str, query: dict[str, list[str]]) -> None:
        if action == "tree":
            recursive = query.get("recursive", ["false"])[0].lower() == "true"
            entries = repository.entries(folder, recursive=recursive)
            if folder and not entries:
                self._send(404, {"error": "Entry not found"}, {"X-Error-Code": "EntryNotFound"})
            else:
                self._send(200, entries)
        elif action == "paths-info":
            wanted = self._body().get("paths", [])
            wanted = [wanted] if isinstance(wanted, str) else wanted
            known = {entry["path"]: entry for entry in repository.entries("", recursive=True)}
            self._send(200, [known[path] for path in wanted if path in known])
        else:
            self._send(404, {"error": f"the stand-in knows no {action}"})

    def _file(self, repository: Repository, path: str) -> None:
        if repository.gated:
            self._send(403, {"error": "Access to this repository is restricted"}, {"X-Error-Code": "GatedRepo"})
        elif path not in repository.files:
            self._send(404, {"error": "Entry not found"}, {"X-Error-Code": "EntryNotFound"})
        else:
            self._content(repository, repository.files[path])

    def _content(self, repository: Repository, content: bytes) -> None:
        status, headers = 200, {"ETag": f'"{_oid(content)}"', "X-Repo-Commit": repository.sha, "Accept-Ranges": "bytes"}
        if wanted := self.headers.get("Range"):
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            end = min(int(last) + 1 if last else len(content), len(content))
            headers["Content-Range"] = f"bytes {first}-{end - 1}/{len(content)}"
            status, content = 206, content[int(first) : end]
        self._send(status, content, headers)

    def _body(self) -> dict:
        text = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        if "json" in self.headers.get("Content-Type", ""):
            return json.loads(text)
        return parse_qs(text)

    def _send(self, status: int, body: object, headers: dict[str, str] | None = None) -> None:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/octet-stream" if body is content else "application/json")
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Print nothing."""
