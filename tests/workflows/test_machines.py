"""The machines that a recipe and the other two files ask for, as Flyte is told of them while a run goes."""

import pytest
from flytekit.types.directory import FlyteDirectory
from flytekit.types.file import FlyteFile
from google.protobuf.json_format import MessageToDict

from tasks.cluster_check.task import check_machines
from tasks.config.loading import load_yaml
from tasks.inputs.files import RECIPES, DataFile, Recipe, load_quickstart
from tasks.inputs.pinning import (
    fingerprint_data,
    fingerprint_evaluation,
    fingerprint_recipe,
    pin_evaluation_file,
    pin_recipe,
    pin_sources,
)
from tasks.kubernetes.pod_templates import SHARED_MEMORY
from tasks.kubernetes.pods import PodConfig
from tasks.training.cluster.pods import check_judge_gpus
from tasks.training.task import train_policy
from tasks.verifiers.chat.config import JudgeConfig
from tests.workflows.jobs import literals, run
from workflows.checking import checking
from workflows.cluster_check import check_for
from workflows.data import compose_data as curate
from workflows.evaluation import compose_evaluation as evaluate
from workflows.training import compose_training as train

NODE = {"cpu": 8, "memory_gib": 100, "accelerator": "nvidia-h100", "shared_memory_gib": 10, "disk_gib": 200}


def judged_elsewhere():
    """The quickstart's data file with a judge at an address, which needs no GPU of ours."""
    data, _, _ = load_quickstart()
    judge = JudgeConfig(model="m", url="https://judge.example/v1")
    return data.model_copy(update={"verifiers": data.verifiers.model_copy(update={"judge": judge})})


def recipe(name):
    return load_yaml(Recipe, RECIPES / f"{name}.yaml")


@pytest.fixture
def nodes(monkeypatch, tmp_path):
    """What a dynamic task gives Flyte to run: its nodes by name, and the training task as it is then."""
    for task in (train_policy, check_machines):
        monkeypatch.setattr(task, "_task_config", task.task_config)  # an override outlives its node
    (tmp_path / "file").touch()

    def compiled(dynamic, **inputs):
        given = dict(zip(("data", "training", "evaluation"), load_quickstart(), strict=True)) | inputs
        given["data"] = fingerprint_data(pin_sources(given["data"]))
        given["training"] = fingerprint_recipe(pin_recipe(given["training"]))
        given["evaluation"] = fingerprint_evaluation(pin_evaluation_file(given["evaluation"]))
        given |= {"model": FlyteDirectory(str(tmp_path)), "policy": FlyteDirectory(str(tmp_path))}
        given |= {"mixture": FlyteFile(str(tmp_path / "file")), "heldout": FlyteFile(str(tmp_path / "file"))}
        types = dynamic.python_interface.inputs
        job = run(dynamic, literals(dynamic, **{name: given[name] for name in types}))
        training = [task for task in job.tasks if task.id.name.endswith(("train_policy", "check_machines"))]
        return {node.id: node for node in job.nodes}, training

    return compiled


def asked(node):
    node = node.array_node.node if node.HasField("array_node") else node  # of each shard
    requests = node.task_node.overrides.resources.requests
    assert requests == node.task_node.overrides.resources.limits
    return {MessageToDict(each)["name"]: each.value for each in requests}


def groups(training):
    [task] = training
    cluster = MessageToDict(task.custom)["rayCluster"]
    pods = {"head": cluster["headGroupSpec"]}
    pods |= {each["groupName"]: each for each in cluster.get("workerGroupSpec", [])}
    return {
        name: (pod.get("replicas"), pod["k8sPod"]["podSpec"]["containers"][0]["resources"]["requests"])
        for name, pod in pods.items()
    }


def test_the_quickstart_trains_in_one_pod_without_gpus(nodes):
    found, training = nodes(train)
    assert asked(found["learn"]) == {"CPU": "2", "MEMORY": "16Gi", "EPHEMERAL_STORAGE": "12Gi"}
    assert groups(training) == {"head": (None, {"cpu": "2", "memory": "16Gi", "ephemeral-storage": "12Gi"})}
    size = found["learn"].task_node.overrides.extended_resources.shared_memory.size_limit
    assert size == "2Gi", "three versions of half a GiB of weights in float32"


