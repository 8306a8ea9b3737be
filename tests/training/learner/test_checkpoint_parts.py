"""Checkpoints of ranks whose nodes share nothing but a bucket: each uploads its part, and gets it on another node."""

import asyncio
import errno
import shutil
from functools import partial
from pathlib import Path

import pytest

from tasks.recipe.run import TrainingConfig
from tasks.storage.durable import WriteError
from tasks.storage.stored_files import StoredFile, StoreError
from tasks.training.learner.checkpoint_shards import LearnerShards, ShardUploadError
from tasks.training.learner.client import LearnerLostError, RayLearner
from tasks.training.learner.packing import RowOptions
from tasks.training.learner.rank_files import RankFiles
from tasks.training.learner.restartable import RestartingLearner
from tasks.training.learner.row_cost import TOKENS
from tasks.training.learner.universal import TAG, make_universal_path
from tasks.training.records.checkpoint import Checkpoints
from tasks.training.records.identity import run_setup
from tasks.training.records.remote_store import RunStore
from tasks.training.records.run_state import RunState
from tasks.training.records.saved_groups import make_groups_table
from tests.object_store import BUCKET, object_store
from tests.training.records.test_remote_store import PLACE, connect

pytestmark = pytest.mark.long

RANKS = 2


@pytest.fixture(scope="module")
def server():
    with object_store() as store:
        yield store


@pytest.fixture
def bucket(server):
    """Empty: moto keeps what the test before has put there."""
    objects = server.keys()
    for key in objects:
        connect(server).rm_file(f"{BUCKET}/{key}")
    return server


class Rank:
    """In place of a `LearnerRank`: its state is a text. A path of the run folder is one on the disk of its node."""

    def __init__(self, number, node, cluster):
        self.number, self.node, self.cluster = number, node, cluster
        self.state, self.fetches, self.full = "initial", [], False
        for name in ("location", "address", "is_written", "uploaded_files"):
            setattr(self, name, Method(getattr(self, f"_{name}")))
        for name in ("setup", "save", "fetch", "export", "load"):
            setattr(self, name, Numbered(getattr(self, f"_{name}")))

    def _location(self):
        return self.node, ""

    def _address(self):
        return "", 0

    def _setup(self, _rank, _ranks, _address):
        return RowOptions(share_prompts=False, alone=False, cost=TOKENS)

    def _save(self, folder, upload):
        self._files, self._upload = self._write(Path(folder)), upload
        self._folder = folder

    def _write(self, folder):
        own = {f"zero_pp_rank_{self.number}_mp_rank_00_optim_states.pt": f"{self.state}, rank {self.number}"}
        common = {"mp_rank_00_model_states.pt": self.state} if self.number == 0 else {}
        for name, text in {**own, **common}.items():
            path = self.disk(folder) / TAG / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            yield path

    def _is_written(self):
        if self.full:
            raise WriteError(f"{self.node}: {OSError(errno.ENOSPC, 'No space left on device')}")
        self._files = list(self._files)
        return True

    def _uploaded_files(self):
        return self._upload.put(self.disk(self._folder), self._files)

    def _fetch(self, upload, folder, files):
        folder = self.disk(folder)
        self.fetches.append(sorted(Path(name).name for name in files if not (folder / name).exists()))
        upload.fetch(folder, files)

    def _export(self, folder):
        if self.number == 0:
            self.disk(folder).mkdir(parents=True)
            (self.disk(folder) / "model").write_text(self.state)

    def _load(self, folder):
        folder = self.disk(folder) / TAG
        self.state = (folder / "mp_rank_00_model_states.pt").read_text()
        own = (folder / f"zero_pp_rank_{self.number}_mp_rank_00_optim_states.pt").read_text()
        assert own == f"{self.state}, rank {self.number}"

    def disk(self, path):
        return self.cluster.on_node(self.node, path)


class Method:
    """A method of a rank, as a handle of it has it."""

    def __init__(self, call):
        self._call = call

    async def remote(self, *arguments):
        return self._call(*arguments)


