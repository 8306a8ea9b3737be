"""The capacity planner: its formulas by hand, its plans against the paper, and what it refuses."""

import itertools
import json
import re
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from tasks.commands.group import rlvr
from tasks.config.loading import load_yaml
from tasks.inputs.files import RECIPES, Recipe
from tasks.inputs.overrides import with_overrides
from tasks.planning.measured import MeasuredError, WeightRates, read_measured_rates
from tasks.planning.plan import Machines, Plan, Prompts, _estimate_engine, find_best_split, plan
from tasks.planning.plan_table import PUBLISHED
from tasks.planning.simulated_actors import estimate_mean_context
from tasks.recipe.learner import DenseAttentionError
from tasks.recipe.run import TrainingConfig
from tasks.sizing import roofline
from tasks.sizing.gpu_memory_fit import PlanError, find_fitting_placements, set_adapter
from tasks.sizing.rank_memory import estimate_learner_memory
from tasks.sizing.roofline import GB, GPUS, KNOWN, Architecture, Experts, ShapeError
from tasks.statistics.assumptions import estimate_detectable_gain
from tests.paths import ROOT
from tests.planning.rank_options import rank_options

H100 = GPUS["H100"]
TINY = Architecture(layers=2, hidden=4, intermediate=8, heads=2, kv_heads=1, head_size=2, vocabulary=10)


# Formulas


def test_parameters_by_hand():
    layer = 4 * 4 + 2 * 4 * 2 + 4 * 4 + 3 * 4 * 8 + 2 * 4  # q, k and v, o, gated MLP, two norms
    assert TINY.parameters == 2 * 10 * 4 + 2 * layer + 4


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("Qwen2.5-7B", 7_615_616_512),
        ("Qwen2.5-1.5B", 1_543_714_304),
        ("Qwen2.5-0.5B", 494_032_768),
        ("deepseek-math-7b", 6_910_365_696),
    ],
)
def test_parameters_are_those_of_the_published_checkpoints(name, published):
    assert KNOWN[name].parameters == published


MIXTURE = replace(TINY, layers=3, experts=Experts(layers=2, count=6, chosen=2, intermediate=5, shared=3))
"""A dense layer, and two with a router, six experts and an MLP that all tokens pass."""


def test_parameters_of_a_mixture_by_hand():
    attention = 4 * 4 + 2 * 4 * 2 + 4 * 4 + 2 * 4  # q, k and v, o, two norms
    rest = 2 * 10 * 4 + 4 + 3 * attention + 3 * 4 * 8  # embeddings, the last norm, the dense layer's MLP
    router, expert, shared = 4 * 6, 3 * 4 * 5, 3 * 4 * 3
    assert MIXTURE.parameters == rest + 2 * (router + 6 * expert + shared)
    assert MIXTURE.active_parameters == rest + 2 * (router + 2 * expert + shared)
    assert MIXTURE.forward_flops(0) == 2 * MIXTURE.active_parameters
    assert MIXTURE.largest_layer == attention + router + 6 * expert + shared
    assert TINY.active_parameters == TINY.parameters


def test_a_batch_reads_the_experts_that_its_sequences_choose_by_hand():
    unread = MIXTURE.parameters - MIXTURE.active_parameters
    assert MIXTURE.read_parameters(1) == pytest.approx(MIXTURE.active_parameters)
    # of 6 experts, two sequences leave (2 / 3) ** 2 unread, where one leaves 2 / 3
    assert MIXTURE.parameters - MIXTURE.read_parameters(2) == pytest.approx(unread * 2 / 3)
    assert MIXTURE.read_parameters(500) == pytest.approx(MIXTURE.parameters)
    base, _ = roofline.decode_seconds(MIXTURE, H100, gpus=1, context=0, efficiency=1.0, sequences=2)
    assert base == pytest.approx(2 * MIXTURE.read_parameters(2) / 3350e9)
    rate = roofline.compute_bandwidth_utilization(2 / base, MIXTURE, H100, gpus=1, sequences=2, context=0)
    assert rate == pytest.approx(1)


QWEN3_MOE = {
    "model_type": "qwen3_moe",
    "num_hidden_layers": 48,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "vocab_size": 151_936,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "attention_bias": False,
    "use_sliding_window": False,
    "sliding_window": None,
    "tie_word_embeddings": False,
}
"""The config.json of Qwen3-30B-A3B."""
DEEPSEEK_MOE = {
    "model_type": "deepseek",
    "num_hidden_layers": 28,
    "hidden_size": 2048,
    "intermediate_size": 10_944,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "vocab_size": 102_400,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "num_experts_per_tok": 6,
    "moe_intermediate_size": 1408,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
}
"""The config.json of DeepSeek-MoE-16B."""
QWEN15_MOE = {
    "model_type": "qwen2_moe",
    "num_hidden_layers": 24,
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "vocab_size": 151_936,
    "num_experts": 60,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 1408,
    "shared_expert_intermediate_size": 5632,
    "decoder_sparse_step": 1,
}
"""The config.json of Qwen1.5-MoE-A2.7B."""
MIXTRAL = {
    "model_type": "mixtral",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "intermediate_size": 14_336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 32_000,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}
