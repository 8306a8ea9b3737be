"""The command from tables to logs that Inspect reads and its viewer shows, with Inspect's environment if it is made."""

import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from click.testing import CliRunner

from images import pins
from tasks.commands.view import view
from tasks.view import environment as environments
from tasks.view import viewer
from tasks.view.responses import ViewError
from tests.paths import ROOT
from tests.view.synthetic import HOSTILE, write_run, write_training

READ = """
import json, sys
from inspect_ai.log import read_eval_log
log = read_eval_log(sys.argv[1])
samples = [one.model_dump(mode="json") for one in log.samples]
print(json.dumps([log.eval.viewer.trust_content, log.eval.config.epochs, samples]))
"""


@pytest.fixture
def run(tmp_path):
    return write_run(tmp_path / "results", write_training(tmp_path / "runs" / "abc" / "rollouts"))


@pytest.fixture(scope="module")
def inspect():
    folder = environments.environment_folder()
    if not environments.is_made(folder):
        pytest.skip(f"the viewer's environment is not made: rlvr view makes it in {folder}")
    return folder


def read(inspect, log):
    done = subprocess.run([inspect / "bin" / "python", "-c", READ, log], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@pytest.mark.long
def test_a_bundle_has_every_response_as_inspect_reads_it(run, inspect, tmp_path):
    bundle = tmp_path / "bundle"
    done = CliRunner().invoke(view, [str(run), "--bundle", str(bundle)], catch_exceptions=False)
    assert "55 responses in 13 logs; questions whose verdict changed are in 2 further logs\n" in done.stdout, (
        done.output
    )
    assert "The viewer needs a file server." in (bundle / "index.html").read_text()
    trusted, epochs, samples = read(inspect, bundle / "logs" / "training" / "step-00001-trained.eval")
    assert (trusted, epochs, len(samples)) == (False, 3, 6)
    assert {(one["id"], one["epoch"]) for one in samples} == {(f"p{n}", e) for n in (3, 4) for e in (1, 2, 3)}
    assert samples[0]["scores"]["passed"]["explanation"] == "expected 42"
    _, _, hostile = read(inspect, bundle / "logs" / "evaluation" / "heldout-after.eval")
    [one] = [each for each in hostile if (each["id"], each["epoch"]) == ("p3", 1)]
    assert [message["content"] for message in one["messages"]] == [HOSTILE, HOSTILE]
    assert one["metadata"]["columns"] == {"note": "\\ud800"}
    _, _, unjudged = read(inspect, bundle / "logs" / "evaluation" / "heldout-before.eval")
    assert [each["error"]["message"] for each in unjudged if each["id"] == "p2"] == ["the judge is away"] * 2
    _, _, flipped = read(inspect, bundle / "logs" / "flipped" / "heldout-worse-after-vs-before.eval")
    assert {name: score["value"] for name, score in flipped[0]["scores"].items()} == {"before": "C", "after": "I"}


@pytest.mark.long
def test_the_viewer_answers_on_this_machine_alone(run, inspect):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "tasks.commands", "view", str(run), "--step", "1", "--port", str(port)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True) as child:
        try:
            lines = [child.stdout.readline() for _ in range(2)]
            assert lines[0] == "9 responses in 2 logs\n"
            assert f"http://127.0.0.1:{port} " in lines[1]
            page = answer(f"http://127.0.0.1:{port}/")
            assert "<html" in page
            assert answer(f"http://127.0.0.1:{port}/api/log-dir").endswith('/results"}')
            sockets = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()]
            listening = [each[1] for each in sockets if each[3] == "0A"]
            assert f"0100007F:{port:04X}" in listening
            assert f"00000000:{port:04X}" not in listening
        finally:
            os.killpg(child.pid, 2)


@pytest.fixture
def taken():
    """A port that another process listens on."""
    with socket.socket() as server:
        server.bind((viewer.HOST, 0))
        server.listen()
        yield server.getsockname()[1]


def test_a_port_that_is_taken_is_refused_if_it_is_given_and_else_the_next_is_used(run, taken, monkeypatch):
    monkeypatch.setattr(environments, "make", lambda folder: pytest.fail("made"))
    with pytest.raises(ViewError, match=f"--port {taken}: the port is taken"):
        CliRunner().invoke(view, [str(run), "--port", str(taken)], catch_exceptions=False)
    monkeypatch.setattr(viewer, "PORT", taken)
    assert viewer.find_free_port(None) > taken