def test_a_model_is_checked_on_a_machine_of_the_cluster_with_the_gpus_of_one_engine(nodes):
    found, _ = nodes(checking)
    assert asked(found["check"]) == {"CPU": "2", "MEMORY": "16Gi", "EPHEMERAL_STORAGE": "6Gi"}
    found, _ = nodes(checking, training=recipe("olmo3_think_32b"))
    assert asked(found["check"]) == {"CPU": "64", "MEMORY": "512Gi", "GPU": "8", "EPHEMERAL_STORAGE": "141Gi"}


def test_olmo_3_32b_has_8_learner_and_20_inference_nodes_of_8_gpus(nodes):
    found, training = nodes(train, data=judged_elsewhere(), training=recipe("olmo3_think_32b"))
    node = {"cpu": "64", "memory": "512Gi", "nvidia.com/gpu": "8"}
    assert groups(training) == {
        "head": (None, {"cpu": "16", "memory": "32Gi", "ephemeral-storage": "1227Gi"}),
        "learner": (8, node | {"ephemeral-storage": "491Gi"}),
        "actors": (20, node | {"ephemeral-storage": "81Gi"}),
    }
    assert asked(found["learn"]) == {"CPU": "16", "MEMORY": "32Gi"}, "of the job's submitter, which stores nothing"


def test_a_cluster_is_checked_on_the_machines_of_training_and_a_pod_of_the_data_stages(nodes):
    files = {"data": judged_elsewhere(), "training": recipe("olmo3_think_32b")}
    found, checked = nodes(check_for, **files)
    assert set(found) == {"machines", "pod", "conclude"}
    assert groups(checked) == groups(nodes(train, **files)[1])
    assert asked(found["pod"]) == {"CPU": "1", "MEMORY": "4Gi"}


def test_a_machine_has_8_cores_and_64_gib_for_each_gpu_that_it_holds(nodes):
    found, _ = nodes(train, data=judged_elsewhere(), training=recipe("axolotl_lora"))
    assert asked(found["learn"]) == {"CPU": "16", "MEMORY": "128Gi", "GPU": "2", "EPHEMERAL_STORAGE": "29Gi"}
    assert found["learn"].task_node.overrides.extended_resources.shared_memory.size_limit == "16Gi"
    dapo = recipe("dapo_qwen25_32b")
    _, training = nodes(train, training=dapo)
    [memory] = training[0].custom["rayCluster"]["workerGroupSpec"][0]["k8sPod"]["podSpec"]["volumes"]
    assert memory["emptyDir"]["sizeLimit"] == "192Gi", "three versions of 61 GiB of weights, and 1 GiB for each GPU"
    assert groups(training)["head"][1]["memory"] == "32Gi", "10 steps of 8,192 responses between two checkpoints"
    _, training = nodes(train, training=dapo.model_copy(update={"recover_every": None}))
    assert groups(training)["head"][1]["memory"] == "48Gi", "25 steps of 8,192 responses between two checkpoints"


def test_the_judge_that_a_run_serves_has_gpus_beside_ranks_and_engines(nodes):
    data, _, _ = load_quickstart()

    def judged(gpus, **changes):
        server = {"tensor_parallel_size": gpus}
        verifiers = {"judge": {"model": "initial", "server": server}}
        options = data.model_dump(mode="json", exclude_unset=True) | {"verifiers": verifiers}
        return {"data": DataFile.model_validate(options), "training": Recipe.model_validate(changes)}

    found, _ = nodes(train, **judged(2, learner={"ranks": 4}))
    assert asked(found["learn"])["GPU"] == "7", "4 ranks, 1 engine, 2 of the judge"
    replicas = {}
    for gpus, count, span in ((2, 8, 1), (2, 7, 1), (1, 7, 1), (2, 1, 4)):
        actors = {"count": count, "engine": {"tensor_parallel_size": span}}
        _, training = nodes(train, **judged(gpus, learner={"ranks": 8}, actors=actors))
        replicas[gpus, count, span] = groups(training)["actors"][0]
    assert replicas == {(2, 8, 1): 2, (2, 7, 1): 2, (1, 7, 1): 1, (2, 1, 4): 1}


