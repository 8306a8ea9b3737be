"""Recipes: what they reject, and the learning rates they ask for."""

import math

import pytest
from pydantic import ValidationError

from tasks.config.loading import SpecError, load_yaml
from tasks.failures import MistakeError
from tasks.inputs.files import Recipe
from tasks.recipe.learner import LearnerConfig, OptimizerConfig, check_liger, learning_rate
from tasks.recipe.run import TrainingConfig
from tests.paths import ROOT

RECIPES = ROOT / "workflows" / "recipes"


@pytest.mark.parametrize(("options", "chunks"), [({}, (4096, 1024)), ({"logprob_chunk_tokens": 7}, (7, 7))])
def test_more_logits_are_in_memory_at_a_time_on_a_gpu_unless_the_recipe_sets_their_number(options, chunks):
    learner = LearnerConfig(**options)
    assert (learner.chunk_tokens(gpu=True), learner.chunk_tokens(gpu=False)) == chunks


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"learning_rate": 1e-6}, "learning_rate"),
        ({"optimizer": {"lr": 1e-6}}, "optimizer.lr"),
        ({"actors": {"engine": {"max_len": 9}}}, "actors.engine.max_len"),
        ({"sampling": {"samples": 1}}, "sampling.samples is 1: a group needs at least 2"),
        (
            {"sampling": {"samples": 4}, "objective": {"advantage": "pass_at_k", "pass_at_k": 8}},
            r"objective.pass_at_k = 8 is more than the samples of a prompt: raise sampling.samples \(4\)",
        ),
        ({"sampling": {"max_tokens": 1024}}, r"sampling.max_tokens \(1024\) leaves no room .*max_model_len \(1024\)"),
        ({"sampling": {"top_p": 0.9}}, "top_p 1.0"),
        ({"sampling": {"top_k": 5}}, "top_k 0"),
        ({"sampling": {"min_p": 0.1}}, "min_p 0"),
        ({"sampling": {"temperature": 0}}, "temperature above 0"),
        (
            {
                "objective": {"shaping": {"overlong": {"max_length": 20480, "cache": 4096}}},
                "sampling": {"max_tokens": 512},
            },
            r"overlong penalises from 16384 tokens on, which sampling.max_tokens \(512\) never exceeds",
        ),
        ({"sampling": {"repetition_penalty": 1.1}}, "repetition_penalty is an .*training refuses .* every importance"),
        (
            {"sampling": {"vllm": {"repetition_penalty": 1.1}}},
            "sampling.vllm.repetition_penalty: training refuses it: .* every importance weight would be wrong",
        ),
        ({"sampling": {"vllm": {"top_k": 3}}}, "top_k is not passed to vLLM: `sampling.top_k` sets it"),
        (
            {"actors": {"engine": {"vllm": {"speculative_config": {"method": "ngram"}}}}},
            "actors.engine.vllm.speculative_config: training refuses it: vLLM drafts tokens",
        ),
        (
            {"actors": {"engine": {"vllm": {"quantisation": "fp8"}}}},
            r"actors.engine.vllm\n.* no engine argument 'quantisation' \(did you mean 'quantization'\?\)",
        ),
        (
            {"actors": {"engine": {"vllm": {"quantization": "fp8"}}}},
            "actors.engine.vllm.quantization: .* set model_check: false",
        ),
        (
            {
                "actors": {"engine": {"vllm": {"kv_cache_dtype": "fp8"}}},
                "model_check": False,
                "objective": {"correction": {"kind": "none"}},
            },
            "actors.engine.vllm.kv_cache_dtype: .* objective.correction corrects",
        ),
        (
            {
                "head_dtype": "float32",
                "actors": {"engine": {"vllm": {"quantization": "modelopt"}}},
                "model_check": False,
            },
            "head_dtype = float32: .*quantization = modelopt can quantise the head",
        ),
        ({"head_dtype": "bfloat16"}, "head_dtype"),
        (
            {"sampling": {"guided_regex": "[ab]"}, "objective": {"correction": {"kind": "none"}}},
            "guided_regex: .* which is not the policy; objective.correction corrects .* kind = none does not",
        ),
        ({"updates": {"minibatches": 3}}, r"groups_per_step \(8\) is not a multiple of updates.minibatches \(3\)"),
        (
            {"updates": {"epochs": 2}, "objective": {"force_on_policy_ratio": True}},
            "one update per batch; .* asks for 2",
        ),
        (
            {"resampling": {"kind": "dynamic"}, "async_steps": 1},
            "resampling.kind = dynamic samples in rounds and needs async_steps = 0, not 1",
        ),
        ({"resampling": {"kind": "active", "max_rounds": 2}}, "max_rounds"),
        ({"deterministic": True}, "deterministic: .* depends on timing with async_steps = 2; set 0"),
        ({"deterministic": True, "async_steps": 0}, "actors.engine.max_num_seqs = 128; set 1"),
        (
            {
                "lora": {"rank": 4, "alpha": 8},
                "objective": {"kl": {"beta": 0.1, "sync_every": 8, "sync_alpha": 0.5}},
            },
            "lora and objective.kl.sync_every",
        ),
        ({"lora": {"rank": 4, "alpha": 8, "target_modules": ["q_proj", "lm_head"]}}, "lora.target_modules = lm_head"),
        ({"lora": {"rank": 513, "alpha": 8}}, "lora.rank"),
        (
            {"learner": {"liger": True}, "objective": {"entropy_coefficient": 0.1}},
            "learner.liger = true: its kernel has no gradient of an entropy",
        ),
        ({"steps": 0}, "steps"),
        ({"learner": {"zero_stage": 4}}, "learner.zero_stage"),
    ],
)
def test_a_recipe_that_cannot_train_is_refused_with_the_field(options, message):
    with pytest.raises(ValidationError, match=message):
        TrainingConfig.model_validate(options)


