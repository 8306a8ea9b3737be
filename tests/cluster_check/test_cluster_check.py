"""The check of a cluster: each check passes with one sentence, and is made to fail once, where it has another."""

import json
import subprocess
import sys
from dataclasses import replace

import fsspec
import pytest

from tasks.cluster_check import checks, network, nodes, services
from tasks.cluster_check.checks import ClusterCheckError
from tasks.cluster_check.network import Reduction
from tasks.cluster_check.nodes import Disk, NodeFacts
from tasks.cluster_check.services import HubName
from tasks.config.loading import load_yaml, parse
from tasks.gpu_check.results import Findings, SkippedError, format_table, run_check
from tasks.inputs.files import DATA_SPECS, RECIPES, DataFile, Recipe, load_quickstart
from tasks.machine.image import ACCELERATOR, IN_A_POD, NAME
from tasks.training.cluster import disk
from tests.paths import ROOT

GIB = 2**30
NODE = NodeFacts(
    "node-a",
    code="c0de" * 16,
    versions={"torch": "2.13.0", "ray": "2.60.0"},
    gpus=("NVIDIA H100 80GB HBM3",) * 8,
    cuda="13.0",
    driver="580.65.06",
    shared_memory=64 * GIB,
    disks=dict.fromkeys(disk.FOLDERS, Disk(1, 300 * GIB)),
)
OTHER = replace(NODE, name="node-b")


def found(check, *arguments, **options):
    """The status and the sentence of a check."""
    result = run_check("a check", lambda findings: check(findings, *arguments, **options))
    return result.status, result.reason


# Images


def test_images_are_equal_on_all_nodes():
    sentence = "2 nodes with code c0dec0dec0de, torch 2.13.0, ray 2.60.0."
    assert found(nodes.check_images, [NODE, OTHER], NODE.code) == ("passed", sentence)
    assert found(nodes.check_images, [NODE, OTHER])[0] == "passed"


def test_another_image_on_a_node_is_a_fault():
    other = replace(OTHER, code="beef" * 16, versions={"torch": "2.12.0", "ray": "2.60.0"})
    assert found(nodes.check_images, [NODE, other]) == (
        "failed",
        "node-b has code beefbeefbeef, and node-a has c0dec0dec0de: give all pods of the run the same image. "
        "node-b has torch 2.12.0, and node-a has 2.13.0.",
    )


def test_other_code_than_was_registered_is_a_fault():
    status, sentence = found(nodes.check_images, [NODE], "beef" * 16)
    assert status == "failed"
    assert sentence.startswith("The image on node-a has code c0dec0dec0de, and beefbeefbeef is registered: register")


@pytest.mark.parametrize(
    ("kind", "gpus", "status"), [("cuda", 0, "failed"), ("none", 8, "failed"), ("none", 0, "passed")]
)
def test_an_image_without_engines_for_the_recipes_machines_is_a_fault(monkeypatch, kind, gpus, status):
    monkeypatch.setenv(IN_A_POD, "a1b2")
    monkeypatch.setenv(NAME, "registry.example/rlvr-training:v1")
    monkeypatch.setenv(ACCELERATOR, kind)
    found_status, sentence = found(nodes.check_accelerator, gpus)
    assert found_status == status
    assert status == "passed" or sentence.startswith("image registry.example/rlvr-training:v1 has engines for ")


# GPUs and driver