"""The config.json of Mixtral-8x7B."""


@pytest.mark.parametrize(
    ("config", "billions", "active"),
    [(QWEN3_MOE, 30.5, 3.3), (DEEPSEEK_MOE, 16.4, 2.8), (QWEN15_MOE, 14.3, 2.7), (MIXTRAL, 46.7, 12.9)],
    ids=["Qwen3-30B-A3B", "DeepSeek-MoE-16B", "Qwen1.5-MoE-A2.7B", "Mixtral-8x7B"],
)
def test_parameters_of_mixtures_are_those_of_their_cards(config, billions, active):
    """Those of all experts, and those that are active, which some cards count without an embedding."""
    model = Architecture.from_config(config)
    assert model.parameters / 1e9 == pytest.approx(billions, abs=0.05)
    embedding = model.vocabulary * model.hidden / 1e9
    assert model.active_parameters / 1e9 - embedding <= active + 0.05
    assert model.active_parameters / 1e9 >= active - 0.05


def test_the_mixture_of_a_recipe_has_its_published_shape():
    """The card of Qwen3-30B-A3B: 30.5 billion parameters, 29.9 without embeddings, 3.3 active."""
    model = KNOWN["Qwen3-30B-A3B"]
    assert model == Architecture.from_config(QWEN3_MOE)
    assert model.parameters == 30_532_122_624
    assert (model.parameters - 2 * model.vocabulary * model.hidden) / 1e9 == pytest.approx(29.9, abs=0.05)
    assert model.active_parameters == 3_353_032_704


def test_layers_with_and_without_experts_are_counted():
    config = {**QWEN3_MOE, "decoder_sparse_step": 2, "mlp_only_layers": [1, 2]}
    assert Architecture.from_config(config).experts.layers == 24 - 1  # of layers 1, 3, 5, ... 47
    assert Architecture.from_config({**DEEPSEEK_MOE, "first_k_dense_replace": 3}).experts.layers == 25


@pytest.mark.parametrize(
    "other",
    [{"kv_lora_rank": 512}, {"moe_layer_freq": 2}, {"layer_types": ["linear_attention", "full_attention"]}],
)
def test_other_kinds_of_models_are_refused(other, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({**DEEPSEEK_MOE, **other}))
    with pytest.raises(ShapeError, match=next(iter(other))):
        roofline.read_architecture({}, tmp_path / "config.json")


def test_the_cache_of_a_token_by_hand():
    assert TINY.compute_kv_cache_bytes(1) == 2 * 2 * 1 * 2 * 2  # keys and values, layers, heads, their size, bytes


def test_layers_with_a_window_keep_and_read_no_more_than_it_holds():
    """Olmo 3: every fourth layer attends to all, the others to 4,096 tokens."""
    model = KNOWN["Olmo-3-32B"]
    assert model.compute_kv_cache_bytes(4096) == 4096 * model.compute_kv_cache_bytes(1)
    layer = 2 * 8 * 128 * 2  # keys and values, heads, their size, bytes
    assert model.compute_kv_cache_bytes(32_768) == layer * (16 * 32_768 + 48 * 4096)
    assert model.forward_flops(32_768) == 2 * model.parameters + 4 * 40 * 128 * (16 * 32_768 + 48 * 4096)


def memory(**changes):
    options = {
        "ranks": 4,
        "zero_stage": 2,
        "micro_batch_tokens": 100,
        "logprob_chunk_tokens": 50,
        "checkpointing": True,
        "reference": False,
    }
    return estimate_learner_memory(KNOWN["Qwen2.5-7B"], rank_options(**{**options, **changes}))


def test_each_stage_of_zero_shards_what_the_last_did_and_more():
    p = KNOWN["Qwen2.5-7B"].parameters
    assert [memory(zero_stage=stage).optimizer / p for stage in (1, 2, 3)] == [3, 3, 3]
    assert [memory(zero_stage=stage).gradients / p for stage in (1, 2, 3)] == [4, 1, 1]
    assert [memory(zero_stage=stage).weights / p for stage in (1, 2, 3)] == [2, 2, 0.5]


def test_activations_logits_and_reference_by_hand():
    model = KNOWN["Qwen2.5-7B"]
    stored, backward = 22 * 3584 + 8 * 18_944, 8 * 3584 + 6 * 18_944
    assert memory(checkpointing=False).activations == 100 * (28 * stored + backward)
    assert memory(checkpointing=False).logits == 12 * 50 * 152_064 - 100 * backward
    assert memory().activations == 100 * (28 * 2 * 3584 + stored + backward)
    assert memory().logits == 12 * 50 * 152_064 - 100 * (stored + backward)
    assert memory(logprob_chunk_tokens=1).logits == 0
    assert memory(float32_head=True).logits - memory().logits == 8 * 152_064 * 3584
    assert memory(reference=True).total - memory().total == 2 * model.parameters
    assert memory(reference=True, following=True).mixed == 4 * model.parameters
    assert memory(frozen=True).optimizer == memory(frozen=True).gradients == 0