def test_dppo_corrects_for_a_distribution_that_is_not_the_policys():
    dppo = {"surrogate": "dppo", "correction": {"kind": "none"}}
    TrainingConfig.model_validate({"sampling": {"guided_regex": "[ab]"}, "objective": dppo})
    vllm = {"engine": {"vllm": {"kv_cache_dtype": "fp8"}}}
    TrainingConfig.model_validate({"actors": vllm, "model_check": False, "objective": dppo})


def test_a_seed_that_training_would_ignore_is_refused():
    with pytest.raises(ValidationError, match="sampling"):
        TrainingConfig.model_validate({"sampling": {"seed": 1}})


def test_a_misspelt_key_in_a_file_is_one_sentence_with_the_right_spelling(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text("steps: 2\noptimizer: {learning_rte: 1.0e-5}\n")
    with pytest.raises(SpecError, match=r"recipe.yaml: optimizer.learning_rte: unknown key .*'learning_rate'"):
        load_yaml(Recipe, path)


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.yaml")))
def test_every_recipe_that_ships_can_be_read(path):
    recipe = load_yaml(Recipe, path)
    beside = Recipe.model_fields.keys() - TrainingConfig.model_fields.keys()
    assert {"model", "cluster"} <= beside
    options = {k: v for k, v in recipe.model_dump().items() if k not in beside}
    if options["validation"] is not None:
        for name in ("benchmarks", "benchmark_sampling"):  # an input of training, as the model is
            del options["validation"][name]
    assert recipe.run.model_dump() == options


@pytest.mark.parametrize(
    ("schedule", "warmup", "expected"),
    [
        ("constant", 0, [8, 8, 8, 8, 8, 8]),
        ("constant", 4, [2, 4, 6, 8, 8, 8]),
        ("linear", 0, [8, 8 * 5 / 6, 8 * 4 / 6, 4, 8 * 2 / 6, 8 / 6]),
        ("linear", 2, [4, 8, 8, 6, 4, 2]),
        ("cosine", 2, [4, 8, 8, 4 * (1 + math.sqrt(0.5)), 4, 4 * (1 - math.sqrt(0.5))]),
    ],
)
def test_learning_rates_of_six_steps_by_hand(schedule, warmup, expected):
    options = OptimizerConfig(learning_rate=8, schedule=schedule, warmup_steps=warmup)
    assert [learning_rate(step, options, 6) for step in range(6)] == pytest.approx(expected)


@pytest.mark.parametrize(("gpu", "message"), [(False, "needs a GPU"), (True, "install the extra `liger`")])
def test_ligers_kernel_is_refused_where_it_cannot_run(monkeypatch, gpu, message):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for option in ("auto", False):
        check_liger(LearnerConfig(liger=option), gpu=gpu)
    with pytest.raises(MistakeError, match=f"learner.liger = true: .*{message}"):
        check_liger(LearnerConfig(liger=True), gpu=gpu)


def test_an_engine_in_fewer_bits_trains_where_its_difference_is_weighed_and_accepted():
    arguments = {"quantization": "fp8", "kv_cache_dtype": "fp8"}
    config = TrainingConfig.model_validate({"model_check": False, "actors": {"engine": {"vllm": arguments}}})
    assert config.actors.engine.coarse == ["quantization", "kv_cache_dtype"]
    assert config.objective.correction.kind != "none"