def test_gpus_and_driver():
    sentence = "16 of 16 GPUs (NVIDIA H100 80GB HBM3) with driver 580.65.06."
    assert found(nodes.check_gpus, [NODE, OTHER], 16) == ("passed", sentence)
    assert found(nodes.check_gpus, [NODE], 0)[0] == "skipped"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"driver": "550.54.14"},
            "node-a has NVIDIA's driver 550.54.14, and CUDA 13.0 needs 580 or later.",
        ),
        ({"gpus": NODE.gpus[:7]}, "torch can use 7 GPUs on 1 node, and the recipe needs 8."),
        (
            {"gpus": (), "cuda": ""},
            "node-a has NVIDIA's driver 580.65.06, and torch, which is built for CPUs, cannot use a GPU. "
            "torch can use 0 GPUs on 1 node, and the recipe needs 8.",
        ),
    ],
    ids=["an old driver", "too few GPUs", "torch for CPUs"],
)
def test_gpus_that_do_not_work_are_a_fault(changes, sentence):
    assert found(nodes.check_gpus, [replace(NODE, **changes)], 8) == ("failed", sentence)


# Shared memory


def test_shared_memory_holds_three_versions_of_the_weights():
    sentence = "2 nodes with 64.0 GiB or more of shared memory."
    assert found(nodes.check_shared_memory, [NODE, OTHER], 14.0) == ("passed", sentence)
    small = replace(OTHER, shared_memory=64 * 2**20)
    assert found(nodes.check_shared_memory, [NODE, small], 14.0) == (
        "failed",
        "node-b has 0.06 GiB of shared memory, and needs 50.00: three versions of the weights, and 1 GiB for each GPU "
        "(cluster.node.shared_memory_gib).",
    )


def test_on_a_node_alone_weights_need_no_shared_memory():
    alone = replace(NODE, shared_memory=64 * 2**20)
    assert found(nodes.check_shared_memory, [replace(alone, gpus=())], 0.25) == (
        "passed",
        "1 node with 0.06 GiB of shared memory: weights, 0.75 GiB, go through the run folder.",
    )
    status, sentence = found(nodes.check_shared_memory, [alone], 0.25)
    assert status == "failed"
    assert f"needs {len(NODE.gpus)}.00: 1 GiB for each GPU" in sentence


# Disk

HEAD = replace(NODE, name="run-head-x7")
MACHINES = [HEAD, replace(NODE, name="run-learner-worker-a"), replace(NODE, name="run-actors-worker-b")]
"""Pods of a Ray cluster as KubeRay names them, with disks that are large enough for `olmo3_think_7b`."""


def disk_check(machines, *, limited=True, **changes):
    training = parse(Recipe, json.dumps({"extends": "olmo3_think_7b", "learner.zero_stage": 3, **changes}))
    pods = checks.list_pods(machines, training.load_companion(DataFile), training)
    return found(nodes.check_disk, machines, pods, limited=limited)


def test_the_disk_of_each_node_holds_what_its_pod_stores():
    sentence = "3 nodes with 300 GiB or more of free disk; a run takes up to 170 GiB, and a resume with other "
    assert disk_check(MACHINES) == ("passed", f"{sentence}learner ranks 297 GiB.")
    small = [replace(machine, disks=dict.fromkeys(disk.FOLDERS, Disk(1, 110 * GIB))) for machine in MACHINES]
    assert disk_check([HEAD, *small[1:]]) == (
        "failed",
        "run-learner-worker-a (training: learner) has a disk with 110 GiB free, and needs 170 on it: 3 parts of "
        "checkpoints 122.3, model 13.6, a policy 13.6, slack 20.",
    )
    assert disk_check([small[0], MACHINES[1], small[2]])[0] == "passed", "the head needs 102, actors 34"


def test_a_limit_below_what_a_pod_stores_is_a_fault():
    node = {"cluster.node": {"disk_gib": 61}}
    status, sentence = disk_check(MACHINES, **node)
    assert status == "failed"
    assert sentence.startswith(
        "run-learner-worker-a (training: learner) has a limit of 61 GiB of disk (cluster.node.disk_gib), and needs "
    )
    assert "head" not in sentence
    assert "actors" not in sentence
    assert disk_check(MACHINES, limited=False, **node)[0] == "passed", "this machine is no pod"
    by_name = {**node, "cluster.node": {"disk_gib": 61, "template": "pods"}, "cluster.head": {"template": "pods"}}
    assert disk_check(MACHINES, **by_name)[0] == "passed", "its volumes are seen on the node alone"