def test_what_finds_room_on_one_machine_is_one_pod_with_all_that_it_was_given(nodes):
    changes = {"learner": {"ranks": 2}, "actors": {"count": 3, "engine": {"tensor_parallel_size": 2}}}
    node = NODE | {"timeout_minutes": 90, "interruptible": True}
    small = Recipe.model_validate(changes | {"cluster": {"node": node}})
    found, training = nodes(train, data=judged_elsewhere(), training=small)
    assert asked(found["learn"]) == {"CPU": "8", "GPU": "8", "MEMORY": "100Gi", "EPHEMERAL_STORAGE": "200Gi"}
    assert set(groups(training)) == {"head"}
    extended = found["learn"].task_node.overrides.extended_resources
    assert extended.gpu_accelerator.device == "nvidia-h100"
    assert extended.shared_memory.size_limit == "10Gi"
    assert found["learn"].metadata.timeout.seconds == 5400
    assert found["learn"].metadata.interruptible


@pytest.mark.long
def test_where_training_has_gpus_difficulty_and_evaluation_have_one_for_each_that_an_engine_spans(nodes):
    data, _, evaluation = load_quickstart()
    assert data.difficulty.early_stopping
    wide = evaluation.model_copy(update={"engine": evaluation.engine.model_copy(update={"tensor_parallel_size": 4})})
    with_gpus = {"data": data, "training": recipe("grpo")}
    alone = {"data": judged_elsewhere(), "training": with_gpus["training"]}
    assert asked(nodes(curate, **alone)[0]["roll-out"])["GPU"] == "1"
    assert asked(nodes(curate, **with_gpus)[0]["roll-out"])["GPU"] == "2", "early stopping judges at once"
    after = nodes(evaluate, **with_gpus, evaluation=wide)[0]["after"]
    # 4 of the engine, and 1 of the judge, which judges while it generates
    assert asked(after) == {"CPU": "40", "MEMORY": "320Gi", "GPU": "5", "EPHEMERAL_STORAGE": "46Gi"}
    assert after.task_node.overrides.extended_resources.shared_memory.size_limit == "6Gi"
    small = wide.model_copy(update={"pod": PodConfig(cpu=3, memory_gib=50, disk_gib=9, shared_memory_gib=2)})
    after = nodes(evaluate, **with_gpus, evaluation=small)[0]["after"]
    assert asked(after) == {"CPU": "3", "MEMORY": "50Gi", "GPU": "5", "EPHEMERAL_STORAGE": "9Gi"}
    assert "GPU" not in asked(nodes(curate)[0]["roll-out"])


@pytest.mark.long
def test_judging_has_a_gpu_only_where_it_serves_the_judge(nodes):
    by_url = judged_elsewhere()
    assert asked(nodes(curate, training=recipe("grpo"))[0]["judge"])["GPU"] == "1"
    assert "GPU" not in asked(nodes(curate, data=by_url, training=recipe("grpo"))[0]["judge"])


@pytest.mark.long
def test_small_sources_are_read_in_one_pod_and_a_hub_data_set_in_its_own(nodes):
    found, _ = nodes(curate)
    assert list(found) == [
        "inputs",
        "source-0",
        "merge",
        "check",
        "split",
        "roll-out",
        "judge",
        "collect",
        "select",
        "compare",
        "mix",
    ]
    spec = load_quickstart()[0].model_dump(mode="json", exclude_unset=True)
    hub = {"kind": "huggingface", "dataset": "openai/gsm8k", "revision": "0" * 40, "config": "main"}
    spec["sources"].append({"name": "gsm8k", "domain": "math", "verifier": "math", "loader": hub})
    found, _ = nodes(curate, data=DataFile.model_validate(spec | {"pod": {"memory_gib": 5}}))
    assert {"source-0", "source-1"} <= set(found)
    assert asked(found["mix"])["MEMORY"] == "5Gi"