@pytest.mark.long
def test_a_view_leaves_another_one_alone_and_its_viewer_ends_with_it(run, inspect, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    command = [sys.executable, "-m", "tasks.commands", "view", str(run), "--benchmark", "sums"]

    def begun():
        child = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        address = re.search(r"http://\S+", "".join(child.stdout.readline() for _ in range(2))).group()
        assert "<html" in answer(address)
        return child, address

    children = []
    try:
        for _ in range(2):
            children.append(begun())
        (_, address), (second, other) = children
        assert address != other
        assert "<html" in answer(address)
        second.terminate()
        second.wait()
        assert len(list(tmp_path.glob("rlvr-view-*"))) == 1  # the logs of the first
        assert is_quiet(other)
        assert "<html" in answer(address)
    finally:
        for child, _ in children:
            child.kill()
            child.wait()
    assert is_quiet(address)


def is_quiet(address):
    for _ in range(100):
        try:
            urllib.request.urlopen(address, timeout=5).close()  # noqa: S310
        except OSError:
            return True
        time.sleep(0.1)
    return False


def answer(address):
    for _ in range(200):
        try:
            return urllib.request.urlopen(address, timeout=5).read().decode()  # noqa: S310
        except OSError:
            time.sleep(0.2)
    raise AssertionError(f"no answer from {address}")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--benchmark", "sums", "--step", "3"], "give one of them"),
        (["--step", "77"], "the nearest is 3"),
        (["--outcome", "stale"], "there are: trained, zero_variance"),
        (["--bundle", "folder", "--port", "7575"], "give one of them"),
    ],
)
def test_a_mistake_is_one_sentence_before_anything_is_installed(run, monkeypatch, arguments, sentence):
    monkeypatch.setattr(environments, "make", lambda folder: pytest.fail("made"))
    with pytest.raises(ViewError, match=sentence):
        CliRunner().invoke(view, [str(run), *arguments], catch_exceptions=False)


def test_a_folder_with_other_files_is_not_replaced(run, tmp_path, monkeypatch):
    monkeypatch.setattr(environments, "make", lambda folder: pytest.fail("made"))
    page = tmp_path / "site" / "index.html"
    page.parent.mkdir()
    page.write_text("<title>My pages</title>")
    with pytest.raises(ViewError, match="contains something else"):
        CliRunner().invoke(view, [str(run), "--bundle", str(page.parent)], catch_exceptions=False)
    assert page.read_text() == "<title>My pages</title>"


@pytest.mark.parametrize("step", ["x", "3:", "5:2", "-1"])
def test_a_step_that_is_none_is_refused(run, step):
    done = CliRunner().invoke(view, [str(run), "--step", step])
    assert done.exit_code == 2
    assert "step" in done.output.splitlines()[-1]


@pytest.mark.long
def test_without_a_network_one_sentence_says_so(tmp_path, monkeypatch):
    monkeypatch.delenv(environments.VARIABLE, raising=False)
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
        monkeypatch.delenv(name.lower(), raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9/simple")
    with pytest.raises(ViewError, match="a package index is needed once") as raised:
        environments.ensure_environment(lambda sentence: None)
    assert "\n" not in str(raised.value)
    assert not environments.is_made(environments.environment_folder())
    assert not list((tmp_path / "rlvr-flyte").iterdir())


def test_an_environment_that_is_named_and_has_no_inspect_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setenv(environments.VARIABLE, str(tmp_path))
    with pytest.raises(ViewError, match=f"RLVR_VIEW = {tmp_path} contains no bin/inspect"):
        environments.ensure_environment(lambda sentence: None)


def test_another_lock_has_another_folder(tmp_path, monkeypatch):
    monkeypatch.delenv(environments.VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first = environments.environment_folder()
    monkeypatch.setattr(environments, "lock", lambda: "other")
    assert environments.environment_folder() != first
    assert first.is_relative_to(tmp_path)


def test_what_writes_logs_imports_nothing_that_inspects_environment_lacks():
    probe = (
        "import sys, tasks.view.child; foreign = {'pydantic', 'pandas', 'yaml', 'flytekit', 'click', 'jinja2'};"
        "assert not foreign & set(sys.modules), foreign & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", probe], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_lock_pins_inspect_and_this_projects_pyarrow():
    lock, ours = (pins.read(ROOT / "images" / name) for name in ("lock-view.txt", "lock-cpu.txt"))
    assert lock["pyarrow"] == ours["pyarrow"]
    assert pins.read(ROOT / "images" / "view.in").items() <= lock.items()
