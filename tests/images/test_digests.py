"""Base images are pinned by the digests that their registries give for their tags."""

from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from images import digests

ROOT = Path(__file__).parents[2]
DIGEST = f"sha256:{'0123456789abcdef' * 4}"


@contextmanager
def registry(images, *, with_token=True):
    """A registry on this machine that answers for `images`, by name and tag, with a token of its own."""

    class Registry(BaseHTTPRequestHandler):
        def do_HEAD(self):
            _, _, *name, _, tag = self.path.split("/")
            if with_token and self.headers["Authorization"] != "Bearer a-token":
                self.send_response(401)
                scope = f"repository:{'/'.join(name)}:pull"
                challenge = f'Bearer realm="http://{self.headers["Host"]}/token",service="here",scope="{scope}"'
                self.send_header("WWW-Authenticate", challenge)
            elif (digest := images.get(("/".join(name), tag))) is None:
                self.send_response(404)
            else:
                assert "application/vnd.oci.image.index.v1+json" in self.headers["Accept"]
                self.send_response(200)
                self.send_header("Docker-Content-Digest", digest)
            self.end_headers()

        def do_GET(self):
            assert self.path == "/token?service=here&scope=repository%3Ateam%2Fpython%3Apull"
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"token": "a-token"}')

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Registry)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("with_token", [True, False])
@pytest.mark.parametrize("before", ["", f"@sha256:{'f' * 64}"])
def test_a_digest_stands_behind_the_tag_and_replaces_an_older_one(tmp_path, with_token, before):
    file = tmp_path / "Dockerfile"
    with registry({("team/python", "3.12.11"): DIGEST}, with_token=with_token) as host:
        text = "# FROM nothing:1\nFROM {image} AS data\nRUN echo a:b\nFROM data AS other\n"
        file.write_text(text.format(image=f"{host}/team/python:3.12.11{before}"))
        assert digests.main(str(file)) is None
        assert file.read_text() == text.format(image=f"{host}/team/python:3.12.11@{DIGEST}")


@pytest.mark.parametrize(("answer", "cause"), [({}, "404"), ({("team/python", "3"): "x"}, "gives 'x' as the digest")])
def test_without_a_digest_the_file_stays_as_it_is_and_one_sentence_gives_the_cause(tmp_path, answer, cause):
    file = tmp_path / "Dockerfile"
    with registry(answer) as host:
        file.write_text(f"FROM {host}/team/python:3 AS data\n")
        sentence = digests.main(str(file))
        assert file.read_text() == f"FROM {host}/team/python:3 AS data\n"
    assert sentence.startswith(f"{file} was not changed: ")
    assert cause in sentence
    assert host in sentence
    assert "\n" not in sentence


def test_a_registry_that_is_not_reached_is_one_sentence(tmp_path):
    with registry({}) as host:
        pass
    file = tmp_path / "Dockerfile"
    file.write_text(f"FROM {host}/python:3 AS data\n")
    assert "refused" in digests.main(str(file))


@pytest.mark.parametrize(
    ("repository", "expected"),
    [
        ("python", ("registry-1.docker.io", "library/python")),
        ("nvidia/cuda", ("registry-1.docker.io", "nvidia/cuda")),
        ("ghcr.io/team/image", ("ghcr.io", "team/image")),
        ("localhost:5000/image", ("localhost:5000", "image")),
    ],
)
def test_an_image_without_a_host_is_on_docker_hub(repository, expected):
    assert digests.registry_and_name(repository) == expected


def test_every_base_image_has_a_full_tag(monkeypatch):
    text = (ROOT / "images" / "Dockerfile").read_text()
    found = {base[2]: base[3] for base in digests.BASE.finditer(text)}
    assert found == {"python": "3.11.13-slim-bookworm", "nvidia/cuda": "13.0.1-devel-ubuntu24.04"}
    monkeypatch.setattr(digests, "digest", lambda *_: DIGEST)
    assert digests.pinned(text).count(f"@{DIGEST} AS ") == len(found)
