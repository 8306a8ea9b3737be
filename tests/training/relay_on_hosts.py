"""The driver of a relay on the Ray cluster of its host: `python -m tests.training.relay_on_hosts ORDER`, a JSON file.

It publishes versions of random bytes, as the lines of its order name them, and ends with a line `{}`. Of a version that
has arrived a line in `done.jsonl` beside the order has the seconds.
"""

import asyncio
import hashlib
import json
import os
import sys
import time
from pathlib import Path

from tasks.storage.durable import write_whole
from tasks.training.actors.relayed_weights import RelayedWeights
from tasks.training.cluster.nodes import list_living_nodes
from tasks.training.cluster.relay import RelayNodes
from tasks.training.runtime.timeouts import NO_LIMIT

POLL_SECONDS = 0.02


def write(path: str, size: int) -> str:
    """Write random bytes, as the learner writes weights; return their digest."""
    content = os.urandom(size)
    with write_whole(Path(path)) as partial:
        partial.write_bytes(content)
    return hashlib.sha256(content).hexdigest()


def digest(path: str) -> str:
    """The digest of a file."""
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def on(node: str, function, *arguments):
    """Call a function on a node."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    where = NodeAffinitySchedulingStrategy(node, soft=False)
    return ray.remote(num_cpus=0)(function).options(scheduling_strategy=where).remote(*arguments)


def nodes() -> dict[str, str]:
    """Ids of the living nodes, by address."""
    return {node["NodeManagerAddress"]: node["NodeID"] for node in list_living_nodes()}


class Driver:
    """The relay, and the orders that it has carried out."""

    def __init__(self, folder: Path, model: Path, piece_bytes: int) -> None:
        self._folder = folder
        self._relays = RelayNodes(model, 0, piece_bytes)
        self._weights = RelayedWeights(self._relays.folder, self._relays.of, piece_bytes)
        self._model = str(model / "weights")

    async def carry_out(self, order: dict) -> None:
        """Publish `version`, of `size` bytes, which the host `origin` has; wait until the hosts `to` have it."""
        known = nodes()
        ids = {address: known[address] for address in order["to"]}
        origin, version = known[order["origin"]], order["version"]
        await asyncio.gather(*(self._relays.prepare(node) for node in (origin, *ids.values())))
        for node in ids.values():
            self._weights.follow(node)
        path = str(self._weights.path(version))
        written = await on(origin, write, path, order["size"])
        (self._folder / f"published{version}").touch()
        began = time.monotonic()
        await self._weights.publish(version, origin)
        seconds = {}

        async def arrive(address: str, node: str) -> None:
            await self._weights.wait_for_newer(version - 1, node, NO_LIMIT)
            seconds[address] = time.monotonic() - began

        waits = [arrive(address, node) for address, node in ids.items() if address in order["wait"]]
        await asyncio.gather(*waits)
        for address in order["wait"]:
            assert await on(ids[address], digest, path) == written
            assert await on(ids[address], digest, self._model) == digest(self._model)
        with (self._folder / "done.jsonl").open("a") as file:
            file.write(json.dumps({"version": version, "seconds": seconds}) + "\n")

    def end(self) -> None:
        """Nothing is left on any host."""
        self._weights.close()
        self._relays.shutdown()


async def main(path: Path) -> None:
    """Carry out the lines of a file as they come."""
    import ray

    ray.init(address="auto", log_to_driver=False)
    settings = json.loads((path.parent / "settings.json").read_text())
    model = Path(settings["model"])
    model.mkdir(parents=True, exist_ok=True)
    (model / "weights").write_bytes(os.urandom(settings["model_bytes"]))
    driver = Driver(path.parent, model, settings["piece_bytes"])
    carried_out = 0
    while True:
        lines = path.read_text().splitlines()
        if len(lines) == carried_out:
            await asyncio.sleep(POLL_SECONDS)
            continue
        if not (order := json.loads(lines[carried_out])):
            break
        await driver.carry_out(order)
        carried_out += 1
    driver.end()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