class Numbered(Method):
    """A method whose first argument is the number of the call."""

    async def remote(self, _number, *arguments):
        return self._call(*arguments)


class Cluster:
    """A controller with its run folder, and ranks on nodes with disks of their own: a `RankNodes`."""

    def __init__(self, folder, bucket, *nodes, waits=()):
        self.folder, self.run = folder, folder / "controller" / "run"
        self.run.mkdir(parents=True, exist_ok=True)
        self.places = list(nodes)
        self.ranks = []
        self.storage = connect(bucket)
        self.store = RunStore(self.storage, PLACE, self.run, waits)

    def on_node(self, node, path):
        return self.folder / node / Path(path).relative_to(self.run)

    def __enter__(self):
        self.store.__enter__()
        self.restored = self.store.restore()
        self.checkpoints = Checkpoints(self.run / "checkpoints", self.store.save)
        config = TrainingConfig(learner={"ranks": RANKS})
        self.learner = RestartingLearner(
            RayLearner(self._create, config, files=RankFiles(self.run, self.store.uploads, self)), config
        )
        return self

    def __exit__(self, *about):
        self.store.__exit__(*about)

    def _create(self, number):
        self.ranks[number:] = [Rank(number, self.places[number], self)]
        return self.ranks[number]

    async def prepare_learner(self, nodes, run_folder, *, needs_folder):
        return set(nodes)

    async def bring(self, path, nodes):
        for node in nodes:
            target = self.on_node(node, path)
            target.parent.mkdir(parents=True, exist_ok=True)
            (shutil.copytree if path.is_dir() else shutil.copy)(path, target)

    async def remove(self, path, nodes):
        for node in nodes:
            shutil.rmtree(self.on_node(node, path))

    async def collect(self, path, node):
        shutil.move(self.on_node(node, path), path)

    def keep_only(self, folder, names):
        for node in self.places:
            for item in self.on_node(node, folder).glob("*"):
                if item.name not in names:
                    shutil.rmtree(item)

    async def save(self, version, written=True):
        """Take a checkpoint of this version, as the controller does; `written`: wait for its end."""
        for rank in self.ranks:
            rank.state = f"state {version}"
        for name in ("ledger.jsonl", "metrics.jsonl"):
            (self.run / name).touch()
        state = RunState.begin(run_setup(TrainingConfig())).model_copy(update={"version": version})
        begun = await self.checkpoints.begin(state, make_groups_table([]), self.learner)
        if written and await self.learner.wait_until_written():
            checkpoint = await self.checkpoints.complete(begun)
            self.learner.saved(Checkpoints.find_learner_folder(checkpoint))
            await self.checkpoints.settle(checkpoint)

    def states(self):
        return [rank.state for rank in self.ranks]


def saved(cluster, *versions):
    """Start the ranks, and take checkpoints."""

    async def main():
        await cluster.learner.start()
        for version in versions:
            await cluster.save(version)

    with cluster:
        asyncio.run(main())


def resume(cluster):
    """Go on from the newest checkpoint; the version that came from the bucket."""

    async def main():
        await cluster.learner.start()
        await cluster.learner.load(Checkpoints.find_learner_folder(cluster.checkpoints.find_newest()))

    with cluster:
        asyncio.run(main())
    return cluster.restored


def key_of(bucket, version, name):
    """The key of a file of a checkpoint's only upload."""
    [key] = [key for key in bucket.keys(f"rlvr-runs/abc/step_{version:08d}.") if key.endswith(name)]
    return f"{BUCKET}/{key}"


