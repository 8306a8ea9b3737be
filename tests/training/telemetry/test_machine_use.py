"""How a run's machines are used: each figure by hand, and what is not recorded."""

from types import SimpleNamespace

import pytest

from tasks.generation.interface import EngineStatistics
from tasks.recipe.run import TrainingConfig
from tasks.sizing.roofline import GPUS, KNOWN, find_gpu
from tasks.training.actors.decoding import Decoding
from tasks.training.telemetry.machine_use import (
    MachineUse,
    compute_judging_cost,
    compute_machine_use,
    static_batching_waste,
)
from tests.training.stand_ins import Run, config, prompts

QWEN = KNOWN["Qwen2.5-7B"]
H100 = "NVIDIA H100 80GB HBM3"


def of_engines(**options):
    return TrainingConfig(
        model_check=False,  # it would refuse quantized engines
        actors={"count": 2, "engine": {"max_num_seqs": 4, "dtype": "bfloat16", **options}},
    )


def batch_of(*lengths, prompt=100):
    """One group of responses of these lengths to a prompt of as many tokens."""
    completions = [SimpleNamespace(token_ids=range(length)) for length in lengths]
    return [SimpleNamespace(prompt=SimpleNamespace(token_ids=range(prompt)), completions=completions)]


def slot(**work):
    return SimpleNamespace(take_decoding=lambda: Decoding(**work))


STEP = {"step_seconds": 100.0, "actors_idle": 0.25, "learner_idle": 0.6}


def figures(use, slots=(), step=STEP, options=None, batch=None):
    return use.metrics(options or of_engines(), batch or batch_of(11, 11), step, list(slots))


def test_decoding_is_what_two_readings_differ_by():
    work = Decoding()
    work.add(EngineStatistics(100, running=2), EngineStatistics(400, running=4, gpu=H100), busy_seconds=10.0)
    work.add(EngineStatistics(400, running=4), EngineStatistics(600, running=0, gpu=H100), busy_seconds=10.0)
    work.add(EngineStatistics(600), EngineStatistics(600, gpu=H100), busy_seconds=10.0)  # nothing was generated
    work.add(EngineStatistics(), EngineStatistics(1, gpu=H100), busy_seconds=0.0)
    assert (work.tokens, work.busy_seconds, work.sequences, work.gpu) == (500, 20.0, 2.5, H100)


def test_mbu_by_hand():
    """1,000 tokens/s of 10 sequences are 100 steps/s, each of which reads the weights and 10 caches of 105 tokens."""
    slots = [slot(tokens=50_000, busy_seconds=50.0, sequence_seconds=500.0, gpu=H100)]
    read = 2 * QWEN.parameters + 10 * QWEN.compute_kv_cache_bytes(100 + 10 / 2)
    found = figures(MachineUse(QWEN, gpu=True), slots)["engines_mbu"]
    assert found == pytest.approx(100 * read / 3350e9)
    # of two engines the mean over their time: one of the same pace in three times the time, one that is half as fast
    slots.append(slot(tokens=75_000, busy_seconds=150.0, sequence_seconds=1500.0, gpu=H100))
    assert figures(MachineUse(QWEN, gpu=True), slots)["engines_mbu"] == pytest.approx(found * (0.25 + 0.75 / 2))


def test_each_replica_of_an_engine_reads_the_weights():
    """Two replicas of 5 sequences each take 200 steps/s in all, on twice the bandwidth."""
    slots = [slot(tokens=50_000, busy_seconds=50.0, sequence_seconds=500.0, gpu=H100)]
    read = 2 * QWEN.parameters + 5 * QWEN.compute_kv_cache_bytes(105)
    found = figures(MachineUse(QWEN, gpu=True), slots, options=of_engines(vllm={"data_parallel_size": 2}))
    assert found["engines_mbu"] == pytest.approx(200 * read / (2 * 3350e9))


@pytest.mark.parametrize(
    ("shape", "gpu", "options"),
    [
        (QWEN, "", {}),
        (QWEN, "NVIDIA TITAN RTX", {}),
        (None, H100, {}),
        (QWEN, H100, {"dtype": "float32"}),
        (QWEN, H100, {"vllm": {"quantization": "fp8"}}),
    ],
    ids=["a CPU", "a GPU without a datasheet", "a shape that is not known", "float32", "quantized"],
)
def test_where_the_peak_is_not_known_there_is_no_mbu(shape, gpu, options):
    slots = [slot(tokens=50_000, busy_seconds=50.0, sequence_seconds=500.0, gpu=gpu)]
    assert "engines_mbu" not in figures(MachineUse(shape, gpu=bool(gpu)), slots, options=of_engines(**options))


def test_a_step_without_a_reading_has_no_mbu():
    assert "engines_mbu" not in figures(MachineUse(QWEN, gpu=True), [slot(gpu=H100)])


def shares(found):
    return [found[f"{name}_share"] for name in ("generation", "training", "judging")]


def test_shares_of_cores_by_hand():
    """100 s: two engines busy for 75 s on a core each, a rank for 40 s on its 1, and verifiers for 8 + 2 s."""
    options = TrainingConfig(actors={"count": 2, "cpus": 1}, learner={"cpus": 1})
    judged = {"verifiers/math/busy_seconds": 8.0, "verifiers/code/busy_seconds": 2.0}
    chat = {"verifiers/chat_open/busy_seconds": 90.0}  # of a server that somebody else runs
    found = figures(MachineUse(), step=STEP | judged | chat, options=options)
    assert shares(found) == pytest.approx([150 / 200, 40 / 200, 10 / 200])


