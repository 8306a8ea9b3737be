"""The disk of a recipe's pods: by hand, by role, beside volumes, and what is refused or warned of."""

import json
import logging
from math import ceil

import pytest

from tasks.config.loading import SpecError, load_yaml, parse
from tasks.inputs.disk_needs import check_disk, estimate_pod_needs, measure_stored_models
from tasks.inputs.files import RECIPES, DataFile, EvaluationFile, Recipe, load_quickstart
from tasks.inputs.pod_table import format_pod_table
from tasks.inputs.stage_pods import list_run_pods
from tasks.kubernetes.pod_templates import SHARED_MEMORY
from tasks.kubernetes.pods import PodConfig
from tasks.recipe.run import TrainingConfig
from tasks.sizing.roofline import KNOWN
from tasks.training.cluster import disk
from tasks.training.cluster.disk import StoredModels
from tests.paths import ROOT

GIB = 2**30
OLMO_7B, QWEN_05B = 7_297_748_992, 494_032_768
"""Parameters of the models of `olmo3_think_7b` and `one_gpu`."""

DISKS = {
    "axolotl_lora": {"training": 29, "model check": 26, "evaluation": 26},
    "dapo_qwen25_32b": {"head": 1244, "learner": 473, "actors": 82, "model check": 143, "evaluation": 143},
    "dr_grpo": {"training": 138, "model check": 26, "evaluation": 26},
    "grpo": {"head": 291, "learner": 317, "actors": 33, "model check": 46, "rollouts": 46, "evaluation": 46},
    "olmo3_instruct_7b": {"head": 306, "learner": 333, "actors": 34, "model check": 48, "evaluation": 48},
    "olmo3_think_32b": {"head": 1227, "learner": 491, "actors": 81, "model check": 141, "evaluation": 141},
    "olmo3_think_7b": {"head": 306, "learner": 211, "actors": 34, "model check": 48, "evaluation": 48},
    "one_gpu": {"training": 58, "model check": 22, "rollouts": 22, "evaluation": 22},
    "one_gpu_lora": {"training": 40, "model check": 26, "rollouts": 26, "evaluation": 26},
    "prorl_v2": {"head": 81, "learner": 87, "actors": 23, "model check": 26, "evaluation": 26},
    "prorl_v2_1_moe": {"head": 1179, "learner": 646, "actors": 77, "model check": 134, "evaluation": 134},
    "quickstart": {"training": 12, "model check": 6, "rollouts": 6, "judging": 6, "evaluation": 6},
    "quickstart_tools": {"training": 12, "model check": 6, "evaluation": 6},
}
"""GiB of disk that the pods of the recipes that ship request."""
ZERO_3 = {"learner.zero_stage": 3}
"""A change of `olmo3_think_7b`: sixteen ranks that each have a part of the weights."""


def files(recipe, **changes):
    training = parse(Recipe, json.dumps({"extends": recipe, **changes}))
    return training.load_companion(DataFile), training, training.load_companion(EvaluationFile)


def needs(recipe, **changes):
    return {pod.name: pod.need for pod in estimate_pod_needs(*files(recipe, **changes))}


def sizes(items):
    return {item.name: round(item.gib, 1) for item in items}


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_pod_of_a_recipe_that_loads_a_model_requests_disk(path):
    training = load_yaml(Recipe, path)
    requests = list_run_pods(training.load_companion(DataFile), training, training.load_companion(EvaluationFile))
    assert {request.name.rpartition(": ")[2]: request.pod.disk_gib for request in requests} == DISKS[path.stem]


@pytest.mark.parametrize("name", DISKS)
def test_the_documents_have_these_figures(name):
    pods = DISKS[name]
    training = " / ".join(f"{pods[pod]}" for pod in ("training", "head", "learner", "actors") if pod in pods)
    row = f"| `{name}` | {training} | {pods['model check']} | {pods.get('rollouts', '-')} | {pods['evaluation']} |"
    assert row in (ROOT / "docs" / "clusters.md").read_text().splitlines()


# By hand


