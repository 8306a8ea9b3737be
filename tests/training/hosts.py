"""Several hosts on one Linux machine: each has processes, a network address, `/dev/shm` and temporary files of its own.

    host 192.0.2.1 ──┐
    host 192.0.2.2 ──┼── switch (a bridge in a network namespace of its own)
    host 192.0.2.3 ──┘

A host is what one first process holds: its namespaces. The kernel ends every process of a host with the first one, and
removes mounts and network devices with the last. The first ends with whoever made it, as its standard input does. So
nothing is left, however a test ends, and nothing shows in the network of the machine. The file system is shared.
"""

import contextlib
import json
import os
import platform
import secrets
import shutil
import subprocess
import sys
from pathlib import Path

import psutil

from tasks.machine.groups import OF_A_MACHINE, RESOURCES
from tests.paths import ROOT
from tests.training.processes import SHARED, role

NETWORK = "192.0.2"  # RFC 5737: of nobody
TEMPORARY = "/tmp/ray"  # noqa: S108 a short name, as sockets lie below it
TOOLS = ("unshare", "nsenter", "ip", "mount", "bash")
PORT = 6379
"""Of the head of a Ray cluster."""
OBJECT_STORE_BYTES = 100_000_000
TOKEN = secrets.token_hex(32)
"""What the nodes of a Ray cluster know each other by. A head that finds a token in the user's home asks for it, and a
node only sends one where it is told to."""
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
"""A host reaches no proxy, and needs none."""
STAYS = "echo; read -r"
"""A first process says that it is there, ends with its standard input, and reaps what others leave behind."""


def missing() -> str:
    """Why there can be no hosts here, as a sentence; empty where there can."""
    if platform.system() != "Linux":
        return f"hosts are made of Linux's namespaces, and this is {platform.system()}"
    if os.geteuid() != 0:
        return "hosts are made by root"
    if lacking := [tool for tool in TOOLS if shutil.which(tool) is None]:
        return f"hosts are made with {', '.join(lacking)}, which is not here"
    tries = ("unshare", "--net", "--mount", "--pid", "--fork", "true")
    tried = subprocess.run(tries, capture_output=True, text=True)
    return tried.stderr.strip() if tried.returncode else ""


class Namespaces:
    """Namespaces of the kinds that `unshare` is told, for as long as its first process lives."""

    def __init__(self, *kinds: str, setup: str = "true") -> None:
        command = ["unshare", *kinds, "--fork", "--kill-child", "bash", "-c", f"{setup} && {STAYS}"]
        self._holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._holder.stdout is not None
        if not self._holder.stdout.readline():
            raise RuntimeError(f"{' '.join(command)} ended with {self._holder.wait()}")
        [self.first] = psutil.Process(self._holder.pid).children()

    def end(self) -> None:
        """Kill everything in them at once."""
        with contextlib.suppress(psutil.NoSuchProcess):
            self.first.kill()
        self._holder.communicate()


class Switch(Namespaces):
    """Joins hosts."""

    def __init__(self) -> None:
        super().__init__("--net")
        self.ip("link", "add", "bridge", "type", "bridge")
        self.ip("link", "set", "bridge", "up")

    def ip(self, *arguments: str) -> None:
        """`ip` with these arguments, in the switch's network."""
        self.run("ip", *arguments)

    def run(self, *command: str) -> None:
        """A command in the switch's network."""
        entered = ("nsenter", "--target", str(self.first.pid), "--net")
        subprocess.run((*entered, *command), check=True)