def test_activations_of_layers_that_are_not_recomputed_by_hand():
    stored, backward = 22 * 3584 + 8 * 18_944, 8 * 3584 + 6 * 18_944
    second, third = memory(checkpoint_every_n_layers=2), memory(checkpoint_every_n_layers=3)
    assert second.activations == 100 * (14 * 2 * 3584 + 14 * stored + backward)  # the last of 28 layers is stored
    assert third.activations == 100 * (10 * 2 * 3584 + (18 + 1) * stored + backward)  # the last one is recomputed
    assert memory(checkpoint_every_n_layers=28).activations == 100 * (2 * 3584 + 27 * stored + backward)
    assert memory().total < second.total < third.total < memory(checkpointing=False).total
    options = {"ranks": 1, "zero_stage": 1, "micro_batch_tokens": 100, "logprob_chunk_tokens": 1, "reference": False}
    dense, mixed = 22 * 4 + 8 * 8, (22 * 4 + 8 * 13 + 2 * 4 * 4, 8 * 4 + 6 * 13 + 2 * 4 * 4)
    computed = estimate_learner_memory(
        MIXTURE, rank_options(checkpointing=True, checkpoint_every_n_layers=2, **options)
    )
    assert computed.activations == 100 * (2 * 2 * 4 + 0 * dense + mixed[0] + sum(mixed))  # of 3 layers, the second


def test_under_zero_3_the_reference_is_sharded_and_parameters_are_gathered():
    model = KNOWN["Qwen2.5-7B"]
    sharded = memory(zero_stage=3, reference=True, following=True)
    assert (sharded.reference, sharded.mixed) == (2 * model.parameters / 4, 4 * model.parameters / 4)
    assert sharded.gathered == 2e9
    assert memory(zero_stage=3, ranks=1).gathered == memory(zero_stage=2).gathered == 0
    assert memory(zero_stage=3).copies == 0
    assert memory(zero_stage=3, group=2).copies == memory(zero_stage=3).copies + 2 * model.parameters / 2
    assert memory(zero_stage=3, group=8).copies == 2 * model.parameters / 4  # of 4 ranks, all


def test_activations_of_a_mixture_by_hand():
    options = {"ranks": 1, "zero_stage": 1, "micro_batch_tokens": 100, "logprob_chunk_tokens": 1, "reference": False}
    dense, mixed = (22 * 4 + 8 * 8, 8 * 4 + 6 * 8), (22 * 4 + 8 * 13 + 2 * 4 * 4, 8 * 4 + 6 * 13 + 2 * 4 * 4)
    computed = estimate_learner_memory(MIXTURE, rank_options(checkpointing=True, **options))
    assert computed.activations == 100 * (3 * 2 * 4 + sum(mixed))  # the larger layer is computed again
    computed = estimate_learner_memory(MIXTURE, rank_options(checkpointing=False, **options))
    assert computed.activations == 100 * (dense[0] + 2 * mixed[0] + mixed[1])
    assert computed.optimizer == 12 * MIXTURE.parameters


def test_what_is_offloaded_leaves_the_gpu():
    model = KNOWN["Qwen2.5-7B"]
    here, away = memory(), memory(offload_activations=True)
    inputs = 2 * 100 * model.hidden
    assert here.activations - away.activations == away.offloaded == (model.layers - 2) * inputs
    assert away.total == here.total - away.offloaded
    away = memory(offload_optimizer=True)  # of stage 2, which adds up gradients on the GPU
    assert (away.optimizer, away.gradients) == (0, here.gradients)
    assert away.offloaded == here.optimizer + here.gradients
    away = memory(offload_optimizer=True, zero_stage=3)
    assert (away.optimizer, away.gradients, away.offloaded) == (0, 0, here.optimizer + here.gradients)
    assert memory(zero_stage=3, live_parameters=5e8).gathered == 1e9
    assert memory(zero_stage=3, live_parameters=1).gathered == 2 * model.largest_layer


def test_a_recipe_offloads_by_its_own_options_and_by_deepspeeds():
    keys = {"zero_optimization": {"offload_optimizer": {"device": "cpu"}, "stage3_max_live_parameters": 3e8}}
    options = {"ranks": 2, "zero_stage": 3, "gradient_checkpointing": True, "offload_activations": True}
    config = TrainingConfig(learner={**options, "deepspeed": keys})
    model = KNOWN["Qwen2.5-1.5B"]
    computed = estimate_learner_memory(model, config)
    assert (computed.optimizer, computed.gathered) == (0, 6e8)
    assert computed.offloaded > 8 * model.parameters
    assert estimate_learner_memory(model, config, gpu=False).offloaded == 0
    with pytest.raises(PlanError, match=r"Way out: lora, .* \{offload_optimizer: \{device: cpu\}\}"):
        planned("learner.ranks=8")
    assert "offloaded" not in computed.uses


