"""Keys of DeepSpeed's configuration: their names are those of the installed DeepSpeed, and none is ignored."""

import ast
import importlib.util
from importlib.metadata import version
from pathlib import Path

import pytest
from pydantic import ValidationError

from tasks.recipe import deepspeed_keys
from tasks.recipe.deepspeed_keys import _KEYS, INNER_KEYS, check_keys
from tasks.recipe.run import TrainingConfig
from tasks.training.learner.deepspeed_config import make_deepspeed_config

PACKAGE = Path(importlib.util.find_spec("deepspeed").origin).parent


def fields(module, name):
    """The keys of a pydantic model of DeepSpeed's, its aliases included, from its source."""
    body = next(
        node.body
        for node in ast.walk(ast.parse((PACKAGE / module).read_text()))
        if isinstance(node, ast.ClassDef) and node.name == name
    )
    lines = [line for line in body if isinstance(line, ast.AnnAssign)]
    aliases = {
        keyword.value.value
        for line in lines
        if isinstance(line.value, ast.Call)
        for keyword in line.value.keywords
        if keyword.arg == "alias"
    }
    return {line.target.id for line in lines} | aliases


@pytest.mark.parametrize(
    ("path", "module", "name"),
    [
        ("zero_optimization", "runtime/zero/config.py", "DeepSpeedZeroConfig"),
        (
            "zero_optimization.offload_optimizer",
            "runtime/zero/offload_config.py",
            "DeepSpeedZeroOffloadOptimizerConfig",
        ),
        ("zero_optimization.offload_param", "runtime/zero/offload_config.py", "DeepSpeedZeroOffloadParamConfig"),
        ("zero_optimization.leaf_module", "runtime/zero/leaf_module_config.py", "DeepSpeedZeroLeafModuleConfig"),
        ("comms_logger", "comm/config.py", "CommsLoggerConfig"),
        ("timers.throughput", "utils/config.py", "DeepSpeedThroughputTimerConfig"),
    ],
)
def test_keys_are_those_of_the_installed_deepspeed(path, module, name):
    assert version("deepspeed") == deepspeed_keys.VERSION
    refused = {key.rpartition(".")[2] for key in deepspeed_keys.REFUSED if key.rpartition(".")[0] == path}
    removed = {"mics_shard_size", "mics_hierarchical_params_gather", "zeropp_loco_param"}
    assert deepspeed_keys.INNER_KEYS[path] | refused - removed == fields(module, name)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"deepspeed": {"zero_optimisation": {}}}, "no key 'zero_optimisation' .*did you mean 'zero_optimization'"),
        (
            {"deepspeed": {"zero_optimization": {"overlap_com": True}}},
            "no key 'zero_optimization.overlap_com' .*did you mean 'overlap_comm'",
        ),
        (
            {"deepspeed": {"zero_optimization": {"offload_optimizer": {"devise": "cpu"}}}},
            "no key 'zero_optimization.offload_optimizer.devise' .*'device'",
        ),
        ({"deepspeed": {"gradient_clipping": 1.0}}, "gradient_clipping is not .*`optimizer.max_grad_norm` sets it"),
        ({"deepspeed": {"zero_optimization": {"stage": 3}}}, "`learner.zero_stage` sets it"),
        ({"deepspeed": {"bf16": {"enabled": True}}}, "`learner.dtype` sets it"),
        ({"deepspeed": {"zero_optimization": 3}}, "zero_optimization = 3: must be a mapping"),
        (
            {"deepspeed": {"zero_optimization": {"stage3_max_live_parameters": 10}}},
            "only at stages 3 of ZeRO, and learner.zero_stage is 2",
        ),
        ({"deepspeed": {"zero_optimization": {"offload_optimizer": {"device": "nvme"}}}}, "device = 'nvme': only main"),
        ({"deepspeed": {"communication_data_type": "bf16"}, "zero_stage": 1}, "zero_stage = 1 .* must not be rounded"),
        (
            {"deepspeed": {"zero_optimization": {"overlap_comm": True}}, "zero_stage": 1},
            "overlap_comm: .* set learner.zero_stage to 2",
        ),
        ({"deepspeed": {"gradient_predivide_factor": 2.0}}, "gradient_predivide_factor: .*reduce_scatter: false"),
        (
            {"deepspeed": {"prescale_gradients": True}, "zero_stage": 3},
            "prescale_gradients: .* at stage 3 of ZeRO only",
        ),
        (
            {"deepspeed": {"zero_optimization": {"parameter_alignment": 64}}},
            "parameter_alignment = 64: must be true or",
        ),
        (
            {"deepspeed": {"zero_optimization": {"reduce_bucket_size": "5e8"}}},
            "reduce_bucket_size = '5e8': must be a whole",
        ),
        ({"liger": "yes"}, r"learner\.liger"),
        ({"torch_compile": True, "zero_stage": 3}, "learner.torch_compile: ZeRO 3 gathers"),
        ({"offload_activations": True}, "give gradient_checkpointing: true"),
        ({"deepspeed": {"activation_checkpointing": {}}}, "`learner.offload_activations` are ours"),
    ],
)
def test_a_key_that_cannot_be_passed_is_refused(options, message):
    with pytest.raises(ValidationError, match=message):
        TrainingConfig.model_validate({"learner": options})