def test_olmo_7b_by_hand():
    """ZeRO 3 on two machines of 8 ranks: 12 bytes a parameter and no weights; half of them on each machine."""
    model, part = 2 * OLMO_7B / GIB, 12 * OLMO_7B / 2 / GIB
    learner = needs("olmo3_think_7b", **ZERO_3)["training: learner"]
    assert learner.run_gib == 20 + ceil(model + 3 * part + model) == 170
    assert learner.gib == 170, "more than the universal form, 82 GiB, and a part"
    head = needs("olmo3_think_7b", **ZERO_3)["training: head"]
    assert head.run_gib == 20 + ceil(model + 5 * model) == 102
    checkpoint = copy = 12 * OLMO_7B / GIB
    universal = copy + copy / 16  # rank 0's share once more
    assert head.gib == 20 + ceil(model + checkpoint + universal + max(copy + model, 5 * model)) == 297


def test_one_gpu_by_hand():
    """ZeRO 1 in one pod: four checkpoints of 14 bytes a parameter; the last policy, one under way, three best."""
    model, checkpoint = 2 * QWEN_05B / GIB, 14 * QWEN_05B / GIB
    training = needs("one_gpu")["training"]
    assert training.run_gib == 20 + ceil(model + 4 * checkpoint + 5 * model) == 52
    assert training.gib == 20 + ceil(model + 5 * checkpoint + 5 * model) == 58


def test_an_adapters_parameters_by_hand():
    """Of each linear layer [out, in], rank x (in + out)."""
    shape = KNOWN["SmolLM2-135M"]  # 30 layers of 576, 9 heads of 64 and 3 of keys, an MLP of 1536
    config = TrainingConfig.model_validate({"lora": {"rank": 4, "alpha": 8}})
    attention = 2 * (576 + 576) + 2 * (576 + 192)
    assert StoredModels.from_model(shape, config).trained == 4 * 30 * (attention + 3 * (576 + 1536))
    assert StoredModels.from_model(shape, TrainingConfig()).trained == shape.parameters


@pytest.mark.parametrize(
    ("learner", "checkpoint", "peak", "after"),
    [
        ({"ranks": 2, "zero_stage": 2}, 14, 38, 28),
        ({"ranks": 2, "zero_stage": 3}, 12, 42, 30),
        ({"ranks": 1, "zero_stage": 1, "dtype": "float32"}, 16, 40, 32),
    ],
)
def test_a_conversion_takes_what_was_measured(learner, checkpoint, peak, after):
    """Bytes a parameter, of a model of 8 million: 38.0, 41.4 and 40.1 were seen, and 28.1, 30.1 and 32.1 afterwards."""
    config = training(learner=learner)
    items = {item.name: item.gib / G for item in disk.head(config, BILLION).resume}
    assert items["a checkpoint of all ranks"] == pytest.approx(checkpoint)
    parts = ("a checkpoint of all ranks", "its universal form", "the making of that")
    assert sum(items[name] for name in parts) == pytest.approx(peak)
    several = training(learner=learner, validation={"every": 5}, export_every=1)
    items = {item.name: item.gib / G for item in disk.head(several, BILLION).resume}
    assert items["a checkpoint of all ranks"] + items["its universal form"] == pytest.approx(after)


# By what the options make a run write

BILLION = StoredModels(10**9, 10**9)
G = 10**9 / GIB
"""GiB of a byte for each of a billion parameters."""


def training(**options):
    return TrainingConfig.model_validate({"steps": 100, **options})


@pytest.mark.parametrize(
    ("options", "bytes_a_parameter"),
    [
        ({}, 14),
        ({"learner": {"dtype": "float32"}}, 16),
        ({"learner": {"zero_stage": 3}}, 12),
        ({"objective": {"kl": {"beta": 0.1}}}, 14),
        ({"objective": {"kl": {"beta": 0.1, "sync_every": 5, "sync_alpha": 1.0}}}, 16),
        ({"objective": {"kl": {"beta": 0.1, "sync_every": 5, "sync_alpha": 0.5}}}, 18),
    ],
    ids=["ZeRO 2", "float32", "ZeRO 3", "a fixed reference", "a reference that is replaced", "one that is mixed"],
)
def test_a_checkpoint_has_the_bytes_that_were_measured(options, bytes_a_parameter):
    """12.01, 14.01, 16.01 and 18.01 bytes a parameter were measured on a model of 8 million."""
    items = sizes(disk.estimate_one_pod(training(**options), BILLION, gpus=True).run)
    assert items["4 checkpoints"] == round(4 * bytes_a_parameter * G, 1)