@pytest.mark.parametrize(
    ("measured", "tokens", "changes"),
    [(37.57, 35_840, {}), (53.84, 8192, {"checkpointing": False}), (12.53, 35_840, {"frozen": True})],
)
def test_memory_is_what_one_gpu_had_at_its_peak(measured, tokens, changes):
    """Of Qwen2.5-1.5B's shape on an NVIDIA H200, torch 2.11, GB; its adapter of rank 16 is in the last one."""
    options = {"ranks": 1, "zero_stage": 2, "logprob_chunk_tokens": 1024, "checkpointing": True, "reference": False}
    computed = estimate_learner_memory(
        KNOWN["Qwen2.5-1.5B"], rank_options(micro_batch_tokens=tokens, **(options | changes))
    )
    assert computed.total / 1e9 == pytest.approx(measured, rel=0.02)


def test_decoding_reads_the_weights_once_a_step_and_a_cache_for_each_sequence():
    model = KNOWN["Qwen2.5-7B"]
    base, each = roofline.decode_seconds(model, H100, gpus=2, context=1000, efficiency=0.5, sequences=1)
    assert base == pytest.approx(2 * model.parameters / 3350e9)
    assert each == pytest.approx(model.compute_kv_cache_bytes(1000) / 3350e9)


def test_utilisation_is_one_where_nothing_is_lost():
    model = KNOWN["Qwen2.5-7B"]
    base, each = roofline.decode_seconds(model, H100, gpus=1, context=5000, efficiency=1.0, sequences=16)
    rate = 16 / (base + 16 * each)
    found = roofline.compute_bandwidth_utilization(rate, model, H100, gpus=1, sequences=16, context=5000)
    assert found == pytest.approx(1)
    learned = roofline.estimate_learner_tokens_per_second(
        model, H100, ranks=8, context=1000, checkpointing=False, mfu=1.0
    )
    found = roofline.compute_flops_utilization(learned, model, H100, gpus=8, context=1000, training=True)
    assert found == pytest.approx(1)


def test_utilisation_by_hand():
    model = KNOWN["Qwen2.5-7B"]
    # 2 x 7.616e9 operations a token, 1,000 tokens/s, of 989e12
    assert roofline.compute_flops_utilization(1000, model, H100, gpus=1, context=0) == pytest.approx(0.0154, abs=1e-4)
    # 10 steps/s of 15.23 GB, of 3,350 GB/s
    found = roofline.compute_bandwidth_utilization(100, model, H100, gpus=1, sequences=10, context=0)
    assert found == pytest.approx(0.0455, abs=1e-4)
    # of training 3 times as many, and 4 x 28 layers x 28 heads x 128 units = 401,408 for each token attended to
    found = roofline.compute_flops_utilization(1000, model, H100, gpus=2, context=10_000, training=True)
    assert found == pytest.approx(3 * (2 * 7_615_616_512 + 4_014_080_000) * 1000 / (2 * 989e12))


def test_an_adapter_needs_no_gradient_of_frozen_weights():
    model = KNOWN["Qwen2.5-7B"]
    mfu = [
        roofline.compute_flops_utilization(1000, model, H100, gpus=1, context=0, training=True, frozen=frozen)
        for frozen in (False, True)
    ]
    assert mfu[1] / mfu[0] == pytest.approx(2 / 3)


def test_the_tokens_before_a_responses_token_by_hand():
    # of 1 token after 10, and of 3 after 2: 10, 2, 3, 4
    assert roofline.compute_tokens_before([(10, 1), (2, 3)]) == 19 / 4


def test_the_context_of_a_sequence_in_flight_by_hand():
    assert estimate_mean_context(itertools.cycle([8]).__next__) == 4  # halfway, on average
    # Of 1 and 3 tokens: three quarters of those in flight are the longer ones, 1.5 into them, the others 0.5
    assert estimate_mean_context(itertools.cycle([1, 3]).__next__) == 0.75 * 1.5 + 0.25 * 0.5


# Shapes