def test_keys_are_merged_into_those_of_the_learner():
    zero = {"overlap_comm": True, "offload_optimizer": {"device": "cpu", "pin_memory": False}}
    config = TrainingConfig.model_validate(
        {"learner": {"deepspeed": {"zero_optimization": zero, "steps_per_print": 7}}}
    )
    plain = make_deepspeed_config(TrainingConfig(), "float32")
    merged = make_deepspeed_config(config, "float32")
    assert merged["zero_optimization"] == plain["zero_optimization"] | zero
    assert merged == plain | {"zero_optimization": merged["zero_optimization"], "steps_per_print": 7}


@pytest.mark.parametrize(("stage", "overlaps"), [(1, False), (2, False), (3, True)])
def test_with_zero_3_transfers_overlap_with_computation_as_deepspeed_has_it(stage, overlaps):
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig

    keys = make_deepspeed_config(TrainingConfig.model_validate({"learner": {"zero_stage": stage}}), "bfloat16")
    assert DeepSpeedZeroConfig(**keys["zero_optimization"]).overlap_comm == overlaps


def test_groups_of_ranks_with_a_copy_of_the_weights_divide_the_ranks_and_are_for_one_model():
    def run(ranks, size=8, stage=3, **options):
        keys = {"zero_optimization": {"zero_hpz_partition_size": size}}
        learner = {"ranks": ranks, "zero_stage": stage, "deepspeed": keys}
        return TrainingConfig.model_validate({"learner": learner, **options}).learner.ranks_with_a_copy

    assert run(64) == run(8) == run(2) == 8  # of fewer ranks, DeepSpeed takes all
    assert run(64, size=1, stage=2) == 1
    with pytest.raises(ValidationError, match="only at stages 3"):
        run(64, stage=2)
    with pytest.raises(ValidationError, match=r"zero_hpz_partition_size = 8 must divide learner\.ranks = 12"):
        run(12)
    with pytest.raises(ValidationError, match=r"zero_hpz_partition_size: .* reference policy"):
        run(64, objective={"kl": {"beta": 0.1}})
    assert run(64, objective={"kl": {"beta": 0.1}}, lora={"rank": 4, "alpha": 8}) == 8


def test_values_are_of_the_types_that_deepspeed_takes():
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig

    fields = {field.alias or name: field.annotation for name, field in DeepSpeedZeroConfig.model_fields.items()}
    for name in INNER_KEYS["zero_optimization"]:
        for value, kinds in ((3, (int,)), (True, (bool, bool | None)), ({}, ())):
            stage = 3 if name in _KEYS.zero_3 else 2
            try:
                check_keys({"zero_optimization": {name: value}}, stage)
            except ValueError:
                assert fields[name] not in kinds, (name, value)
            else:
                assert value == {} or fields[name] in kinds, (name, value)