@pytest.mark.long
def test_sources_are_screened_each_by_itself_where_something_is_asked_of_them(nodes, tmp_path):
    spec = load_quickstart()[0].model_dump(mode="json", exclude_unset=True)
    questions = tmp_path / "questions.jsonl"
    questions.write_text('{"prompt": "What is half of 1?"}')
    named = {"name": "halves", "loader": {"kind": "jsonl", "path": str(questions)}}
    found, _ = nodes(curate, data=DataFile.model_validate(spec | {"evaluation_sets": [named]}))
    assert {"eval-set-0", "source-0", "screen-0"} <= set(found)
    assert set(found["screen-0"].upstream_node_ids) == {"inputs", "screening", "eval-set-0", "source-0"}
    assert "screen-0" in found["merge"].upstream_node_ids
    found, _ = nodes(curate, data=DataFile.model_validate(spec | {"cleaning": {"filters": {"max_words": 9}}}))
    assert "screen-0" in found


LONG = "a-source-whose-name-has-sixty-characters-" + "x" * 19
"""The name of a source, of 60 characters."""

LONGEST_ID = 20
"""Characters of the id of a node's execution, parents' ids included, that Flyte does not replace by a hash."""


@pytest.mark.parametrize(("dynamic", "parent"), [(curate, "data"), (train, "train"), (evaluate, "evaluation")])
def test_a_node_has_an_id_that_the_console_knows_whatever_names_the_files_hold(nodes, tmp_path, dynamic, parent):
    assert len(LONG) == 60
    (tmp_path / "questions.jsonl").write_text('{"prompt": "What is half of 1?"}')
    questions = {"name": f"{LONG}-as-well", "loader": {"kind": "jsonl", "path": str(tmp_path / "questions.jsonl")}}
    hub = {"kind": "huggingface", "dataset": "openai/gsm8k", "revision": "0" * 40, "config": "main"}
    source = {"name": LONG, "domain": "math", "verifier": "math", "loader": hub}
    compared = {LONG: {"model": {"source": {"kind": "hub", "name": "owner/model", "revision": "0" * 40}}}}
    spec = load_quickstart()[0].model_dump(mode="json", exclude_unset=True)
    spec["sources"].append(source)
    spec["evaluation_sets"] = [questions]
    spec["difficulty"] = {**spec["difficulty"], "compared": compared}
    compiled, _ = nodes(dynamic, data=DataFile.model_validate(spec))
    assert {name: f"{parent}-0-{name}" for name in compiled if len(f"{parent}-0-{name}") > LONGEST_ID} == {}
    if dynamic is curate:
        assert {"source-1", "screen-1", "eval-set-0", "model-0", "roll-out-0", "collect-0"} <= set(compiled)


def test_no_rollout_is_sampled_before_it_is_known_that_the_mixture_can_be_filled(nodes):
    found, _ = nodes(curate)
    assert set(found["split"].upstream_node_ids) == {"inputs", "merge", "check"}
    assert set(found["roll-out"].upstream_node_ids) == {"inputs", "split"}


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"cluster": {"gpus_per_node": 0, "node": {"cpu": 1}}}, r"cluster\.node\.cpu \(1\): .* reserve 2 cores"),
        ({"actors": {"engine": {"tensor_parallel_size": 16}}}, r"tensor_parallel_size \(16\).*gpus_per_node \(8\)"),
    ],
)
def test_a_cluster_on_which_a_process_would_wait_for_ever_is_refused(changes, problem):
    with pytest.raises(ValueError, match=problem):
        Recipe.model_validate(changes)


TEMPLATE = {
    "metadata": {"labels": {"team": "rl"}, "annotations": {"k8s.v1.cni.cncf.io/networks": "rdma"}},
    "serviceAccountName": "trainer",
    "nodeSelector": {"pool": "gpus"},
    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
    "volumes": [{"name": "models", "persistentVolumeClaim": {"claimName": "models"}}],
    "containers": [
        {
            "name": "primary",
            "env": [{"name": "NCCL_IB_HCA", "value": "mlx5"}],
            "resources": {"limits": {"rdma/ib": 1}},
            "volumeMounts": [{"name": "models", "mountPath": "/models"}],
        }
    ],
}
LABEL = "cloud.google.com/gke-accelerator"


