"""What a hub answers, from one on this machine: commits, and one sentence for each thing that is not there."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from huggingface_hub import HfFileSystem

from tasks.config.loading import SpecError
from tasks.generation.models import ModelSpec
from tasks.inputs.fingerprints import fingerprint_model
from tasks.sourcing import hub
from tasks.sourcing.loader_specs import JsonlLoader
from tasks.sourcing.loaders import check, compute_fingerprint, pin
from tasks.sourcing.spec import SourceSpec

COMMIT = "0123456789abcdef0123456789abcdef01234567"
ANSWERS = {
    "open/set": (200, {}, f'{{"id": "open/set", "sha": "{COMMIT}"}}'),
    "gated/set": (403, {"X-Error-Code": "GatedRepo"}, "{}"),
    "no/set": (404, {"X-Error-Code": "RepoNotFound"}, "{}"),
    "old/set": (404, {"X-Error-Code": "RevisionNotFound"}, "{}"),
    "busy/set": (503, {}, "{}"),
}


class Hub(BaseHTTPRequestHandler):
    asked: list[str] = []  # noqa: RUF012 (emptied by the fixture)

    def do_GET(self):
        self.asked.append(self.path)
        name = "/".join(self.path.split("/")[3:5])
        status, headers, body = ANSWERS[name] if Hub.asked.count(self.path) < 3 else ANSWERS["open/set"]
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_):
        pass


@pytest.fixture
def local_hub(monkeypatch):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    Hub.asked.clear()
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hub, "WAITS", (0.0, 0.0))
    yield server
    server.shutdown()
    server.server_close()


def source(dataset, revision="main"):
    loader = {"kind": "huggingface", "dataset": dataset, "revision": revision}
    return SourceSpec.model_validate({"name": "src", "domain": "math", "verifier": "math", "loader": loader})


def test_a_branch_becomes_the_commit_that_caches_see(local_hub):
    found = pin(source("open/set"))
    assert found.loader.revision == COMMIT
    assert (
        compute_fingerprint(found)
        == compute_fingerprint(source("open/set", COMMIT))
        != compute_fingerprint(source("open/set"))
    )


def test_a_commit_is_itself_without_a_question(local_hub):
    assert pin(source("open/set", COMMIT)) == source("open/set", COMMIT)
    assert Hub.asked == []


def test_a_hub_that_is_busy_is_asked_again(local_hub):
    assert pin(source("busy/set")).loader.revision == COMMIT
    assert len(Hub.asked) == 3


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("gated/set", "gated/set is gated: ask for access on its page of the hub.*needs HF_TOKEN"),
        ("no/set", "the hub has no no/set; a private or gated one needs HF_TOKEN"),
        ("old/set", "old/set has no such revision; a commit, a branch or a tag"),
    ],
)
def test_what_the_hub_does_not_give_is_one_sentence_at_once(local_hub, name, said):
    with pytest.raises(SpecError, match=rf"source 'src': loader.revision = 'main': {said}"):
        pin(source(name))
    assert len(Hub.asked) == 1


def test_without_a_network_a_branch_is_a_mistake_where_the_user_switched_it_off(local_hub, monkeypatch):
    local_hub.shutdown()
    local_hub.server_close()
    with pytest.raises(ConnectionError, match=r"the hub at .* cannot be reached; give the commit, of 40 hex digits"):
        pin(source("open/set"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(SpecError, match=r"the hub at .* cannot be reached; give the commit, of 40 hex digits"):
        pin(source("open/set"))


def test_a_set_that_cannot_be_opened_says_how_it_could_be(monkeypatch):
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(
        SpecError, match=r"source 'src': loader: open/set: the hub at .* cannot be reached; name its files"
    ):
        check(source("open/set", COMMIT))


def test_a_model_of_the_hub_is_pinned_likewise(local_hub):
    spec = ModelSpec.model_validate({"source": {"kind": "hub", "name": "open/set", "revision": "main"}})
    assert fingerprint_model(spec).source.revision == COMMIT
    missing = ModelSpec.model_validate({"source": {"kind": "hub", "name": "no/set", "revision": "main"}})
    with pytest.raises(SpecError, match=r"model: source.revision = 'main': the hub has no no/set"):
        fingerprint_model(missing)


def test_a_file_of_a_hub_that_is_not_there_is_one_sentence(monkeypatch):
    HfFileSystem.clear_instance_cache()
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hub, "WAITS", ())
    path = f"hf://datasets/open/set@{COMMIT}/rows.jsonl"
    named = source("open/set").model_copy(update={"loader": JsonlLoader(kind="jsonl", path=path)})
    with pytest.raises(ConnectionError, match=rf"^source 'src': loader: {path}: the hub at .* name a copy of the file"):
        check(named)
    HfFileSystem.clear_instance_cache()
