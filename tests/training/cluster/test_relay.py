"""The relay between hosts that share no memory and no temporary files: each version crosses into each of them once."""

import asyncio
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tasks.training.cluster.relay import RelayProcess, find_blind_relays, make_not_shared_error
from tests.training.hosts import Hosts, missing
from tests.training.processes import SHARED
from tests.training.relayed_hosts import PATIENCE_SECONDS, RelayedHosts

MB = 1_000_000
VERSIONS = 20
SIZE = 12 * MB
MODEL_SIZE = 10 * MB
PIECE = 2 * MB
OVERHEAD = 1.1
"""Bytes on a link over bytes of weights: headers, and what Ray's processes have to say to each other."""
LINK = 20
"""MB/s, at which the version in which a host dies takes seconds."""


def files(host) -> list[str]:
    """Files of weights in a host's shared memory."""
    entered = ["nsenter", "--target", str(host.first.pid), "--mount"]
    listed = [*entered, "find", str(SHARED), "-path", "*rlvr-*", "-type", "f"]
    return subprocess.run(listed, capture_output=True, text=True, check=True).stdout.split()


def until_files_are(host, names) -> None:
    """Wait until a host has these files alone: old ones are removed beside all else, when no node copies them."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (left := [Path(file).name for file in files(host)]) != names:
        assert time.monotonic() < deadline, left
        time.sleep(0.5)


@pytest.mark.complete
@pytest.mark.long
@pytest.mark.engine
@pytest.mark.skipif(bool(missing()), reason=missing())
def test_each_version_crosses_into_each_host_once_and_a_host_that_dies_delays_no_other(tmp_path):
    with Hosts(tmp_path) as hosts:
        cluster = RelayedHosts(hosts, tmp_path, PIECE, MODEL_SIZE)
        a, b, dies = cluster.add(3)
        others = [a, b, dies]
        cluster.seconds(cluster.publish(MB, others))  # relays start, and the model comes
        before = [host.traffic() for host in [*others, cluster.learner]]
        for _ in range(VERSIONS):
            cluster.seconds(cluster.publish(SIZE, others))
        after = [host.traffic() for host in [*others, cluster.learner]]
        received = [(new[0] - old[0]) / VERSIONS / SIZE for old, new in zip(before, after, strict=True)]
        print(f"copies of each version into a, b, c, and into the learner's host: {received}")
        assert all(1 <= copies < OVERHEAD for copies in received[:3])
        assert received[3] < OVERHEAD - 1
        for host in [*others, cluster.learner]:
            host.limit(LINK)
        version = cluster.publish(5 * SIZE, others, [a, b])
        time.sleep(5 * SIZE / MB / LINK / 2)
        assert any(file.endswith(".partial") for file in files(dies))
        dies.kill()
        print(f"seconds beside a host that died, of {5 * SIZE / MB / LINK:.1f}: {cluster.seconds(version)}")
        version = cluster.publish(SIZE, [a, b])
        print(f"seconds after that: {cluster.seconds(version)}")
        [added] = cluster.add(1)
        version = cluster.publish(SIZE, [a, b, added])
        cluster.seconds(version)
        brought = MODEL_SIZE + 2 * SIZE  # of weights the newest when it joins, and the next
        assert brought <= added.traffic()[0] < OVERHEAD * brought
        for host in (a, b, added, cluster.learner):
            until_files_are(host, [f"v{version:08d}"])
        cluster.end()
        assert [files(host) for host in (a, b, added, cluster.learner)] == [[]] * 4


class Sees:
    """The relay of a node, which sees the run folder or does not."""

    def __init__(self, name, sees):
        self.name = name
        self._sees = sees

    async def exists(self, path):
        return self._sees and Path(path).exists()


def test_a_run_folder_that_a_node_with_ranks_does_not_see_is_an_error_that_names_both_ways_out(tmp_path, monkeypatch):
    monkeypatch.delenv("RLVR_RUNS", raising=False)
    here, blind, blind_too = Sees("10.0.0.1", True), Sees("10.0.0.3", False), Sees("10.0.0.2", False)
    assert asyncio.run(find_blind_relays(tmp_path, [here])) == []
    assert asyncio.run(find_blind_relays(tmp_path, [blind, here, blind_too])) == [blind, blind_too]
    assert list(tmp_path.iterdir()) == []
    message = str(make_not_shared_error(tmp_path, [blind, blind_too]))
    for fact in (f"of which 10.0.0.2, 10.0.0.3 do not see {tmp_path}", "RLVR_RUNS", "s3://", "a folder", "not set"):
        assert fact in message


def test_a_node_keeps_the_parts_of_the_newest_checkpoints_alone(tmp_path):
    relay = RelayProcess(str(tmp_path / "rlvr-run"))
    for name in ("step_1.a", "step_2.b", "step_3.c"):
        (tmp_path / "parts" / name / "rlvr").mkdir(parents=True)
    relay.keep_only(str(tmp_path / "parts"), ["step_2.b", "step_3.c", "step_4.d"])
    assert sorted(path.name for path in (tmp_path / "parts").iterdir()) == ["step_2.b", "step_3.c"]
    relay.keep_only(str(tmp_path / "none"), [])
    relay.close()


@pytest.mark.long
def test_a_relay_that_is_started_again_finds_its_weights_and_one_that_is_closed_leaves_none(tmp_path):
    folder, abandoned = tmp_path / "rlvr-run", tmp_path / "rlvr-killed"
    abandoned.mkdir()
    script = (
        "import sys; from tasks.training.cluster.relay import RelayProcess; relay = RelayProcess(sys.argv[1]);"
        "open(sys.argv[1] + '/v1', 'w').write('weights'); print(flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as first:
        first.stdout.readline()
        assert not abandoned.exists()
        first.kill()
    second = RelayProcess(str(folder))
    assert second.contents(str(folder / "v1")) == [("", len("weights"))]
    second.close()
    assert not folder.exists()
