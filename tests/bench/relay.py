"""The relay of weights between emulated hosts whose links have a stated rate, beside a plain copy over these links."""

from __future__ import annotations

import json
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path

from tests.training.hosts import Host, Hosts
from tests.training.relayed_hosts import RelayedHosts

MB = 1_000_000
LINK = 20
"""MB/s of every host's link, in either direction: two cores carry the traffic of six hosts."""
SIZE = 80 * MB
PIECE = 2 * MB
"""Bytes of a piece: as many of them as 2.5 GB have in a run."""
ROUNDS = 2
PORT = 9000
COUNTS = (1, 2, 4)


def links(folder: Path) -> dict[str, float]:
    """Seconds of the slowest host until it has a file, by the number of hosts: by the relay, and by a plain copy."""
    figures = {"link": LINK * 1.0, "megabytes": SIZE / MB}
    with tempfile.TemporaryDirectory(dir=folder) as logs, Hosts(Path(logs)) as hosts:
        cluster = RelayedHosts(hosts, Path(logs), PIECE, MB)
        receivers = cluster.add(max(COUNTS))
        for host in (cluster.learner, *receivers):
            host.limit(LINK)
        for count in COUNTS:
            some = receivers[:count]
            cluster.seconds(cluster.publish(MB, some))  # their relays start; a host follows every version from now on
            figures[f"relay {count}"] = min(_relayed(cluster, some) for _ in range(ROUNDS))
            figures[f"copy {count}"] = _copied(cluster.learner, some, Path(logs))
        cluster.end()
    return figures


def _relayed(cluster: RelayedHosts, hosts: list[Host]) -> float:
    return max(cluster.seconds(cluster.publish(SIZE, hosts)).values())


def _copied(sender: Host, hosts: list[Host], folder: Path) -> float:
    report = folder / f"copied-to-{len(hosts)}"
    receiving = [host.start(sys.executable, "-m", __spec__.name, "receive", host.address) for host in hosts]
    sender.run(sys.executable, "-m", __spec__.name, "send", str(report), *(host.address for host in hosts))
    assert [process.wait() for process in receiving] == [0] * len(hosts)
    return float(report.read_text())


def receive(address: str) -> None:
    """Write what comes over a connection into shared memory, and answer when all is there."""
    with socket.create_server((address, PORT)) as server, tempfile.TemporaryFile(dir="/dev/shm") as file:
        connection, _ = server.accept()
        with connection:
            while data := connection.recv(MB):
                file.write(data)
            connection.sendall(b"done")


def send(report: Path, addresses: list[str]) -> None:
    """Send a file to all addresses at once, and write how many seconds passed until the last has it."""
    connections = [_connected(address) for address in addresses]
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
        file.write(bytes(SIZE))
        file.flush()

        def send_to(connection: socket.socket) -> None:
            with open(file.name, "rb") as content:
                connection.sendfile(content)
            connection.shutdown(socket.SHUT_WR)
            assert connection.recv(8) == b"done"

        threads = [threading.Thread(target=send_to, args=[connection]) for connection in connections]
        began = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    report.write_text(str(time.monotonic() - began))


def _connected(address: str) -> socket.socket:
    while True:
        try:
            return socket.create_connection((address, PORT))
        except ConnectionRefusedError:
            time.sleep(0.1)  # it has not begun to listen


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["receive", address]:
            receive(address)
        case ["send", report, *addresses]:
            send(Path(report), addresses)
        case [_, folder]:
            print(json.dumps(links(Path(folder))))