def test_a_shape_comes_from_the_models_name_or_its_config(tmp_path):
    hub = {"kind": "hub", "name": "allenai/Olmo-3-32B-Think-DPO"}
    assert roofline.read_architecture(hub, None) == KNOWN["Olmo-3-32B"]
    config = {
        "model_type": "qwen2",
        "num_hidden_layers": 28,
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "vocab_size": 152064,
        "tie_word_embeddings": False,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert roofline.read_architecture({}, tmp_path / "config.json") == KNOWN["Qwen2.5-7B"]
    with pytest.raises(ShapeError, match=r"the shape of unheard-of is not known: give its config\.json by --config"):
        roofline.read_architecture({"kind": "hub", "name": "someone/unheard-of"}, None)
    olmo = {**config, "sliding_window": 4096, "layer_types": ["sliding_attention"] * 3 + ["full_attention"]}
    found = Architecture.from_config(olmo)
    assert (found.window, found.full_layers) == (4096, 1)
    assert Architecture.from_config({**olmo, "use_sliding_window": False}).window is None
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_experts": 128}))
    with pytest.raises(ShapeError, match=r"is not the config\.json .*: KeyError\('num_experts_per_tok'\)"):
        roofline.read_architecture({}, tmp_path / "config.json")
    (tmp_path / "config.json").write_text('{"hidden_size": 8}')
    with pytest.raises(ShapeError, match=r"is not the config\.json of a decoder that can be planned: KeyError"):
        roofline.read_architecture({}, tmp_path / "config.json")


# Plans


@pytest.mark.parametrize(
    ("name", "mfu"), [("Qwen2.5-0.5B", 0.25), ("Qwen2.5-1.5B", 0.25), ("Olmo-3-7B", 0.3), ("Olmo-3-32B", 0.3)]
)
def test_the_learners_mfu_is_what_was_measured_up_to_2_billion_parameters_and_30_percent_above(name, mfu):
    assert roofline.learner_mfu(KNOWN[name]) == mfu


def test_the_learner_and_prefill_have_an_mfu_of_their_own():
    """Qwen2.5-0.5B on an H100: 4 forward passes with checkpointing at 25%, half of it shared; prompts at 40%."""
    recipe = load_yaml(Recipe, RECIPES / "one_gpu.yaml")
    model, machines, prompts = KNOWN["Qwen2.5-0.5B"], Machines(H100, gpus_per_node=1), Prompts()
    turns = with_overrides("one_gpu", ["placement=time_shared", "actors.engine.gpu_memory_utilization=null"])
    context = prompts.context(recipe.sampling.max_tokens)
    passes = (3 + recipe.learner.gradient_checkpointing) * model.forward_flops(context)
    assert plan(recipe.run, model, machines).learner_rate == pytest.approx(0.5 * 0.25 * 989e12 / passes)
    measured = plan(recipe.run, model, replace(machines, mfu=0.2))
    assert measured.learner_rate == pytest.approx(0.5 * 0.2 * 989e12 / passes)
    prefill = plan(turns.run, model, replace(machines, mfu=0.2)).engine.prefill_tokens_per_second
    assert prefill == pytest.approx(0.4 * 989e12 / model.forward_flops(context))


def test_the_published_time_of_a_step_by_hand():
    """21 days for steps 750 to 2,300, on the GPUs of the recipe."""
    published = PUBLISHED["olmo3_think_32b"]
    assert "21 days on 224 GPUs for steps 750 to 2,300" in published
    assert olmo().gpus == 224
    seconds = 21 * 86_400 / (2300 - 750)
    assert f"about {round(seconds, -1):,.0f} s a step" in published


def olmo(*overrides):
    return with_overrides("olmo3_think_32b", overrides).run


def planned(*overrides, zero_variance=0.3, **machines):
    return plan(olmo(*overrides), KNOWN["Olmo-3-32B"], Machines(H100, **machines), Prompts(None, zero_variance))


@pytest.mark.complete
@pytest.mark.long
def test_the_papers_machines_wait_as_the_paper_says_if_three_quarters_of_the_groups_teach_nothing():
    """Olmo 3: 8 nodes learn, 20 generate without graphs, and the learner waits for 75% of the time."""
    source = "actors.engine.enforce_eager=true"
    idle = {share: planned(source, zero_variance=share).simulated.learner_idle for share in (0.0, 0.75)}
    assert idle[0.0] < 0.5
    assert idle[0.75] == pytest.approx(0.75, abs=0.05)


@pytest.mark.complete
@pytest.mark.long
def test_the_best_split_is_better_than_the_recipes_own():
    small = ("groups_per_step=16",)
    own, best = planned(*small), find_best_split(olmo(*small), KNOWN["Olmo-3-32B"], Machines(H100), 28)
    assert best.simulated.step_seconds <= own.simulated.step_seconds
    assert best.nodes <= 28


@pytest.mark.complete
@pytest.mark.long
def test_validation_takes_its_tokens_from_training_and_the_learner_never_waits_for_it():
    small = ("groups_per_step=16", "export_every=5")
    without = planned(*small).simulated
    often = planned(*small, "validation={every: 5, prompts: 500}").simulated
    share = often.trained_tokens_per_second / without.trained_tokens_per_second
    assert 0.85 < share < 1.05  # one of 20 engines has no time for anything else


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["learner.ranks=8"],
            r"a learner rank needs 125 GB and has 72: .* for optimizer\. Way out: lora, or more learner",
        ),
        (
            ["learner.zero_stage=1", "learner.deepspeed.zero_optimization.zero_hpz_partition_size=1"],
            r"for (weights|gradients)\. Way out: ",
        ),
        (
            ["learner.gradient_checkpointing=false"],
            r"for activations\. Way out: learner\.gradient_checkpointing",
        ),
        (
            ["actors.engine.tensor_parallel_size=1", "actors.engine.gpu_memory_utilization=0.82"],
            r"actors\.engine\.max_model_len = 34,816 needs .*: raise actors",
        ),
        pytest.param(
            ["max_staleness=1", "groups_per_step=16"],
            r"older than max_staleness = 1|would stall",
            marks=pytest.mark.long,
        ),
    ],
)
def test_what_cannot_work_is_refused_with_the_way_out(overrides, message):
    with pytest.raises(PlanError, match=message):
        planned(*overrides)