def test_a_volume_for_runs_is_compared_with_what_lies_on_it():
    own = {"downloads": Disk(1, 40 * GIB), "hub": Disk(1, 40 * GIB)}
    machines = [replace(machine, disks={**own, "runs": Disk(2, 200 * GIB)}) for machine in MACHINES]
    assert disk_check(machines)[0] == "passed"
    machines[1] = replace(machines[1], disks={**own, "runs": Disk(2, 100 * GIB)})
    status, sentence = disk_check(machines)
    assert status == "failed"
    assert "has a disk with 100 GiB free, and needs 136 on it" in sentence


def test_a_model_of_unknown_size_is_skipped():
    source = {"model.source": {"kind": "hub", "name": "a/b", "revision": "c"}}
    assert disk_check(MACHINES, **source) == ("skipped", "The size of the model is not known before it is downloaded.")


def test_the_disk_of_a_folder_that_is_not_there_yet(tmp_path):
    here = nodes.measure_disk(tmp_path)
    assert nodes.measure_disk(tmp_path / "runs" / "a").device == here.device
    assert here.free > 0
    assert nodes.list_written_folders().keys() == disk.FOLDERS.keys()


# Sandbox


def test_a_node_without_a_sandbox_is_a_fault():
    assert found(nodes.check_sandbox, NODE, True) == ("passed", "node-a can run programs in a sandbox.")
    assert found(nodes.check_sandbox, NODE, False)[0] == "skipped"
    without = replace(NODE, sandbox="Landlock is older than version 4")
    assert found(nodes.check_sandbox, without, True) == (
        "failed",
        "node-a cannot run programs: Landlock is older than version 4.",
    )


def test_data_with_programs_needs_a_sandbox():
    assert checks.needs_sandbox(load_yaml(DataFile, DATA_SPECS / "dolci_think_rl_7b.yaml"))
    assert not checks.needs_sandbox(load_yaml(DataFile, DATA_SPECS / "gsm8k.yaml"))


# Network

LOGS = {
    "NET/IB/GDRDMA": "a:1:2 [0] NCCL INFO Using network IB\n"
    "a:1:2 [0] NCCL INFO Channel 00/0 : 7[7] -> 8[0] [send] via NET/IB/0/GDRDMA",
    "NET/IB": "a [0] NCCL INFO Channel 00/0 : 7[7] -> 8[0] [send] via NET/IB/0\n"
    "b [0] NCCL INFO Channel 00/0 : 8[0] -> 7[7] [receive] via NET/IB/3/GDRDMA",
    "NET/Socket": "a [0] NCCL INFO NET/IB : No device found.\na [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.4.51<0>\n"
    "a [0] NCCL INFO Assigned NET plugin Socket to comm\na [0] NCCL INFO Using network Socket",
    "NET/Libfabric": "a [0] NCCL INFO Initialized NET plugin Libfabric\na [0] NCCL INFO Using network Libfabric",
    "": "a [0] NCCL INFO Bootstrap : Using eth0:10.0.4.51<0>",
}


@pytest.mark.parametrize(("name", "log"), LOGS.items(), ids=LOGS)
def test_the_network_is_the_slowest_in_nccls_log(name, log):
    assert network.find_network(log) == name


def test_the_slowest_of_two_ranks_networks_counts():
    assert network.find_network("\n".join((LOGS["NET/IB/GDRDMA"], "via NET/Socket/1"))) == "NET/Socket"


REDUCTION = Reduction(16, 2, 256 << 20, 0.01, "nccl", "NET/IB/GDRDMA")


