"""ZeRO 3 from the first byte: no rank holds a model whole, and nothing that it computes depends on that."""

import asyncio

import pytest

from tasks.training.learner.universal import convert
from tests.training.learner.test_learner import (
    KL,
    LORA,
    ROW_EACH,
    ended,
    exported,
    largest_change,
    learner,
    step,
    values,
    weights,
)

__all__ = ["ended", "learner"]
pytestmark = pytest.mark.engine

SHARDED = {"ranks": 2, "zero_stage": 3, "persistence_threshold": 0, "dtype": "float32"}
"""Two ranks, of which none keeps a small parameter whole."""
DEEP = {"num_hidden_layers": 12, "hidden_size": 64, "head_dim": 32, "moe_intermediate_size": 64}


@pytest.fixture(scope="module")
def family(tmp_path_factory):
    """A function that returns the folder of a family of models in miniature, made once."""
    from tests.model_check.families import build

    made = {}

    def folder(name, **options):
        key = (name, *options)
        if key not in made:
            made[key] = build(tmp_path_factory.mktemp(name), name, **options)
        return made[key]

    return folder


def on_all(learner, method, *arguments):
    return asyncio.run(learner._all([getattr(rank, method).remote(*arguments) for rank in learner._ranks]))


def test_no_rank_ever_holds_the_model_whole(learner, family):
    folder = family("qwen3_moe", **DEEP)
    for size, whole, sharded, part, differ in on_all(learner(**SHARDED), "loads", str(folder), "float32"):
        assert differ == []
        assert part == pytest.approx(size / 2, rel=0.01)
        assert whole > 0.7 * size  # experts are joined in memory; other tensors stay files
        assert sharded < size / 2 + 4 * size / 12  # its part, and copies of one layer of twelve


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("glm4_moe", "bfloat16"),  # buffers that stay in float32, of the checkpoint and of RoPE
        pytest.param("llama", "float32", marks=pytest.mark.complete),  # a tied head
        pytest.param("phi3", "bfloat16", marks=pytest.mark.complete),  # RoPE whose buffers are replaced
        pytest.param("qwen3_next", "bfloat16", marks=pytest.mark.complete),
    ],
)
def test_every_tensor_is_that_of_the_model_that_is_loaded_whole(learner, family, name, dtype):
    for *_, differ in on_all(learner(**SHARDED), "loads", str(family(name)), dtype):
        assert differ == []


def test_ranks_that_choose_different_experts_wait_for_no_expert_that_others_left_out(learner):
    assert on_all(learner(**SHARDED), "trains_its_own_expert") == [[16, 16, 0]] * 2


@pytest.mark.parametrize("name", ["qwen3_moe", pytest.param("deepseek_v3", marks=pytest.mark.complete)])
def test_two_ranks_train_experts_as_one_does(learner, family, tmp_path, name):
    one = learner(folder=family(name), dtype="float32", **ROW_EACH)
    two = learner(folder=family(name), micro_batch_tokens=8, **SHARDED)
    for _ in range(2):
        alone, shared = step(one), step(two)
        for metric in ("loss", "entropy", "mismatch", "grad_norm"):
            assert shared[metric] == pytest.approx(alone[metric], rel=1e-4), metric
    ours, theirs = weights(one, tmp_path / "one"), weights(two, tmp_path / "two")
    assert any(".experts.3." in tensor for tensor in ours)  # published names, an expert each
    assert largest_change(ours, theirs) < 1e-5


@pytest.mark.complete
@pytest.mark.parametrize("threshold", [0, 2000])
def test_a_sharded_reference_follows_and_goes_on_as_a_whole_one_does(learner, tmp_path, threshold):
    objective = {"kl": {**KL, "sync_every": 1, "sync_alpha": 0.5}}
    whole = learner(objective=objective, dtype="float32")
    sharded = learner(objective=objective, **{**SHARDED, "persistence_threshold": threshold})
    for _ in range(3):
        assert step(sharded)["kl"] == pytest.approx(step(whole)["kl"], rel=1e-3, abs=1e-7)
    assert flat(sharded.reference_logprobs) == pytest.approx(flat(whole.reference_logprobs), abs=1e-4)
    asyncio.run(sharded.save(tmp_path))
    asyncio.run(sharded.wait_until_written())
    assert len(list(tmp_path.glob("reference-*-of-00002.safetensors"))) == 2
    expected = flat(sharded.reference_logprobs)
    convert(tmp_path)
    for options in (SHARDED, {"dtype": "float32", "zero_stage": 3}):
        again = learner(objective=objective, **options)
        asyncio.run(again.load(tmp_path))
        assert flat(again.reference_logprobs) == pytest.approx(expected, abs=1e-6)


def flat(ask):
    return [value for row in values(ask) for value in row]


@pytest.mark.complete
def test_an_adapter_on_a_sharded_model_learns_what_it_does_on_a_whole_one(learner, tmp_path):
    one, two = learner(lora=LORA, dtype="float32", **ROW_EACH), learner(lora=LORA, **SHARDED)
    for _ in range(2):
        alone, shared = step(one), step(two)
        assert shared["grad_norm"] == pytest.approx(alone["grad_norm"], rel=1e-4)
    assert largest_change(exported(one, tmp_path / "one"), exported(two, tmp_path / "two")) < 1e-5