def test_the_mixture_fits_the_machines_that_its_recipe_names():
    def mixture(*overrides):
        recipe = with_overrides("prorl_v2_1_moe", ("groups_per_step=4", *overrides))
        model = roofline.read_architecture(recipe.model.source.model_dump(), None)
        return plan(recipe.run, model, Machines(H100, recipe.cluster.gpus_per_node))

    computed = mixture()
    assert (computed.nodes, computed.gpus) == (3, 24)
    assert computed.learner.total < computed.learner_room
    assert computed.weights == 2 * 30_532_122_624  # all experts, on each engine
    assert computed.kv_room > 128 * KNOWN["Qwen3-30B-A3B"].compute_kv_cache_bytes(1024)  # as many as an engine may run
    with pytest.raises(PlanError, match=r"a learner rank needs 87 GB and has 72: the most, 46 GB, is for optimizer"):
        mixture("learner.ranks=8")
    with pytest.raises(PlanError, match=r"in addition to the weights of 61 GB"):
        mixture("actors.engine.tensor_parallel_size=1", "actors.engine.gpu_memory_utilization=0.76")


def test_rows_that_would_have_a_dense_mask_on_gpus_are_refused():
    with pytest.raises(
        DenseAttentionError, match=r"learner\.micro_batch_tokens = 35,840: .* refused beyond 4,096 tokens"
    ):
        planned("learner.dtype=float32")


def test_nodes_that_hold_no_engine_are_refused():
    machines = Machines(H100, gpus_per_node=4)
    with pytest.raises(PlanError, match="an engine needs 8 GPUs, and 1 nodes have 4"):
        find_best_split(olmo(), KNOWN["Olmo-3-32B"], machines, 2)


def test_a_mean_beyond_the_limit_is_refused():
    with pytest.raises(PlanError, match=r"a mean length of 99999 tokens is not within sampling\.max_tokens = 32768"):
        plan(olmo(), KNOWN["Olmo-3-32B"], Machines(H100), Prompts(99_999))


@pytest.mark.long
def test_the_command_prints_what_one_would_ask():
    done = CliRunner().invoke(rlvr, ["plan", "olmo3_think_32b", "groups_per_step=8", "async_steps=4"])
    assert done.exit_code == 0, done.output
    for name in (
        "learner rank",
        "engine",
        "tokens/s",
        "idle",
        "staleness",
        "GPU hours",
        "bottleneck",
        "head",
        "judging",
    ):
        assert name in done.output
    assert "28 nodes of H100: 64 learner ranks, 20 engines of 8 GPUs each" in done.output
    assert "days on 224 GPUs for 2,300 steps" in done.output
    assert "computed" in done.output.splitlines()[0]
    plan, _, pods = done.output.partition("\n\n")
    assert "upper bound" in plan.splitlines()[2]
    assert "75%" in plan.splitlines()[-2]  # published, beside the time
    assert "about 1,170 s a step" in plan.splitlines()[-2]
    assert plan.count("\n") == 18
    assert "30% of the groups have no gradient" in plan
    for left_out in ("judges, code tests, restarts and stragglers", "Difficulty, evaluation, the model check"):
        assert left_out in plan
    assert re.search(r"training: learner +8 +64 +512 GiB +491 GiB +189 GiB +8$", pods, re.MULTILINE)


def test_an_engine_pauses_for_the_share_of_the_weights_that_each_of_its_gpus_loads():
    """64.5 GB on 8 GPUs, 8.06 GB each; at 2 GB/s they are there after 4 s."""
    weights = 2 * KNOWN["Olmo-3-32B"].parameters
    assert weights == pytest.approx(64.5e9, rel=0.001)
    model, machines = KNOWN["Olmo-3-32B"], Machines(H100, weights=WeightRates(5e9, 2e9))
    assert _estimate_engine(olmo(), model, machines, Prompts())[1].update_seconds == pytest.approx(4.03, rel=0.001)
    halves = olmo("actors.engine.tensor_parallel_size=4", "actors.engine.vllm={data_parallel_size: 2}")
    assert _estimate_engine(halves, model, machines, Prompts())[1].update_seconds == pytest.approx(8.06, rel=0.001)


def gpu_check(path, **figures):
    """Results of `make gpu-check JSON=file` on an H200."""
    checks = [{"name": "training", "figures": {"MFU": 0.26}}, {"name": "weights", "figures": figures}]
    path.write_text(json.dumps({"machine": {"gpu": "NVIDIA H200"}, "checks": checks}))
    return path


@pytest.mark.long
def test_a_plan_says_which_rates_were_measured(tmp_path):
    """64.5 GB: 12.9 s at 5 GB/s, and an eighth of them 8.1 s at 1 GB/s."""
    file = gpu_check(tmp_path / "gpu.json", **{"learner to file, GB/s": 5.0, "file to engine, GB/s": 1.0})
    small = ["plan", "olmo3_think_32b", "groups_per_step=8", "async_steps=4"]
    measured, assumed = (CliRunner().invoke(rlvr, [*small, *more]).output for more in (["--measured", file], []))
    assert "writes them for 13 s, at 5.0 GB/s" in measured
    assert "pauses for 8.1 s, at 1.0 GB/s for each GPU (measured on NVIDIA H200)" in measured
    assert re.search("^  measured .*rates of weights$", measured, re.MULTILINE)
    assert "writes them for 6.4 s, at 10.0 GB/s" in assumed
    assert "pauses for 4 s, at 2.0 GB/s for each GPU (assumed: " in assumed
    assert re.search("^  not measured .*rates of weights$", assumed, re.MULTILINE)