def test_the_bandwidth_of_an_all_reduce_by_hand():
    """16 ranks send and receive 2 x 15 / 16 of 256 MiB in 10 ms."""
    assert REDUCTION.bandwidth == pytest.approx(2 * 15 / 16 * 268_435_456 / 0.01)
    sentence = "An all-reduce of 256 MiB over 16 ranks on 2 nodes moves 50.33 GB/s a rank by NET/IB/GDRDMA (nccl)."
    assert found(network.check_network, REDUCTION, [NODE, OTHER]) == ("passed", sentence)


def test_tcp_beside_rdma_devices_is_a_fault():
    socket = replace(REDUCTION, network="NET/Socket", seconds=0.2)
    with_rdma = replace(NODE, rdma=("mlx5_0", "mlx5_1"))
    status, sentence = found(network.check_network, socket, [with_rdma, OTHER])
    assert status == "failed"
    assert sentence.startswith(
        "NCCL uses NET/Socket at 2.52 GB/s a rank, and the nodes have RDMA devices (mlx5_0, mlx5_1): the image needs"
    )
    assert found(network.check_network, socket, [NODE, OTHER])[0] == "passed"


def test_a_slow_network_is_a_fault():
    slow = replace(REDUCTION, seconds=1.0, network="NET/Socket")
    assert found(network.check_network, slow, [NODE]) == (
        "failed",
        "An all-reduce over 16 ranks on 2 nodes moves 0.50 GB/s a rank by NET/Socket, less than 1: the learner would "
        "mostly wait.",
    )
    assert found(network.check_network, replace(slow, library="gloo"), [NODE])[0] == "passed"


def test_ranks_fill_one_node_after_the_other():
    resources = {"a": {"CPU": 8}, "b": {"GPU": 2, "CPU": 8}, "c": {"GPU": 4, "CPU": 8}}
    assert network.choose_nodes(5, resources, gpus=True) == ["c"] * 4 + ["b"]
    assert network.choose_nodes(4, resources, gpus=False) == ["a", "b", "c", "a"]
    for ranks, gpus in ((1, False), (7, True)):
        with pytest.raises(SkippedError):
            network.choose_nodes(ranks, resources, gpus=gpus)
    resources["b"] |= {"rlvr_learner": 1}
    assert network.choose_nodes(2, resources, gpus=True) == ["b", "b"], "the learner's own machines"


# Storage


def test_storage_is_written_read_and_left_as_it_was(tmp_path):
    findings = Findings()
    services.check_storage(findings, fsspec.filesystem("file"), str(tmp_path / "runs"), size=16 << 20, least=0)
    assert not findings.faults
    assert findings.note.startswith(f"{tmp_path / 'runs'} is written at ")
    assert set(findings.figures) == {"written, MB/s", "read, MB/s"}
    assert list((tmp_path / "runs").iterdir()) == []