def overridden(node):
    """The pod template that a node gives its task: metadata and pod spec."""
    node = node.array_node.node if node.HasField("array_node") else node
    pod = MessageToDict(node.task_node.overrides.pod_template)
    return pod["metadata"], pod["podSpec"]


@pytest.mark.parametrize(
    ("dynamic", "name", "task"),
    [
        (curate, "source-0", "source_prompts"),
        (curate, "roll-out", "pyflyte-map-execute"),
        (evaluate, "after", "evaluate_policy"),
        (checking, "check", "check_model"),
        (train, "learn", "train_policy"),
    ],
)
def test_an_inline_template_reaches_the_pod_of_every_stage(nodes, dynamic, name, task):
    data, recipe, evaluation = (
        type(spec).model_validate(spec.model_dump(exclude_unset=True) | changes)
        for spec, changes in zip(
            load_quickstart(),
            (
                {"pod": {"template": TEMPLATE}, "difficulty": {"pod": {"template": TEMPLATE}}},
                {"cluster": {"gpus_per_node": 0, "node": {"template": TEMPLATE}}},
                {"pod": {"template": TEMPLATE}},
            ),
            strict=True,
        )
    )
    metadata, spec = overridden(nodes(dynamic, data=data, training=recipe, evaluation=evaluation)[0][name])
    assert metadata == TEMPLATE["metadata"]
    [container] = spec.pop("containers")
    assert spec == {key: TEMPLATE[key] for key in ("serviceAccountName", "nodeSelector", "tolerations", "volumes")}
    assert container["volumeMounts"] == TEMPLATE["containers"][0]["volumeMounts"]
    assert container["env"][-1] == {"name": "NCCL_IB_HCA", "value": "mlx5"}
    assert container["resources"]["limits"]["rdma/ib"] == "1"
    assert {"cpu", "memory"} <= set(container["resources"]["requests"])
    assert container["image"].startswith("registry.example/")
    assert task in container["args"]


def test_a_template_by_name_is_that_of_the_task(nodes):
    data, recipe, _ = load_quickstart()
    named = type(data).model_validate(data.model_dump(exclude_unset=True) | {"pod": {"template": "data-pods"}})
    found, _ = nodes(curate, data=named)
    assert not found["mix"].task_node.overrides.HasField("pod_template")
    _, training = nodes(train, training=Recipe.model_validate({"cluster": {"node": {"template": "gpu-pods"}}}))
    assert training[0].metadata.pod_template_name == "gpu-pods"
    _, training = nodes(train, training=recipe)
    assert training[0].metadata.pod_template_name == ""


MACHINES = {"learner": {"ranks": 16}, "actors": {"count": 8}}
"""Options of a training on three machines of 8 GPUs."""