@pytest.mark.parametrize("content", ["{}", "[]", "no JSON", '{"machine": {"gpu": "a"}, "checks": []}'])
def test_a_file_without_measured_rates_is_named(tmp_path, content):
    file = tmp_path / "gpu.json"
    file.write_text(content)
    with pytest.raises(MeasuredError, match=r"gpu\.json has no rates of weights .* `make gpu-check JSON=file`"):
        read_measured_rates(file)
    with pytest.raises(MeasuredError, match="learner to file"):  # the check was skipped
        read_measured_rates(gpu_check(file))


@pytest.mark.long
def test_the_command_compares_the_recipes_own_placement_with_the_best():
    fast = ("groups_per_step=8", "async_steps=4")
    done = CliRunner().invoke(rlvr, ["plan", "olmo3_think_7b", "--nodes", "4", *fast])
    assert done.exit_code == 0, done.output
    own, best = re.findall(r"^  (the recipe's own|best of 4 nodes) +(.*)$", done.output, re.MULTILINE)
    assert own[1].startswith("4 nodes, 16 learner ranks and 16 engines: ")
    hours = [float(text.replace(",", "")) for text in re.findall(r"([\d,]+) GPU hours", f"{own} {best}")]
    assert hours[1] <= hours[0]


@pytest.mark.parametrize(
    ("learner", "actors", "said"),
    [(0.25, 0.57, "neither: .*async_steps = 4 .*max_staleness = 1 "), (0.6, 0.1, "generation"), (0.1, 0.6, "learning")],
)
def test_the_bottleneck_is_neither_if_both_wait(learner, actors, said):
    config = TrainingConfig(async_steps=4, max_staleness=1)
    simulated = SimpleNamespace(learner_idle=learner, actors_idle=actors)
    assert re.match(said, Plan.bottleneck.fget(SimpleNamespace(config=config, simulated=simulated)))


def test_a_plan_of_a_recipe_without_gpus_says_so():
    done = CliRunner().invoke(rlvr, ["plan", "quickstart"])
    assert "without GPUs" in done.output.splitlines()[1]


def test_the_datasheets_memory_is_in_bytes():
    assert all(20 * GB < gpu.memory < 300 * GB for gpu in GPUS.values())


NOT_INSTALLED = """
import importlib.abc, runpy, sys

class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {absent!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
runpy.run_module("tasks.commands", run_name="__main__")
"""


def test_a_plan_of_a_recipe_that_prints_completions_prints_none():
    done = CliRunner().invoke(rlvr, ["plan", "quickstart", "log_completions=1"])
    assert done.exit_code == 0, done.output
    assert "reward" not in done.stderr


def test_a_plan_has_the_smallest_gain_that_the_evaluation_detects():
    done = CliRunner().invoke(rlvr, ["plan", "quickstart"])
    points = 100 * estimate_detectable_gain(20 + 6 + 4, 4)
    assert done.output.splitlines()[-1].split() == ["held-out", "prompts", "30", "4", f"{points:.1f}"]


