"""Nodes: all of them see the run folder and the initial checkpoint, or training does not begin; the own one lives."""

import asyncio

import psutil
import pytest

from tasks.training.cluster.nodes import NodeLostError, NotSharedError, nodes_that_lack, seen_by_all, this_node_lives
from tests.training.processes import role


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return folder


@pytest.fixture
def run_folder(tmp_path):
    return tmp_path / "runs" / "abc"


def test_a_model_that_every_node_sees_stays_where_it_is(model, run_folder):
    assert seen_by_all(model, run_folder, lambda path: [] if path.exists() else ["10.0.0.2"]) == model
    assert list(run_folder.iterdir()) == []


def test_a_model_on_the_disk_of_one_node_is_copied_to_the_run_folder(model, run_folder):
    def lacking(path):
        return [] if path.is_relative_to(run_folder) else ["10.0.0.2"]

    interrupted = run_folder / "model.partial"
    interrupted.mkdir(parents=True)
    (interrupted / "half").touch()
    for _ in range(2):  # the next attempt finds it
        assert seen_by_all(model, run_folder, lacking) == run_folder / "model"
        assert [path.name for path in (run_folder / "model").iterdir()] == ["config.json"]


def test_a_run_folder_that_a_node_does_not_see_is_an_error_that_names_the_option(model, run_folder, monkeypatch):
    monkeypatch.delenv("RLVR_RUNS", raising=False)
    with pytest.raises(
        NotSharedError, match=r"of which 10\.0\.0\.2, 10\.0\.0\.3 do not see .*/runs/abc: RLVR_RUNS has to"
    ):
        seen_by_all(model, run_folder, lambda _: ["10.0.0.3", "10.0.0.2"])
    assert list(run_folder.iterdir()) == []


@pytest.mark.complete
@pytest.mark.engine
def test_the_death_of_the_controllers_own_raylet_is_noticed_and_named():
    import ray

    ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)
    (raylet,) = (each for each in psutil.Process().children(recursive=True) if role(each) == "raylet")

    async def watched():
        watch = asyncio.create_task(this_node_lives())
        await asyncio.sleep(1)
        assert not watch.done()
        raylet.kill()
        await watch

    try:
        with pytest.raises(NodeLostError, match="Ray counts the controller's node as dead"):
            asyncio.run(watched())
    finally:
        ray.shutdown()


@pytest.mark.complete
@pytest.mark.engine
def test_every_node_of_a_cluster_is_asked(model, run_folder):
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    try:
        cluster.add_node(num_cpus=1)
        ray.init(address=cluster.address, log_to_driver=False)
        assert nodes_that_lack(model) == []
        assert len(nodes_that_lack(model / "nothing")) == 2
        assert seen_by_all(model, run_folder) == model
    finally:
        ray.shutdown()
        cluster.shutdown()
