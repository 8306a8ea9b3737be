"""The memory that training needs, beside what was measured, and the pods and machines that are refused."""

import json

import pytest

from tasks.config.loading import SpecError, load_yaml, parse
from tasks.inputs.files import RECIPES, DataFile, Recipe, load_quickstart
from tasks.inputs.memory_needs import RAYS_SHARE, check_memory, estimate_training_needs
from tasks.kubernetes.pod_templates import SHARED_MEMORY
from tasks.kubernetes.pods import PodConfig
from tasks.machine import precision
from tests.machine.test_memory_limit import GIB, Group

MEASURED = {"learner rank": 5.15, "engine": 2.1, "judge's engine": 1.95, "driver and Ray": 1.6, "the rest": 1.75}
"""GiB of the quickstart's training in float32, at most of each process, in a pod on two cores whose checkpoints went to
blob storage, with torch's build for CPUs (`tests/workflows/test_pod_memory.py`); 12.7 of all at once."""
LONG_ROWS = {"learner.micro_batch_tokens": 1536, "learner.logprob_chunk_tokens": 1024}
MEASURED_WITH_LONG_ROWS = 6.66
"""GiB of the learner rank with rows that long, on the same two cores."""
TOLERANCE = 0.1


def needs(dtype="float32", **recipe):
    data, _, _ = load_quickstart()
    return estimate_training_needs(data, parse(Recipe, json.dumps({"extends": "quickstart", **recipe})), dtype=dtype)


def refused(*, data=None, on_this_machine=False, machine=None, dtype="float32", **recipe):
    with pytest.raises(SpecError) as raised:
        check_memory(
            data or load_quickstart()[0],
            parse(Recipe, json.dumps({"extends": "quickstart", **recipe})),
            on_this_machine=on_this_machine,
            machine=machine,
            dtype=dtype,
        )
    return str(raised.value)


def test_the_formula_is_near_what_was_measured():
    computed = needs()
    assert computed.pop(SHARED_MEMORY) == pytest.approx(3 * 0.5, rel=TOLERANCE), "three versions of the weights"
    assert computed == pytest.approx(MEASURED, rel=TOLERANCE)
    assert needs(**LONG_ROWS)["learner rank"] == pytest.approx(MEASURED_WITH_LONG_ROWS, rel=TOLERANCE)


def test_each_option_that_the_sentence_names_makes_a_process_smaller():
    before = needs(**LONG_ROWS)
    for option, name, value in (
        ("learner.micro_batch_tokens", "learner rank", 768),
        ("learner.dtype", "learner rank", "bfloat16"),
        ("learner.gradient_checkpointing", "learner rank", True),
        ("actors.engine.dtype", "engine", "bfloat16"),
    ):
        assert needs(**{**LONG_ROWS, option: value})[name] < before[name] - 0.2, option
    assert needs(**{**LONG_ROWS, "actors.engine.cpu_kv_cache_gib": 2.375})["engine"] == pytest.approx(
        before["engine"] + 2
    )
    two = needs(**{"actors.count": 2, "cluster.node.cpu": 3})
    assert two["engine"] == pytest.approx(2 * before["engine"])
    assert sum(needs("bfloat16", **LONG_ROWS).values()) < sum(before.values()) - 1.5


def test_a_judge_counts_where_training_serves_it():
    data, training, _ = load_quickstart()

    def judged(**update):
        changed = data.model_copy(update={"verifiers": data.verifiers.model_copy(update=update)})
        return estimate_training_needs(changed, training, dtype="float32").get("judge's engine")

    judge = data.verifiers.judge
    assert judged(judge=judge.model_copy(update={"url": "http://judge:8000/v1"})) is None
    large_cache = judge.server.model_copy(update={"cpu_kv_cache_gib": 2})
    assert judged(judge=judge.model_copy(update={"server": large_cache})) == pytest.approx(1.1 + 0.5 + 2, abs=0.1)
    no_chat = DataFile.model_validate(data.model_dump() | {"leave_out": ["small-talk"]})
    assert "judge's engine" not in estimate_training_needs(no_chat, training, dtype="float32")


def test_a_pod_that_is_too_small_is_refused_in_one_sentence():
    sentence = refused(cluster={"gpus_per_node": 0, "node": {"cpu": 2, "memory_gib": 13}})
    assert (
        "learner rank 4.7, engine 2.0, judge's engine 1.9, the rest 1.8, driver and Ray 1.7, /dev/shm 1.5" in sentence
    )
    assert sum(needs().values()) / RAYS_SHARE == pytest.approx(14.2, abs=0.05)
    assert "about 14.2 GiB of memory in float32 (learner.dtype: auto), of which Ray leaves 5% free" in sentence
    assert "cluster.node.memory_gib is 13: raise it, or lower learner.micro_batch_tokens" in sentence
    assert "\n" not in sentence


def test_the_quickstarts_own_pod_holds_it():
    data, training, _ = load_quickstart()
    check_memory(data, training, on_this_machine=False, dtype="float32")


def test_machines_with_gpus_and_models_of_unknown_shape_are_not_judged():
    small = {"cpu": 2, "memory_gib": 1}
    data, _, _ = load_quickstart()
    for recipe in (
        {"cluster": {"gpus_per_node": 8, "node": small}},
        {
            "cluster": {"gpus_per_node": 0, "node": small},
            "model.source": {"kind": "hub", "name": "a/b", "revision": "c"},
        },
    ):
        given = parse(Recipe, json.dumps({"extends": "quickstart", **recipe}))
        check_memory(data, given, on_this_machine=False, dtype="float32")


@pytest.mark.parametrize(("gib", "is_refused"), [(8, True), (12, False), (16, False)])
def test_a_machine_of_ones_own_is_refused_where_it_surely_does_not_suffice(tmp_path, gib, is_refused):
    group = Group(tmp_path, 2)
    group.limit_to(gib * GIB)
    data, training, _ = load_quickstart()
    if is_refused:
        assert f"this machine has {gib:.1f}: train on a larger one" in refused(
            on_this_machine=True, machine=group.read()
        )
    else:
        check_memory(data, training, on_this_machine=True, machine=group.read(), dtype="float32")


@pytest.mark.parametrize(
    ("flags", "fast"), [("fpu avx avx2 fma", False), ("fpu avx2 avx512f avx512bw avx512vl", True), ("asimd bf16", True)]
)
def test_the_processors_type_is_read_without_torch(tmp_path, flags, fast):
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\nflags\t\t: {flags}\n")
    assert precision.has_bfloat16(tmp_path / "cpuinfo") is fast
    assert precision.has_bfloat16(tmp_path / "nothing") is False


def test_a_head_that_cannot_hold_the_steps_between_two_checkpoints_is_refused():
    data = load_quickstart()[0]
    recipe = load_yaml(Recipe, RECIPES / "dapo_qwen25_32b.yaml")
    check_memory(data, recipe, on_this_machine=False)
    head = recipe.cluster.model_copy(update={"head": PodConfig(memory_gib=32)})
    with pytest.raises(
        SpecError, match=r"steps since a checkpoint 23\.0, .* cluster\.head\.memory_gib is 32: raise it"
    ):
        check_memory(data, recipe.model_copy(update={"cluster": head, "recover_every": None}), on_this_machine=False)
    check_memory(data, recipe.model_copy(update={"cluster": head, "recover_every": 5}), on_this_machine=False)