def test_shares_of_gpus_by_hand():
    """Two engines of 2 GPUs busy for 75 s, 2 ranks for 40 s, 80 s of 8 verifiers a GPU, a judge on 1 GPU for 30 s."""
    options = TrainingConfig(actors={"count": 2, "engine": {"tensor_parallel_size": 2}}, learner={"ranks": 2})
    judged = {"verifiers/math/busy_seconds": 80.0, "verifiers/chat_open/busy_seconds": 30.0}
    found = figures(MachineUse(gpu=True, judge_gpus=1), step=STEP | judged, options=options)
    assert shares(found) == pytest.approx([300 / 420, 80 / 420, 40 / 420])


def test_judging_counts_what_was_added_since_the_step_before_and_anew_after_a_restart():
    use, options = MachineUse(), TrainingConfig(actors={"cpus": 1}, learner={"cpus": 1})
    judging = []
    for busy in (10.0, 30.0, 5.0):
        found = figures(use, step=STEP | {"verifiers/math/busy_seconds": busy}, options=options)
        judging.append(found["judging_share"] / found["training_share"] * 40)
    assert judging == pytest.approx([10.0, 20.0, 5.0])


def test_the_waste_of_static_batching_by_hand():
    one = TrainingConfig(actors={"engine": {"max_num_seqs": 8}})
    assert static_batching_waste([10, 20, 30, 40], one) == pytest.approx(1 - 25 / 40)  # 1 - mean / maximum
    two = TrainingConfig(actors={"count": 2, "engine": {"max_num_seqs": 8}})
    assert static_batching_waste([10, 20, 30, 40], two) == pytest.approx(1 - 100 / (2 * 20 + 2 * 40))
    small = TrainingConfig(actors={"engine": {"max_num_seqs": 3}})
    assert static_batching_waste([10, 20, 30, 40], small) == pytest.approx(1 - 100 / (3 * 30 + 40))
    assert static_batching_waste([7, 7], one) == static_batching_waste([0], one) == 0


def test_a_run_records_them_on_cpus_without_mfu_and_mbu(tmp_path):
    rows = Run(tmp_path, config(steps=2), prompts(20)).play().metrics()
    for row in rows:
        assert {"generation_share", "training_share", "judging_share", "static_batching_waste"} <= row.keys()
        assert sum(shares(row)) == pytest.approx(1)
        assert not {"learner_mfu", "engines_mbu"} & row.keys()


def test_the_judges_cost_is_summed_over_attempts():
    costs = [1.0, 1.5, 0.25, 0.25]
    rows = [{"verifiers/judge/cost": cost} for cost in costs]
    assert compute_judging_cost(rows) == pytest.approx(1.75)
    assert compute_judging_cost([{}, *rows[:2]]) == pytest.approx(1.5)
    assert compute_judging_cost([{}]) == 0


def test_means_over_a_run_are_over_the_time_of_the_steps_that_have_the_metric():
    rows = [
        {"step_seconds": 10.0, "learner_idle": 0.5, "engines_mbu": 0.2},
        {"step_seconds": 30.0, "learner_idle": 0.1},
    ]
    assert compute_machine_use(rows) == {"learner_idle": pytest.approx(0.2), "engines_mbu": pytest.approx(0.2)}


def test_a_gpu_is_known_by_the_name_that_torch_has_for_it():
    known = {
        "NVIDIA H100 80GB HBM3": "H100",
        "NVIDIA H200": "H200",
        "NVIDIA GH200 480GB": "GH200",
        "NVIDIA H20": "H20",
        "NVIDIA A100-SXM4-80GB": "A100",
        "NVIDIA A100-SXM4-40GB": "A100-40GB",
        "NVIDIA L4": "L4",
        "NVIDIA L40": "L40",
        "NVIDIA L40S": "L40S",
        "NVIDIA A10": "A10",
        "NVIDIA A10G": "A10G",
        "NVIDIA B200": "B200",
        "NVIDIA B300 SXM6 AC": "B300",
        "NVIDIA GeForce RTX 3090": "RTX-3090",
        "NVIDIA GeForce RTX 4090": "RTX-4090",
        "NVIDIA GeForce RTX 5090": "RTX-5090",
        "NVIDIA RTX 6000 Ada Generation": "RTX-6000-Ada",
        "GeForce-RTX-4090": "RTX-4090",  # Ray's name
    }
    assert {name: find_gpu(name) for name in known} == {name: GPUS[key] for name, key in known.items()}
    assert set(known.values()) == set(GPUS)


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA H100 PCIe",
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "NVIDIA H200 NVL",
        "NVIDIA H20-3e",
        "NVIDIA GH200 144G HBM3e",
        "NVIDIA GB300",
        "NVIDIA A100-SXM-64GB",
        "NVIDIA A10-24Q",
        "NVIDIA GeForce RTX 3090 Ti",
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA GeForce RTX 5090 Laptop GPU",
        "NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
        "Quadro RTX 6000",
        "",
    ],
)
def test_another_form_of_a_known_gpu_is_not_known(name):
    assert find_gpu(name) is None