def test_all_that_a_machine_is_given_reaches_the_workers_of_a_ray_cluster(nodes):
    node = NODE | {"accelerator": f"{LABEL}=nvidia-h100", "timeout_minutes": 90, "interruptible": True}
    head = {"cpu": 3, "memory_gib": 50, "interruptible": True, "timeout_minutes": 200}
    cluster = {"node": node | {"template": TEMPLATE}, "head": head}
    found, [training] = nodes(train, training=Recipe.model_validate(MACHINES | {"cluster": cluster}))
    message = MessageToDict(training.custom)["rayCluster"]
    amounts = {"cpu": "3", "memory": "50Gi", "ephemeral-storage": "26Gi"}
    assert message["headGroupSpec"]["k8sPod"]["podSpec"] == {
        "containers": [
            {
                "name": "ray-head",
                "resources": {"limits": amounts, "requests": amounts},
            }
        ]
    }
    assert [group["groupName"] for group in message["workerGroupSpec"]] == ["learner", "actors"]
    for group in message["workerGroupSpec"]:
        pod = group["k8sPod"]
        assert pod["metadata"] == TEMPLATE["metadata"]
        spec = pod["podSpec"]
        assert spec["serviceAccountName"] == "trainer"
        assert spec["nodeSelector"] == {"pool": "gpus", LABEL: "nvidia-h100"}
        assert [toleration["key"] for toleration in spec["tolerations"]] == ["nvidia.com/gpu", LABEL]
        memory = {"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": "10Gi"}}
        assert spec["volumes"] == [*TEMPLATE["volumes"], memory]
        [container] = spec["containers"]
        assert container["name"] == "ray-worker"
        assert [mount["mountPath"] for mount in container["volumeMounts"]] == ["/models", SHARED_MEMORY]
        assert container["resources"]["limits"] == {
            "rdma/ib": "1",
            "cpu": "8",
            "memory": "100Gi",
            "nvidia.com/gpu": "8",
            "ephemeral-storage": "200Gi",
        }
        assert "command" not in container
    learn = found["learn"]
    assert learn.metadata.timeout.seconds == 5400, "the shorter of the two"
    assert learn.metadata.interruptible
    assert not learn.task_node.overrides.HasField("pod_template"), "Flyte would join it with those of the nodes"
    assert not learn.task_node.overrides.extended_resources.HasField("shared_memory")


def workers(training):
    """The groups of workers in the message of a training, by name, and their first container."""
    message = MessageToDict(training[0].custom)["rayCluster"]["workerGroupSpec"]
    return {group["groupName"]: (group, group["k8sPod"]["podSpec"]["containers"][0]) for group in message}


def test_machines_of_a_group_have_its_resource_in_ray(nodes):
    _, training = nodes(train, training=Recipe.model_validate(MACHINES))
    assert {name: group["rayStartParams"]["resources"] for name, (group, _) in workers(training).items()} == {
        "learner": "'{\"rlvr_learner\":1.0}'",
        "actors": "'{\"rlvr_actors\":1.0}'",
    }


def test_machines_of_a_group_have_its_options_in_place_of_those_of_both(nodes):
    cluster = {
        "node": NODE | {"accelerator": f"{LABEL}=nvidia-l4", "template": TEMPLATE},
        "learner": {"cpu": 90, "memory_gib": 900, "accelerator": f"{LABEL}=nvidia-h100", "shared_memory_gib": 20},
        "actors": {"disk_gib": 77, "template": {"serviceAccountName": "sampler"}},
    }
    _, training = nodes(train, training=Recipe.model_validate(MACHINES | {"cluster": cluster}))
    specs = {name: group["k8sPod"]["podSpec"] for name, (group, _) in workers(training).items()}
    asked_of = {name: container["resources"]["requests"] for name, (_, container) in workers(training).items()}
    assert asked_of == {
        "learner": {"cpu": "90", "memory": "900Gi", "nvidia.com/gpu": "8", "ephemeral-storage": "200Gi"},
        "actors": {"cpu": "8", "memory": "100Gi", "nvidia.com/gpu": "8", "ephemeral-storage": "77Gi"},
    }
    assert specs["learner"]["nodeSelector"] == {"pool": "gpus", LABEL: "nvidia-h100"}
    assert specs["actors"]["nodeSelector"] == {LABEL: "nvidia-l4"}, "the whole template is another"
    accounts = {name: spec["serviceAccountName"] for name, spec in specs.items()}
    assert accounts == {"learner": "trainer", "actors": "sampler"}
    memory = {name: spec["volumes"][-1]["emptyDir"]["sizeLimit"] for name, spec in specs.items()}
    assert memory == {"learner": "20Gi", "actors": "10Gi"}