@pytest.mark.long
def test_a_plan_needs_nothing_beyond_the_project_without_its_extras():
    absent = ("psutil", "torch", "vllm", "deepspeed", "ray", "transformers", "safetensors", "peft")
    done = subprocess.run(
        [sys.executable, "-c", NOT_INSTALLED.format(absent=absent), "plan", "quickstart"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "1 node of H100: 1 learner rank, 1 engine of 1 GPU each" in done.stdout
    assert "minutes on 2 GPUs for 12 steps" in done.stdout


def test_on_a_shared_gpu_both_fit_into_their_shares_at_half_their_pace():
    recipe = load_yaml(Recipe, RECIPES / "one_gpu.yaml")
    model, machines = KNOWN["Qwen2.5-0.5B"], Machines(roofline.GPUS["L4"], gpus_per_node=1)
    planned = plan(recipe, model, machines)
    assert (planned.nodes, planned.gpus) == (1, 1)
    reserved = 1.5e9 + 2 * 151_936 * 896  # contexts, and the embedding
    assert planned.learner_room == pytest.approx(0.9 * ((1 - 0.35) * 24e9 - reserved))
    assert planned.kv_room == pytest.approx(0.35 * 24e9 - 2 * model.parameters)
    apart = plan(recipe.model_copy(update={"placement": "apart"}), model, machines)
    assert (apart.nodes, apart.gpus) == (2, 2)
    assert planned.learner_rate == apart.learner_rate / 2
    assert planned.engine.sequence_seconds == 2 * apart.engine.sequence_seconds
    fit = r"Placements that fit on a GPU of 24 GB: all weights: none; LoRA: apart, shared, time_shared"
    with pytest.raises(PlanError, match=f"a learner rank needs 29 GB and has 12: .* {fit}"):
        plan(recipe, KNOWN["Qwen2.5-1.5B"], machines)
    with pytest.raises(PlanError, match="nothing to split"):
        find_best_split(recipe, model, machines, nodes=4)


def test_in_turns_both_have_nearly_all_of_the_gpu_at_their_own_pace_and_move_in_between():
    recipe = with_overrides("one_gpu", ("placement=time_shared", "actors.engine.gpu_memory_utilization=null")).run
    model, machines = KNOWN["Qwen2.5-1.5B"], Machines(roofline.GPUS["L40S"], gpus_per_node=1)
    planned = plan(recipe, model, machines)
    assert (planned.nodes, planned.gpus) == (1, 1)
    assert planned.learner_room == pytest.approx(0.9 * 0.9 * 48e9)
    assert planned.kv_room == pytest.approx(0.9 * 48e9 - 2 * model.parameters)
    assert planned.moved == (2 + 12) * model.parameters  # weights, and the optimizer's state
    bytes_moved = planned.moved + 2 * model.parameters  # the engine's weights
    assert planned.turn_seconds == pytest.approx(bytes_moved / 14e9 + bytes_moved / 20e9)
    apart = plan(recipe.model_copy(update={"placement": "apart"}), model, machines)
    assert planned.learner_rate == apart.learner_rate
    assert planned.engine.sequence_seconds == apart.engine.sequence_seconds
    assert (apart.moved, apart.turn_seconds) == (0, 0)
    # either idles while the other computes, and both while they move
    assert planned.simulated.learner_idle + planned.simulated.actors_idle > 1
    assert planned.simulated.staleness <= 1
    with pytest.raises(PlanError, match="nothing to split"):
        find_best_split(recipe, model, machines, nodes=4)


@pytest.mark.parametrize(
    ("name", "gpu", "lora", "placements"),
    [
        ("Qwen2.5-0.5B", "L4", False, ["apart", "shared", "time_shared"]),  # 10 GB of 21.6, 11.9 or 19.4
        ("Qwen2.5-1.5B", "L4", False, []),  # 29 GB
        ("Qwen2.5-1.5B", "L4", True, ["apart", "shared", "time_shared"]),
        ("Qwen2.5-1.5B", "L40S", False, ["apart", "time_shared"]),  # 29 GB of 43.2, 23.8 or 38.9
        ("Qwen2.5-1.5B", "H100", False, ["apart", "shared", "time_shared"]),  # and of 72, 39.6 or 64.8
        ("Qwen2.5-7B", "L4", True, ["apart", "time_shared"]),  # 16 GB; beside its weights no sequence in 9.6 GB
        ("Qwen2.5-7B", "H100", False, []),  # 138 GB
        ("Qwen2.5-7B", "H100", True, ["apart", "shared", "time_shared"]),
    ],
)
def test_placements_that_fit_by_hand(name, gpu, lora, placements):
    recipe = set_adapter(load_yaml(Recipe, RECIPES / "one_gpu.yaml"), lora=lora)
    apart = recipe.model_copy(update={"placement": "apart"})  # whose share of the engine is none of the others'
    engine = apart.actors.engine.model_copy(update={"gpu_memory_utilization": None})
    apart = apart.model_copy(update={"actors": apart.actors.model_copy(update={"engine": engine})})
    assert find_fitting_placements(apart, KNOWN[name], GPUS[gpu]) == placements


def test_turns_do_not_fit_with_sharded_weights_nor_where_an_engine_has_several_gpus():
    model = KNOWN["Qwen2.5-0.5B"]
    assert find_fitting_placements(with_overrides("one_gpu", ("learner.zero_stage=3",)).run, model, H100) == [
        "apart",
        "shared",
    ]
    several = with_overrides("one_gpu", ("placement=auto", "actors.count=2")).run
    assert find_fitting_placements(several, model, H100) == ["apart"]


@pytest.mark.long
def test_the_command_names_what_fits_on_one_gpu():
    overrides = ("placement=time_shared", "actors.engine.gpu_memory_utilization=null")
    done = CliRunner().invoke(rlvr, ["plan", "one_gpu_lora", "--gpu", "L40S", *overrides])
    assert done.exit_code == 0, done.output
    assert "1 node of L40S: 1 learner rank, with an engine in turns with each" in done.output
    assert "3.1 GB of the rank's states, and the engine's weights, to main memory and back: 0.75 s" in done.output
    assert "on 24 GB       all weights: none; LoRA: apart, shared, time_shared (L4)" in done.output
    assert "on 48 GB       all weights: apart, time_shared; LoRA: apart, shared, time_shared (L40S)" in done.output
    assert (
        "on 80 GB       all weights: apart, shared, time_shared; LoRA: apart, shared, time_shared (H100)" in done.output
    )
    done = CliRunner().invoke(rlvr, ["plan", "one_gpu", "--gpu", "L4", "model.source.name=Qwen/Qwen2.5-7B-Instruct"])
    assert isinstance(done.exception, PlanError)
    assert "a learner rank needs 1" in str(done.exception)
    assert "Placements that fit on a GPU of 24 GB: all weights: none; LoRA: apart, time_shared" in str(done.exception)