def test_a_checkpoint_of_an_adapter_has_the_adapter_alone():
    adapter = StoredModels(10**9, 10**7)
    lora = training(lora={"rank": 8, "alpha": 8})
    assert sizes(disk.estimate_one_pod(lora, adapter, gpus=True).run) == {
        "model": round(2 * G, 1),
        "4 checkpoints": round(4 * 14 * G / 100, 1),
        "a policy": round(2 * G, 1),
    }


def test_a_short_run_takes_fewer_checkpoints():
    assert "a checkpoint" in sizes(disk.estimate_one_pod(training(steps=9), BILLION, gpus=True).run)
    assert "3 checkpoints" in sizes(disk.estimate_one_pod(training(steps=25), BILLION, gpus=True).run)
    assert "2 parts of checkpoints" in sizes(disk.estimate_learner_machine(training(steps=20), BILLION, 1).run)


def test_the_node_of_rank_0_has_the_weights_beside_its_share():
    two_nodes = training(learner={"ranks": 16})
    machine = disk.estimate_learner_machine(two_nodes, BILLION, 8)
    assert sizes(machine.run)["3 parts of checkpoints"] == round(3 * (2 + 12 / 2) * G, 1)


def test_exported_and_validated_policies_stay():
    items = sizes(disk.head(training(export_every=25), BILLION).run)
    assert items["5 policies"] == round(5 * 2 * G, 1)
    items = sizes(disk.head(training(validation={"every": 10}), BILLION).run)
    assert items["5 policies"] == round(5 * 2 * G, 1), "the last, one under way, and the best that checkpoints name"


def test_a_judge_of_the_hub_is_downloaded_to_the_pods_that_serve_it():
    data, training, _ = load_quickstart()
    hub = {"judge": data.verifiers.judge.model_copy(update={"model": "Qwen/Qwen2.5-7B-Instruct"})}
    judged = data.model_copy(update={"verifiers": data.verifiers.model_copy(update=hub)})
    assert measure_stored_models(training, judged).judge_gib == pytest.approx(2 * KNOWN["Qwen2.5-7B"].parameters / GIB)
    assert measure_stored_models(training, data).judge_gib == 0, "the initial model is there already"


def test_models_of_unknown_shape_leave_it_to_the_cluster():
    source = {"kind": "hub", "name": "a/b", "revision": "c"}
    changed = files("quickstart", **{"model.source": source})
    assert list(estimate_pod_needs(*changed)) == []
    assert {request.pod.disk_gib for request in list_run_pods(*changed)} == {None}


# Volumes


def template(path, variable=None, **volume):
    """A pod template with a volume at a path; `variable` is set to a folder."""
    env = [{"name": variable[0], "value": variable[1]}] if variable else []
    volume = volume or {"persistentVolumeClaim": {"claimName": "runs"}}
    mounts = [{"name": "v", "mountPath": path}]
    return {
        "volumes": [{"name": "v", **volume}],
        "containers": [{"name": "primary", "env": env, "volumeMounts": mounts}],
    }


OF_RUNS = {"4 checkpoints", "5 policies"}


@pytest.mark.parametrize(
    ("given", "gone"),
    [
        (template("/shared", ("RLVR_RUNS", "/shared/runs")), OF_RUNS),
        (template("/root/outputs"), OF_RUNS),
        (template("/root"), OF_RUNS),
        (template("/root/outputs", ("RLVR_RUNS", "s3://bucket/runs")), OF_RUNS),
        (template(disk.FOLDERS["downloads"][1]), {"model"}),
        (template("/scratch", ("TMPDIR", "/scratch/tmp")), {"model"}),
        (template("/shared"), set()),
        (template("/root/outputs", ("RLVR_RUNS", "/elsewhere")), set()),
        (template("/root/outputs", emptyDir={}), set()),
        (template("/root/outputs", emptyDir={"medium": "Memory"}), OF_RUNS),
    ],
)
def test_what_lies_on_a_volume_is_no_part_of_the_pods_disk(given, gone):
    need = needs("one_gpu")["training"]
    assert set(sizes(need.run)) - set(sizes(need.drop_volumes(given).run)) == gone
    assert need.drop_volumes("by-name") == need


def test_a_pod_with_a_volume_for_runs_requests_less():
    node = {"template": template("/shared", ("RLVR_RUNS", "/shared/runs"))}
    pods = {pod.name: pod.pod for pod in list_run_pods(*files("one_gpu", **{"cluster.node": node}))}
    assert pods["training"].disk_gib == 20 + ceil(2 * QWEN_05B / GIB)