def test_storage_that_refuses_is_slow_or_changes_bytes_is_a_fault(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    system, folder = fsspec.filesystem("file"), str(tmp_path / "runs")
    status, sentence = found(services.check_storage, system, str(tmp_path / "file" / "runs"))
    assert status == "failed"
    assert sentence.startswith(f"{tmp_path / 'file' / 'runs'} cannot be written and read: NotADirectoryError: ")
    status, sentence = found(services.check_storage, system, folder, size=8 << 20, least=1e15)
    assert status == "failed"
    assert " MB/s, less than 1e+09: too slow." in sentence

    def changed(path, mode):
        return open(path if mode == "wb" else tmp_path / "file", mode)

    monkeypatch.setattr(system, "open", changed)
    status, sentence = found(services.check_storage, system, folder, size=8 << 20, least=0)
    assert (status, sentence) == ("failed", f"{folder} returns other bytes than were written to it.")


# Hub


def recipe(name):
    training = load_yaml(Recipe, RECIPES / f"{name}.yaml")
    return training.load_companion(DataFile), training


def test_the_repositories_of_a_run_are_asked_for(monkeypatch):
    names = services.list_hub_names(*recipe("olmo3_think_7b"))
    assert {"model", "dataset"} == {name.kind for name in names}
    assert services.list_hub_names(*recipe("quickstart")) == []
    assert found(services.check_hub, [])[0] == "skipped"

    def repo_info(_self, name, *, revision, repo_type, timeout):
        if name == "someone/gated":
            raise OSError(f"403 Client Error.\nAccess to {repo_type} {name} is restricted")

    monkeypatch.setattr("huggingface_hub.HfApi.repo_info", repo_info)
    open_one = HubName("model", "someone/open", "main")
    status, sentence = found(services.check_hub, [open_one])
    assert (status, sentence[:40]) == ("passed", "The hub provides all 1 repositories, in ")
    assert found(services.check_hub, [open_one, HubName("dataset", "someone/gated", None)]) == (
        "failed",
        "The hub does not provide dataset someone/gated: OSError: 403 Client Error. Access to dataset someone/gated is "
        "restricted.",
    )


# Secrets


def with_judge(url="https://judge.example/v1"):
    judge = {"model": "m", "url": url, "api_key_env": "JUDGE_KEY"}
    return parse(DataFile, json.dumps({"extends": "dolci_think_rl_7b", "verifiers.judge": judge}))


def test_secrets_that_options_name_must_be_set():
    training = load_quickstart()[1].model_copy(update={"trackers": ["wandb"]})
    needed = services.find_needed_secrets(with_judge(), training, "HF_TOKEN=rlvr/hub JUDGE_KEY=rlvr/judge")
    assert set(needed) == {"HF_TOKEN", "JUDGE_KEY", "WANDB_API_KEY"}
    assert found(services.check_secrets, needed, dict.fromkeys(needed, "x")) == (
        "passed",
        "HF_TOKEN, JUDGE_KEY, WANDB_API_KEY are set.",
    )
    status, sentence = found(services.check_secrets, needed, {"HF_TOKEN": "x", "JUDGE_KEY": ""})
    assert status == "failed"
    assert sentence.startswith(
        "JUDGE_KEY (verifiers.judge.api_key_env) is not set here: name its secret in RLVR_SECRETS where you register. "
        "WANDB_API_KEY (trackers: wandb)"
    )
    assert services.find_needed_secrets(*load_quickstart()[:2]) == {}
    assert found(services.check_secrets, {})[0] == "skipped"


# Judge


def test_an_endpoint_that_does_not_answer_is_a_fault(monkeypatch):
    for variable in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(variable, raising=False)
    silent = with_judge("http://127.0.0.1:9/v1")
    status, sentence = found(services.check_endpoint, silent, on_this_machine=True)
    assert status == "failed"
    assert "verifiers.judge.url = 'http://127.0.0.1:9/v1': no judge answers (" in sentence
    status, sentence = found(services.check_endpoint, silent, on_this_machine=False)
    assert "on a cluster this is the pod itself, where no judge runs" in sentence
    without = {
        "gsm8k": "No source needs a judge.",
        "quickstart": "The run serves its judge itself.",
    }
    for name, reason in without.items():
        data = load_yaml(DataFile, DATA_SPECS / f"{name}.yaml")
        assert found(services.check_endpoint, data, on_this_machine=True) == ("skipped", reason)


def test_an_endpoint_that_answers(monkeypatch):
    monkeypatch.setattr(services, "check_judge", lambda *_, **__: None)
    status, sentence = found(services.check_endpoint, with_judge(), on_this_machine=False)
    assert status == "passed"
    assert sentence.startswith("The judge's endpoint https://judge.example/v1 accepts a connection in ")


# KubeRay


@pytest.mark.parametrize(
    ("tags", "status", "sentence"),
    [
        ("kuberay_version=v1.5.0;kuberay_crd=RayJob", "passed", "KubeRay is v1.5.0."),
        ("kuberay_crd=RayJob;kuberay_version=v1.10.1", "passed", "KubeRay is v1.10.1."),
        (
            "kuberay_version=v1.4.2;kuberay_crd=RayJob",
            "failed",
            "KubeRay is v1.4.2, and a job whose head crashes would run for ever: install 1.5 or later.",
        ),
        (
            "",
            "skipped",
            "KubeRay's version is not known here; if Flyte's Ray plugin is enabled, it must be 1.5 or later.",
        ),
    ],
    ids=["new enough", "newer", "old", "not known"],
)
def test_the_version_of_kuberay(tags, status, sentence):
    assert found(services.check_kuberay, {services.KUBERAY_TAGS: tags}) == (status, sentence)


# All of them


def test_needed_gpus_are_those_of_learner_engines_and_judge():
    assert checks.count_needed_gpus(*recipe("quickstart")) == 0
    assert checks.count_needed_gpus(*recipe("one_gpu")) == 1
    data, training = recipe("olmo3_think_32b")
    assert checks.count_needed_gpus(data, training) == 64 + 20 * 8 + data.verifiers.judge_gpus


def test_the_verdict_has_the_sentence_of_each_check_that_failed():
    def good(findings):
        findings.note = "All is well."

    def bad(findings):
        findings.faults.append("The disk is full.")

    results = checks.parse_results([checks.run_checks({"network": good}), checks.run_checks({"storage": bad})])
    assert "passed   network" in format_table(results)
    assert "All is well." in format_table(results)
    rows = checks.make_deck_rows(results)
    assert [(row["check"], row["status"], row["result"]) for row in rows] == [
        ("network", "passed", "All is well."),
        ("storage", "failed", "The disk is full."),
    ]
    with pytest.raises(ClusterCheckError, match=r"^1 of 2 checks failed: storage: The disk is full$"):
        checks.require_all(results)
    checks.require_all(results[:1])


def test_every_check_of_machines_and_pods_has_a_name():
    data, training, _ = load_quickstart()
    storage = (fsspec.filesystem("file"), "runs")
    names = [
        *checks.make_machine_checks(data, training, [NODE], storage, on_this_machine=True),
        *checks.make_pod_checks(data, training, NODE),
    ]
    assert len(set(names)) == len(names) == 12


TWO_NODES = """
import json, ray
from dataclasses import asdict
from ray.cluster_utils import Cluster
from tasks.cluster_check.checks import collect_node_facts
from tasks.cluster_check.network import measure_reduction

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
cluster.add_node(num_cpus=1)
ray.init(address=cluster.address, log_to_driver=False)
measured = measure_reduction(2, gpus=False)
print(json.dumps([asdict(measured), *(node.code for node in collect_node_facts(sandbox=False))]))
ray.shutdown()
cluster.shutdown()
"""


@pytest.mark.engine
@pytest.mark.complete
def test_the_facts_of_two_nodes_and_an_all_reduce_between_them():
    done = subprocess.run([sys.executable, "-c", TWO_NODES], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    measured, *codes = json.loads(done.stdout.splitlines()[-1])
    assert (measured["ranks"], measured["nodes"], measured["library"]) == (2, 2, "gloo")
    assert 0 < measured["seconds"] < 60
    assert len(codes) == 2
    assert len(set(codes)) == 1


@pytest.mark.engine
@pytest.mark.complete
def test_the_workflow_checks_this_machine(tmp_path):
    command = ["run", "workflows/cluster_check.py", "cluster_check"]
    program = "from flytekit.clis.sdk_in_container.pyflyte import main; import sys; main(sys.argv[1:])"
    done = subprocess.run([sys.executable, "-c", program, *command], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    statuses = {
        line.split("  (")[0].split(maxsplit=1)[1]: line.split()[0] for line in done.stdout.splitlines() if " s)" in line
    }
    assert statuses["images of training"] == statuses["storage"] == statuses["shared memory"] == "passed"
    assert "failed" not in statuses.values()