def test_options_of_a_group_stay_what_they_are_in_a_launch():
    given = Recipe.model_validate(MACHINES | {"cluster": {"node": {"cpu": 8}, "learner": {"memory_gib": 900}}})
    assert Recipe.model_validate_json(given.model_dump_json()).cluster == given.cluster


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"cluster": {"learner": {"cpu": 9}}}, r"^cluster\.learner\.cpu: training is one pod, .* cluster\.node"),
        (
            {
                "learner": {"ranks": 16},
                "actors": {"count": 16},
                "placement": "shared",
                "cluster": {"actors": {"cpu": 9}},
            },
            r"^cluster\.actors\.cpu: placement = shared puts engines on the machines of cluster\.learner",
        ),
    ],
)
def test_options_of_a_group_without_machines_are_refused(changes, problem):
    training = Recipe.model_validate(changes)
    with pytest.raises(ValueError, match=problem):
        check_judge_gpus(training, training.cluster, 0)


def test_options_of_a_group_without_gpus_are_refused_in_the_file():
    with pytest.raises(ValueError, match=r"cluster\.learner\.cpu: training is one pod"):
        Recipe.model_validate({"cluster": {"gpus_per_node": 0, "learner": {"cpu": 2}}})


def test_options_of_a_group_are_used_if_the_judge_makes_a_cluster_of_one_pod():
    training = Recipe.model_validate(
        {"learner": {"ranks": 4}, "actors": {"count": 4}, "cluster": {"actors": {"cpu": 9}}}
    )
    check_judge_gpus(training, training.cluster, 2)


@pytest.mark.parametrize(
    ("cluster", "problem"),
    [
        ({"learner": {"template": "gpu-pods"}}, r"head\.template \(None\) and cluster\.learner\.template \(gpu-pods\)"),
        ({"learner": {"cpu": 7}}, r"cluster\.learner\.cpu \(7\): a machine of the group learner needs 8 cores"),
        (
            {"node": {"cpu": 8}, "actors": {"cpu": 7}},
            r"cluster\.actors\.cpu \(7\): a machine of the group actors needs 8",
        ),
        ({"actors": {"interruptible": False}}, r"interruptible: all pods of a Ray cluster are of one kind"),
        ({"actors": {"gpus": 4}}, r"gpus: the machines of both groups have cluster\.gpus_per_node GPUs"),
        ({"learner": {"timeout_minutes": 9}}, r"timeout_minutes: an attempt has one limit"),
        ({"learner": {"accelerator": "h100"}}, r"cluster\.learner\.accelerator = 'h100': .* write LABEL=h100"),
        (
            {"actors": {"template": {"containers": [{"name": "proxy"}]}}},
            r"cluster\.actors\.template: container 'proxy'",
        ),
        ({"actors": {"template": {"volume": []}}}, r"template: volume: Kubernetes has no such field"),
        (
            {
                "node": {"shared_memory_gib": 9},
                "actors": {
                    "template": {
                        "containers": [{"name": "primary", "volumeMounts": [{"name": "m", "mountPath": SHARED_MEMORY}]}]
                    }
                },
            },
            r"cluster\.actors\.template mounts a volume on /dev/shm, and cluster\.node\.shared_memory_gib another",
        ),
    ],
)
def test_what_one_group_of_a_ray_cluster_cannot_have_alone_is_refused(cluster, problem):
    with pytest.raises(ValueError, match=problem):
        Recipe.model_validate(MACHINES | {"cluster": cluster})


@pytest.mark.parametrize(
    ("cluster", "problem"),
    [
        ({"node": {"template": "gpu-pods"}}, r"head\.template \(None\) and cluster\.node\.template \(gpu-pods\)"),
        ({"node": {"interruptible": True}}, r"head\.interruptible \(False\) and cluster\.node\.interruptible \(True\)"),
        ({"node": {"accelerator": "nvidia-h100"}}, r"write LABEL=nvidia-h100 with the label that your nodes have"),
        ({"node": {"template": {"containers": [{"name": "proxy"}]}}}, r"container 'proxy': Flyte adds no containers"),
    ],
)
def test_what_the_pods_of_a_ray_cluster_would_not_get_is_refused(cluster, problem):
    with pytest.raises(ValueError, match=problem):
        Recipe.model_validate(MACHINES | {"cluster": cluster})
    Recipe.model_validate({"cluster": cluster})  # one machine gets all of it
