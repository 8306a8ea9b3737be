"""A Ray cluster of emulated hosts with a relay between them, as a test and a benchmark use it."""

import json
import sys
import time
from pathlib import Path

from tests.training.hosts import TEMPORARY, Host, Hosts

MODEL = f"{TEMPORARY}/model"
"""Folder of the initial model: each host has temporary files of its own."""
PATIENCE_SECONDS = 120


class RelayedHosts:
    """A head with a driver, the learner's host, and others, of which each has shared memory and a link of its own.

    Attributes:
        learner: the host that has each version first.
    """

    def __init__(self, hosts: Hosts, folder: Path, piece_bytes: int, model_bytes: int) -> None:
        self._hosts = hosts
        self._folder = folder
        self._version = 0
        self._head = hosts.add()
        assert self._head.start_ray(cpus=0).wait() == 0, self._head.log.read_text()
        [self.learner] = self.add(1)
        settings = {"piece_bytes": piece_bytes, "model_bytes": model_bytes, "model": MODEL}
        (folder / "settings.json").write_text(json.dumps(settings))
        (folder / "orders.jsonl").touch()
        self._driver = self._head.start(
            sys.executable, "-m", "tests.training.relay_on_hosts", str(folder / "orders.jsonl")
        )

    def add(self, count: int) -> list[Host]:
        """More hosts, when they are nodes of the cluster."""
        added = [self._hosts.add() for _ in range(count)]
        starting = [host.start_ray(self._head, cpus=1) for host in added]
        for host, process in zip(added, starting, strict=True):
            assert process.wait() == 0, host.log.read_text()
        return added

    def publish(self, size: int, to: list[Host], wait: list[Host] | None = None) -> int:
        """Have a version of this many bytes brought to hosts; return its number when it is published."""
        self._version += 1
        addresses = [[host.address for host in some] for some in (to, to if wait is None else wait)]
        order = dict(zip(("to", "wait"), addresses, strict=True))
        order |= {"version": self._version, "size": size, "origin": self.learner.address}
        self._order(order)
        self._until((self._folder / f"published{self._version}").exists)
        return self._version

    def seconds(self, version: int) -> dict[str, float]:
        """Wait until a version is on the hosts that were to be waited for; return the seconds, by address."""
        done = self._folder / "done.jsonl"
        self._until(lambda: done.exists() and len(done.read_text().splitlines()) >= version)
        return json.loads(done.read_text().splitlines()[version - 1])["seconds"]

    def end(self) -> None:
        """End the driver, after which no weights are left."""
        self._order({})
        assert self._driver.wait(PATIENCE_SECONDS) == 0, self._head.log.read_text()

    def _order(self, order: dict) -> None:
        with (self._folder / "orders.jsonl").open("a") as file:
            file.write(json.dumps(order) + "\n")

    def _until(self, happened) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not happened():
            assert time.monotonic() < deadline, self._head.log.read_text()
            assert self._driver.poll() is None, self._head.log.read_text()
            time.sleep(0.02)