class Host(Namespaces):
    """A host that is reached by the others.

    Attributes:
        address: its IPv4 address.
    """

    def __init__(self, switch: Switch, number: int, log: Path) -> None:
        """`number`: 1 to 254, of no other host; `log`: a file for what its processes print."""
        super().__init__(
            *("--net", "--mount", "--pid", "--mount-proc"),
            setup=f"mount -t tmpfs tmpfs {SHARED} && mkdir -p {TEMPORARY} && mount -t tmpfs tmpfs {TEMPORARY}",
        )
        self.address = f"{NETWORK}.{number}"
        self.log = log
        self._switch = switch
        self._port = f"port{number}"
        self._kind = self._namespace(self.first.pid)
        switch.ip("link", "add", self._port, "type", "veth", "peer", "name", "eth0", "netns", str(self.first.pid))
        switch.ip("link", "set", self._port, "master", "bridge", "up")
        for arguments in ("addr add %s/24 dev eth0", "link set eth0 up", "link set lo up"):
            self.run("ip", *arguments.replace("%s", self.address).split())

    def start(self, *command: str) -> subprocess.Popen:
        """A process on the host, from the root of the repository."""
        entered = ["nsenter", "--target", str(self.first.pid), "--net", "--mount", "--pid", "env", "-C", str(ROOT)]
        with self.log.open("a") as log:
            return subprocess.Popen(
                [*entered, *command],
                env=ENVIRONMENT
                | {"PYTHONPATH": str(ROOT), "TMPDIR": TEMPORARY, "RAY_TMPDIR": TEMPORARY}
                | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN}
                | {"GLOO_SOCKET_IFNAME": "eth0"},  # hosts have one name, by which gloo would look for its address
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def run(self, *command: str) -> None:
        """A process on the host that is waited for; raises `CalledProcessError` where it fails."""
        process = self.start(*command)
        if code := process.wait():
            raise subprocess.CalledProcessError(code, command, self.log.read_text())

    def start_ray(self, head: "Host | None" = None, *, cpus: int, group: str | None = None) -> subprocess.Popen:
        """A node of the Ray cluster of `head`, or the head of a new one; the process returned ends when it is up.

        `group`: that of whose machines it is one.
        """
        where = ["--address", f"{head.address}:{PORT}"] if head else ["--head", "--port", str(PORT)]
        return self.start(
            *(str(Path(sys.executable).with_name("ray")), "start", *where, "--node-ip-address", self.address),
            *("--num-cpus", str(cpus), "--disable-usage-stats", "--object-store-memory", str(OBJECT_STORE_BYTES)),
            *(() if head else ("--include-dashboard", "false")),
            *(("--resources", json.dumps({RESOURCES[group]: OF_A_MACHINE})) if group else ()),
        )

    def limit(self, megabytes_per_second: int) -> None:
        """Its link carries this many MB/s in either direction from now on, and no more."""
        rate = f"{8 * megabytes_per_second}mbit"
        shaped = ("root", "tbf", "rate", rate, "burst", "256kb", "latency", "100ms")
        self.run("tc", "qdisc", "replace", "dev", "eth0", *shaped)
        self._switch.run("tc", "qdisc", "replace", "dev", self._port, *shaped)

    def traffic(self) -> tuple[int, int]:
        """Bytes that its link has carried: to it, and from it."""
        [line] = [line for line in Path(f"/proc/{self.first.pid}/net/dev").read_text().splitlines() if "eth0:" in line]
        numbers = line.split(":")[1].split()
        return int(numbers[0]), int(numbers[8])

    def cut(self) -> None:
        """From now on nothing reaches it, and nothing of it reaches others."""
        self._switch.ip("link", "set", self._port, "nomaster")

    def restore(self) -> None:
        """Its network is back."""
        self._switch.ip("link", "set", self._port, "master", "bridge")

    def kill(self) -> None:
        """It loses its power: no connection is closed, it is silent."""
        self.cut()
        self.end()

    def processes(self) -> list[psutil.Process]:
        """What runs on it; the first process is not counted."""
        return [each for each in psutil.process_iter() if self._holds(each) and each != self.first]

    def roles(self) -> list[str]:
        """Of its processes, see `processes.role`."""
        found = []
        for process in self.processes():
            with contextlib.suppress(psutil.Error):  # it has just ended
                found.append(role(process))
        return found

    def _holds(self, process: psutil.Process) -> bool:
        with contextlib.suppress(OSError, psutil.Error):  # it has just ended
            return self._namespace(process.pid) == self._kind and process.status() != psutil.STATUS_ZOMBIE
        return False

    @staticmethod
    def _namespace(pid: int) -> str:
        return os.readlink(f"/proc/{pid}/ns/pid")


class Hosts:
    """Hosts that are joined; used as a context, after which they are gone."""

    def __init__(self, logs: Path) -> None:
        """`logs`: a folder for what their processes print."""
        self._logs = logs
        self._switch = Switch()
        self.all: list[Host] = []

    def __enter__(self) -> "Hosts":
        return self

    def __exit__(self, *_: object) -> None:
        for host in self.all:
            host.end()
        self._switch.end()

    def add(self) -> Host:
        """Another host."""
        number = len(self.all) + 1
        self.all.append(Host(self._switch, number, self._logs / f"host{number}.log"))
        return self.all[-1]
