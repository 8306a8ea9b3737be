"""Emulated hosts: what one does is nothing to the others, and none outlives who made it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.training.hosts import ROOT, TEMPORARY, Hosts, missing
from tests.training.processes import SHARED

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())

CONNECTED = "import socket, sys; socket.create_connection((sys.argv[1], 80), timeout=1)"
LISTENS = "import socket, sys; s = socket.create_server(('', 80)); [s.accept() for _ in iter(int, 1)]"


@pytest.fixture
def hosts(tmp_path):
    with Hosts(tmp_path) as hosts:
        yield hosts


def reaches(host, other):
    return host.start(sys.executable, "-c", CONNECTED, other.address).wait() == 0


def listening(hosts):
    """A host on which a server listens."""
    host = hosts.add()
    host.start(sys.executable, "-c", LISTENS)
    while not reaches(host, host):
        assert host.processes()
    return host


@pytest.mark.long
def test_hosts_reach_each_other_but_for_one_that_is_cut_off(hosts):
    server, client, other = listening(hosts), hosts.add(), hosts.add()
    assert reaches(client, server)
    client.cut()
    assert not reaches(client, server)
    assert reaches(other, server)
    client.restore()
    assert reaches(client, server)


@pytest.mark.long
def test_a_host_is_killed_with_all_its_processes_and_no_other_one_is(hosts):
    server, other = listening(hosts), hosts.add()
    sleeper = other.start("sleep", "60")
    server.kill()
    assert server.processes() == []
    assert not reaches(other, server)
    assert sleeper.poll() is None


def test_shared_memory_and_temporary_files_of_a_host_are_its_own(hosts):
    host, other = hosts.add(), hosts.add()
    for folder in (SHARED, Path(TEMPORARY)):
        file = folder / "of-a-host"
        host.run("touch", str(file))
        assert other.start("test", "-e", str(file)).wait() == 1
        assert not file.exists()


@pytest.mark.long
def test_hosts_end_with_the_process_that_made_them(tmp_path):
    makes = (
        "import sys, time; from pathlib import Path; from tests.training.hosts import Hosts;"
        "hosts = Hosts(Path(sys.argv[1])); host = hosts.add(); host.start('sleep', '60');"
        "any(iter(lambda: 'sleep' in [each.name() for each in host.processes()], True));"
        "print(host.first.pid, flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", makes, str(tmp_path)]
    maker = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    first = psutil.Process(int(maker.stdout.readline()))
    network = os.readlink(f"/proc/{first.pid}/ns/net")
    below = psutil.Process(maker.pid).children(recursive=True)
    assert len(below) > 2
    os.kill(maker.pid, signal.SIGKILL)
    maker.communicate()
    assert psutil.wait_procs([first, *below], 10)[1] == []
    assert [pid for pid in psutil.pids() if network_of(pid) == network] == []


def network_of(pid):
    try:
        return os.readlink(f"/proc/{pid}/ns/net")
    except OSError:
        return ""