# Options


def test_too_little_is_refused_in_one_sentence_with_the_way_out():
    with pytest.raises(SpecError) as refused:
        check_disk(*files("olmo3_think_7b", **ZERO_3, **{"cluster.node": {"disk_gib": 61}}))
    assert str(refused.value) == (
        "training: learner: a pod stores about 170 GiB (3 parts of checkpoints 122.3, model 13.6, a policy 13.6, "
        "slack 20), but cluster.node.disk_gib is 61: give at least 170, leave the option out, or mount a volume on "
        "/root/outputs/runs (RLVR_RUNS) in cluster.node.template"
    )


def test_the_disk_of_a_group_is_compared_with_its_own_option():
    node = {"cluster.node": {"disk_gib": 61}} | ZERO_3
    files_of_run = files("olmo3_think_7b", **node, **{"cluster.learner": {"disk_gib": 60}})
    with pytest.raises(SpecError, match=r"^training: learner: .* cluster\.learner\.disk_gib is 60: give at least 170"):
        check_disk(*files_of_run)
    check_disk(*files("olmo3_think_7b", **node, **{"cluster.learner": {"disk_gib": 170}}))


@pytest.mark.parametrize(
    ("recipe", "option", "value"),
    [
        ("quickstart", "cluster", {"gpus_per_node": 0, "node": {"disk_gib": 9}}),
        ("olmo3_think_7b", "cluster.head", {"disk_gib": 101}),
    ],
)
def test_pods_without_gpus_are_checked_too(recipe, option, value):
    with pytest.raises(SpecError, match=r"a pod stores about \d+ GiB"):
        check_disk(*files(recipe, **{option: value}))


def test_pods_of_difficulty_and_evaluation_are_checked():
    data, training, evaluation = load_quickstart()
    small = PodConfig(disk_gib=5)
    rollouts = {"difficulty": data.difficulty.model_copy(update={"pod": small})}
    with pytest.raises(SpecError, match=r"^difficulty: .* difficulty\.pod\.disk_gib is 5: give at least 6"):
        check_disk(data.model_copy(update=rollouts), training, evaluation)
    with pytest.raises(SpecError, match=r"^evaluation: .* pod\.disk_gib is 5: give at least 6"):
        check_disk(data, training, evaluation.model_copy(update={"pod": small}))


def test_enough_is_silent_and_a_volume_is_enough(caplog):
    caplog.set_level(logging.WARNING)
    check_disk(*files("one_gpu"))
    check_disk(*files("one_gpu", **{"cluster.node": {"disk_gib": 58}}))
    node = {"disk_gib": 21, "template": template("/shared", ("RLVR_RUNS", "/shared/runs"))}
    check_disk(*files("one_gpu", **{"cluster.node": node}))
    assert not caplog.records


def test_a_template_by_name_may_mount_volumes_and_is_warned_of(caplog):
    check_disk(*files("one_gpu", **{"cluster.node": {"disk_gib": 30, "template": "gpu-pods"}}))
    [record] = caplog.records
    assert "cluster.node.disk_gib is 30: it is evicted unless the template 'gpu-pods' mounts" in record.getMessage()


def test_a_run_that_other_ranks_could_not_resume_is_warned_of(caplog):
    check_disk(*files("olmo3_think_7b", **ZERO_3, **{"cluster.head": {"disk_gib": 110}}))
    [record] = caplog.records
    assert record.getMessage().startswith(
        "training: head: cluster.head.disk_gib is 110: enough for the run, but not to resume"
    )
    assert "which needs 297 GiB: its universal form 86.7, a checkpoint of all ranks 81.6" in record.getMessage()


# The table of pods


def test_the_table_of_pods_names_what_each_requests():
    lines = format_pod_table(list_run_pods(*files("olmo3_think_7b", **ZERO_3))).splitlines()
    assert lines[0].split()[4:] == ["number", "cores", "memory", "disk", SHARED_MEMORY, "GPUs"]
    by_name = {line[:20].strip(): line[20:].split() for line in lines[1:]}
    assert by_name["training: learner"] == ["2", "64", "512", "GiB", "170", "GiB", "64", "GiB", "8"]
    assert by_name["training: head"] == ["1", "16", "32", "GiB", "297", "GiB", "-", "-"]
    assert max(map(len, lines)) <= 90
