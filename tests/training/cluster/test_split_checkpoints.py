"""A run on hosts that share nothing but an S3 server: a rank's host dies, then all of them, and the run goes on."""

import contextlib
import json
import re
import shutil
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from tasks.recipe.run import TrainingConfig
from tasks.tables.parquet import read_table
from tasks.tables.schemas import LEDGER
from tests.object_store import BUCKET, KEYS
from tests.training.hosts import TEMPORARY, Hosts, missing
from tests.training.mixtures import mixture
from tests.training.store_on_host import LIST_SECONDS, PORT

STEPS = 60
EVERY = 4
RECIPE = TrainingConfig.model_validate(
    {
        "steps": STEPS,
        "groups_per_step": 2,
        "sampling": {"samples": 4, "max_tokens": 16},
        "optimizer": {"learning_rate": 1e-6},
        "learner": {"ranks": 2, "cpu_threads": 1, "micro_batch_tokens": 256, "cpus": 2},
        "actors": {"count": 1, "cpus": 1, "engine": {"max_model_len": 64, "max_num_seqs": 16, "cpu_threads": 1}},
        "alarms": {"max_truncated": None},
        "checkpoint_every": 100,
        "recover_every": EVERY,
        "stall_seconds": 400,
    }
)
WORDS = ("sea", "river", "rain", "dog", "fox", "sum", "word", "answer")
PATIENCE_SECONDS = 240
"""For what has to happen sooner or later; Ray takes half a minute to find a node dead, a lease a minute to grow old."""
FOLDER = f"{TEMPORARY}/runs/abc"
"""The run folder, on the disk of each host; `TEMPORARY` is one of its own."""


class Attempt:
    """A cluster of a head, two hosts of a rank each and one of an engine, and the run on it."""

    def __init__(self, hosts, storage, model, prompts, folder):
        self._hosts = hosts
        self.head = hosts.add()
        assert self.head.start_ray(cpus=0).wait() == 0, self.head.log.read_text()
        self.first, self.second, self.engine = self.add(2, 2, 1)
        shutil.copytree(model, self.on(self.head, f"{TEMPORARY}/model"))
        shutil.copy(prompts, self.on(self.head, f"{TEMPORARY}/prompts.parquet"))
        order = {
            "recipe": RECIPE.model_dump(mode="json"),
            "model": f"{TEMPORARY}/model",
            "prompts": f"{TEMPORARY}/prompts.parquet",
            "folder": FOLDER,
            "address": f"s3://{BUCKET}/runs/abc",
            "storage": {
                "endpoint_url": f"http://{storage.address}:{PORT}",
                "key": KEYS["aws_access_key_id"],
                "secret": KEYS["aws_secret_access_key"],
            },
        }
        path = folder / f"order-{self.head.address}.json"
        path.write_text(json.dumps(order))
        self._driver = self.head.start(sys.executable, "-m", "tests.training.driven_on_hosts", str(path))

    @staticmethod
    def on(host, path):
        """A path on a host's disk, as this process reaches it."""
        return Path(f"/proc/{host.first.pid}/root{path}")

    def add(self, *cpus):
        """Hosts of as many CPUs, nodes of the cluster; one after the other, as Ray gives each 30 seconds to start."""
        added = []
        for number in cpus:
            added.append(self._hosts.add())
            assert added[-1].start_ray(self.head, cpus=number).wait() == 0, added[-1].log.read_text()
        return added

    @property
    def steps(self):
        with contextlib.suppress(FileNotFoundError):
            return len(self.on(self.head, f"{FOLDER}/metrics.jsonl").read_text().splitlines())
        return 0

    def until(self, happened, seconds=PATIENCE_SECONDS):
        deadline = time.monotonic() + seconds
        while not happened():
            assert time.monotonic() < deadline, self.head.log.read_text()
            assert self._driver.poll() is None, self.head.log.read_text()
            time.sleep(0.2)

    def says(self, pattern):
        return re.search(pattern, self.head.log.read_text())

    def parts(self, host):
        """Versions of which a host has files of ranks."""
        folder = self.on(host, f"{FOLDER}/parts")
        return sorted(int(path.name[5:13]) for path in folder.iterdir()) if folder.exists() else []

    def end(self):
        self.on(self.head, f"{FOLDER}/hurry").touch()
        assert self._driver.wait(PATIENCE_SECONDS) == 0, self.head.log.read_text()


@pytest.mark.complete
@pytest.mark.long
@pytest.mark.engine
@pytest.mark.timeout(900)
@pytest.mark.skipif(bool(missing()), reason=missing())
def test_a_rank_goes_on_on_another_host_and_the_run_on_other_hosts(tmp_path, tiny_model):
    prompts = mixture(tmp_path, [f"Write a sentence about the {word}" for word in WORDS])
    listed = tmp_path / "keys.json"

    def saved():
        """Versions of complete checkpoints on the storage."""
        keys = [key.split("/") for key in json.loads(listed.read_text())]
        return sorted(int(key[2][5:13]) for key in keys if key[-1] == "manifest.json")

    with Hosts(tmp_path) as hosts:
        storage = hosts.add()
        storage.start(sys.executable, "-m", "tests.training.store_on_host", str(listed))
        while not listed.exists():
            time.sleep(0.1)
        run = Attempt(hosts, storage, tiny_model, prompts, tmp_path)
        run.until(lambda: saved() and run.steps >= EVERY + 1)
        ranks = (run.first, run.second)
        assert ["learner rank" in host.roles() for host in ranks] == [True, True]
        assert not list(run.on(run.head, f"{FOLDER}/checkpoints").rglob("*.pt"))

        [room] = run.add(2)
        run.second.kill()
        run.until(lambda: run.says("the learner goes back to step_"))
        before = run.steps
        run.until(lambda: run.steps >= before + EVERY and saved()[-1] > before)
        assert "learner rank" in room.roles()
        assert len(saved()) <= 3  # an older one is about to go
        assert len(run.parts(run.first)) <= 3
        for host in (run.head, run.engine, run.first, room):
            host.kill()

        time.sleep(3 * LIST_SECONDS)
        newest = saved()[-1]
        again = Attempt(hosts, storage, tiny_model, prompts, tmp_path)
        again.until(lambda: again.steps > newest)
        assert set(again.parts(again.first)) >= {newest}
        again.end()
        folder = again.on(again.head, FOLDER)
        assert int((folder / "resumed_from").read_text()) == newest
        assert {path.name for path in (folder / "policy").iterdir()} >= {"config.json", "model.safetensors"}
        rows = read_table(folder / "ledger.parquet", LEDGER).to_pylist()
        assert [row["group"] for row in rows] == list(range(len(rows)))
        trained = Counter(row["step"] for row in rows if row["fate"] == "trained")
        assert trained == dict.fromkeys(range(STEPS), RECIPE.groups_per_step)
        metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        assert [row["step"] for row in metrics] == list(range(STEPS))
        assert sum(row["learner_restarts"] for row in metrics) == 1
        deadline = time.monotonic() + 10
        while saved() != [STEPS]:
            assert time.monotonic() < deadline, saved()
            time.sleep(0.5)