def test_ranks_on_other_hosts_fetch_their_parts_and_the_controller_none(bucket, tmp_path):
    saved(Cluster(tmp_path / "first", bucket, "a", "b"), 1, 2)
    learner = tmp_path / "first" / "controller" / "run" / "checkpoints" / "step_00000002" / "learner"
    assert [path.name for path in learner.iterdir()] == ["parts.json"]
    other = Cluster(tmp_path / "second", bucket, "c", "d")
    assert resume(other) == 2
    assert other.states() == ["state 2"] * RANKS
    files = [f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt" for rank in range(RANKS)]
    common = "mp_rank_00_model_states.pt"
    assert [rank.fetches for rank in other.ranks] == [[[common, files[0]]], [[common, files[1]]]]
    assert not list((other.run / "checkpoints").rglob("*.pt"))


def test_a_rank_that_is_replaced_on_another_node_fetches_its_part_and_one_on_the_same_node_nothing(
    bucket,
    tmp_path,
    monkeypatch,
):
    monkeypatch.setattr("ray.kill", lambda _handle: None)

    async def main():
        await cluster.learner.start()
        await cluster.save(1)
        cluster.places = ["a", "c"]
        await cluster.learner._restore(LearnerLostError("a host was lost"))

    with Cluster(tmp_path, bucket, "a", "b") as cluster:
        asyncio.run(main())
        own = "zero_pp_rank_1_mp_rank_00_optim_states.pt"
        assert [rank.fetches for rank in cluster.ranks] == [[[]], [["mp_rank_00_model_states.pt", own]]]
        assert cluster.states() == ["state 1"] * RANKS


def test_only_the_newest_two_stay_on_nodes_and_on_storage(bucket, tmp_path):
    cluster = Cluster(tmp_path, bucket, "a", "b")
    saved(cluster, 1, 2, 3, 4)
    for node in ("a", "b"):  # the oldest goes when the next is begun
        names = sorted(path.name.partition(".")[0] for path in (tmp_path / node / "parts").iterdir())
        assert names == ["step_00000002", "step_00000003", "step_00000004"]
    keys = {key.split("/")[2].partition(".")[0] for key in bucket.keys("rlvr-runs/abc/step_")}
    assert keys == {"step_00000003", "step_00000004"}


def test_a_run_that_is_killed_between_the_uploads_of_two_parts_goes_on_from_the_checkpoint_before(
    bucket,
    tmp_path,
):
    class KilledError(BaseException):
        pass

    def kill():
        raise KilledError

    async def main():
        await cluster.learner.start()
        await cluster.save(1)
        cluster.ranks[1].uploaded_files = Method(kill)
        await cluster.save(2)

    with pytest.raises(KilledError), Cluster(tmp_path / "first", bucket, "a", "b") as cluster:
        asyncio.run(main())
    assert key_of(bucket, 2, "zero_pp_rank_0_mp_rank_00_optim_states.pt")
    other = Cluster(tmp_path / "second", bucket, "c", "d")
    assert resume(other) == 1
    assert other.states() == ["state 1"] * RANKS


@pytest.mark.parametrize("content", [None, b"short"])
def test_a_manifest_without_a_whole_part_counts_as_none(bucket, tmp_path, caplog, content):
    first = Cluster(tmp_path / "first", bucket, "a", "b")
    saved(first, 1, 2)
    part = key_of(bucket, 2, "zero_pp_rank_1_mp_rank_00_optim_states.pt")
    first.storage.rm_file(part) if content is None else first.storage.pipe_file(part, content)
    other = Cluster(tmp_path / "second", bucket, "c", "d")
    assert resume(other) == 1
    assert "is skipped for the checkpoint before it: rlvr/zero_pp_rank_1_mp_rank_00_optim_states.pt" in caplog.text
    again = Cluster(tmp_path / "first", bucket, "e", "f")  # whose run folder has both, but not the parts
    assert resume(again) is None
    assert again.states() == ["state 1"] * RANKS


def test_a_part_with_other_content_ends_the_attempt_and_the_next_goes_on_from_the_checkpoint_before(
    bucket,
    tmp_path,
):
    first = Cluster(tmp_path / "first", bucket, "a", "b")
    saved(first, 1, 2)
    part = key_of(bucket, 2, "zero_pp_rank_1_mp_rank_00_optim_states.pt")
    first.storage.pipe_file(part, b"x" * len("state 2, rank 1"))
    second = tmp_path / "second"
    with pytest.raises(StoreError, match=r"rank_1.* is not what was uploaded; the next attempt continues from"):
        resume(Cluster(second, bucket, "c", "d"))
    assert resume(Cluster(second, bucket, "c", "d")) == 1


def test_storage_that_is_away_for_seconds_costs_nothing_and_for_longer_a_checkpoint(
    bucket,
    tmp_path,
    caplog,
):
    async def main():
        await cluster.learner.start()
        cluster.storage.failures = 2
        await cluster.save(1)
        assert cluster.storage.failures == 0
        cluster.storage.failures = 1000  # more than ranks and the controller, which uploads in a thread, try together
        with pytest.raises(ShardUploadError):
            await cluster.save(2)
        cluster.storage.failures = 0
        await cluster.save(3)

    with Cluster(tmp_path / "first", bucket, "a", "b", waits=(0.0, 0.0)) as cluster:
        asyncio.run(main())
    assert "a checkpoint is lost: " in caplog.text
    assert resume(Cluster(tmp_path / "second", bucket, "c", "d")) == 3
    assert not list(bucket.keys("rlvr-runs/abc/step_00000002."))


def test_a_disk_that_is_full_on_one_node_ends_the_run_with_the_checkpoint_before(bucket, tmp_path):
    async def main():
        await cluster.learner.start()
        await cluster.save(1)
        cluster.ranks[1].full = True
        await cluster.save(2)

    with pytest.raises(WriteError, match=r"b: .*No space left"), Cluster(tmp_path / "one", bucket, "a", "b") as cluster:
        asyncio.run(main())
    assert resume(Cluster(tmp_path / "two", bucket, "c", "d")) == 1


def test_a_policy_that_rank_0_writes_on_its_node_arrives_in_the_run_folder(bucket, tmp_path):
    async def main():
        await cluster.learner.start()
        await cluster.learner.export(cluster.run / "policy.partial")

    with Cluster(tmp_path, bucket, "a", "b") as cluster:
        asyncio.run(main())
    assert (cluster.run / "policy.partial" / "model").read_text() == "initial"
    assert not list((tmp_path / "a").iterdir())


def test_what_was_converted_or_saved_on_one_node_is_copied_to_nodes_that_do_not_see_it_and_removed_again(
    bucket,
    tmp_path,
):
    cluster = Cluster(tmp_path, bucket, "a", "b")
    learner = cluster.run / "checkpoints" / "step_00000001" / "learner"
    for folder in (learner / TAG, make_universal_path(learner)):
        folder.mkdir(parents=True)
        (folder / "state").touch()
    (learner / "reference-00000-of-00001.safetensors").touch()
    files = RankFiles(cluster.run, None, cluster)

    def on_nodes():
        return [sorted(p.name for p in cluster.on_node(n, learner).iterdir()) for n in ("a", "b")]

    async def main():
        await files.prepare(["a", "b"])
        source = await files.source(learner)
        assert source.folder == learner
        assert on_nodes() == [["reference-00000-of-00001.safetensors", "universal"]] * 2
        cluster.remove = partial(_remove, cluster)
        await files.remove_copies(source)
        assert on_nodes() == [[], []]
        assert make_universal_path(learner).is_dir()

    asyncio.run(main())


async def _remove(cluster, path, nodes):
    for target in (cluster.on_node(node, path) for node in nodes):
        shutil.rmtree(target) if target.is_dir() else target.unlink()


def test_each_rank_fetches_its_own_files_and_one_of_each_node_those_of_all():
    file = StoredFile(size=1, sha256="0")
    own = [f"rlvr/bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt" for rank in range(11)]
    common = ["rlvr/mp_rank_00_model_states.pt", "reference-00000-of-00001.safetensors"]
    parts = LearnerShards(address="s3://b/r", upload="step_1.x", files=dict.fromkeys([*own, *common], file))
    by_rank = parts.split_by_rank(["a"] * 8 + ["b"] * 3)
    assert [list(files) for files in by_rank] == [
        [own[rank], *(common if rank in (0, 8) else [])] for rank in range(11)
    ]
