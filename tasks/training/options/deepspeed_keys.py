"""Lists the keys of DeepSpeed's configuration that are passed through, and the rejected keys with the reasons.

DeepSpeed ignores unknown top-level keys of its configuration, so the names are listed here, as of the version that this
project pins. A test compares them with the installed DeepSpeed, as far as it has a list.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from tasks.config.loading import close_match

VERSION = "0.19.8"
"""Version of DeepSpeed whose keys are listed here."""

_TOP = """
    communication_data_type prescale_gradients gradient_predivide_factor disable_python_gc dump_state steps_per_print
    wall_clock_breakdown memory_breakdown log_level comms_logger flops_profiler timers zero_optimization
"""
_ZERO = """
    contiguous_gradients reduce_scatter reduce_bucket_size allgather_partitions allgather_bucket_size overlap_comm
    offload_optimizer ignore_unused_parameters enable_sanity_checks
"""
_ZERO_BELOW_3 = "use_multi_rank_bucket_allreduce round_robin_gradients parameter_alignment"
_ZERO_3 = """
    sub_group_size offload_param stage3_prefetch_bucket_size stage3_model_persistence_threshold
    stage3_max_live_parameters stage3_max_reuse_distance stage3_module_granularity_threshold
    stage3_use_all_reduce_for_fetch_params stage3_allgather_sequential zero_hpz_partition_size zero_quantized_weights
    zero_quantized_nontrainable_weights zero_quantized_gradients memory_efficient_linear override_module_apply
    log_trace_cache_warnings leaf_module
"""
_SIZES = """
    reduce_bucket_size allgather_bucket_size sub_group_size stage3_prefetch_bucket_size
    stage3_model_persistence_threshold stage3_max_live_parameters stage3_max_reuse_distance
    stage3_module_granularity_threshold zero_hpz_partition_size
"""
_MAPPINGS = "offload_optimizer offload_param leaf_module"
INNER_KEYS = {
    "zero_optimization": frozenset(f"{_ZERO} {_ZERO_BELOW_3} {_ZERO_3}".split()),
    "zero_optimization.offload_optimizer": frozenset(["device", "pin_memory"]),
    "zero_optimization.offload_param": frozenset(["device", "pin_memory"]),
    "zero_optimization.leaf_module": frozenset(["classes", "names", "name_suffixes"]),
    "comms_logger": frozenset(["enabled", "prof_all", "prof_ops", "verbose", "debug"]),
    "flops_profiler": frozenset(
        ["enabled", "recompute_fwd_factor", "profile_step", "module_depth", "top_modules", "detailed", "output_file"]
    ),
    "timers": frozenset(["throughput"]),
    "timers.throughput": frozenset(["enabled", "synchronized"]),
}
"""Keys that are passed through in nested mappings of DeepSpeed's configuration, by the path of the mapping."""
_OFF = {"zero_hpz_partition_size": 1}
"""Values without an effect, for recipes that extend one with such a key: they cannot remove it."""
_PRESCALED = {"prescale_gradients": False, "gradient_predivide_factor": 1.0}
"""Keys about dividing gradients before they are summed over ranks, with DeepSpeed's defaults."""
TOP_KEYS = frozenset(_TOP.split())
"""Top-level keys of DeepSpeed's configuration that are passed through."""


def _make_reasons(reason: str, names: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), reason)


_DTYPE = "`learner.dtype` sets it; master weights and sums of gradients are float32"
_BATCH = "`groups_per_step` and `learner.micro_batch_tokens` set it"
_UNUSED = "the learner does not use this part of DeepSpeed, and it would be ignored"
_CHECKPOINT = "the learner writes and reads checkpoints itself (`checkpoint_every`)"
_NVME = "only main memory (`device: cpu`) is offered to offload to"
REFUSED = {
    **_make_reasons(_BATCH, "train_batch_size train_micro_batch_size_per_gpu gradient_accumulation_steps"),
    **_make_reasons(_BATCH, "managed_gradient_accumulation"),
    **_make_reasons(_DTYPE, "fp16 bf16 bfloat16 torch_autocast data_types"),
    "gradient_clipping": "`optimizer.max_grad_norm` sets it",
    **_make_reasons("`optimizer` of the recipe sets it", "optimizer zero_allow_untested_optimizer"),
    "zero_force_ds_cpu_optimizer": "the optimizer is torch's AdamW, on the processor too",
    "scheduler": "`optimizer.schedule` sets it",
    "gradient_allreduce_op": "gradients are averaged over ranks, which the loss relies on",
    **_make_reasons("`trackers` of the recipe sets it", "tensorboard wandb comet csv_monitor"),
    "activation_checkpointing": "it is for models that call DeepSpeed's own; `learner.gradient_checkpointing` and "
    "`learner.offload_activations` are ours",
    "compile": "`learner.torch_compile` compiles the model",
    **_make_reasons(_CHECKPOINT, "checkpoint datastates_ckpt"),
    "aio": _NVME,
    **_make_reasons(_UNUSED, "autotuning hybrid_engine pipeline data_efficiency weight_quantization tensor_parallel"),
    **_make_reasons(
        _UNUSED, "expert_parallel use_data_before_expert_parallelism dataloader_drop_last disable_allgather"
    ),
    **_make_reasons(_UNUSED, "seq_parallel_communication_data_type sequence_parallel_size data_parallel_size"),
    **_make_reasons(
        "DeepSpeed has removed it",
        "nebula compression_training amp quantize_training sparse_gradients eigenvalue sparse_attention elasticity "
        "graph_harvesting curriculum_learning progressive_layer_drop zero_optimization.mics_shard_size "
        "zero_optimization.mics_hierarchical_params_gather zero_optimization.zeropp_loco_param",
    ),
    "zero_optimization.stage": "`learner.zero_stage` sets it",
    **_make_reasons(
        "`learner.persistence_threshold` sets it",
        "zero_optimization.stage3_param_persistence_threshold zero_optimization.param_persistence_threshold",
    ),
    "zero_optimization.compute_grad_norm": "the norm of the gradient is clipped and is a metric",
    "zero_optimization.zenflow": "it applies a part of a gradient in a later step, after weights were given to engines",
    **_make_reasons(
        _CHECKPOINT,
        "zero_optimization.load_from_fp32_weights zero_optimization.elastic_checkpoint "
        "zero_optimization.pipeline_loading_checkpoint zero_optimization.stage3_gather_16bit_weights_on_model_save "
        "zero_optimization.gather_16bit_weights_on_model_save "
        "zero_optimization.stage3_gather_fp16_weights_on_model_save",
    ),
    **_make_reasons(
        "it is deprecated; give offload_optimizer or offload_param",
        "zero_optimization.cpu_offload zero_optimization.cpu_offload_param "
        "zero_optimization.cpu_offload_use_pin_memory",
    ),
    **_make_reasons(
        "give the name that begins with stage3_",
        "zero_optimization.prefetch_bucket_size zero_optimization.model_persistence_threshold "
        "zero_optimization.max_live_parameters zero_optimization.max_reuse_distance "
        "zero_optimization.module_granularity_threshold zero_optimization.use_all_reduce_for_fetch_params "
        "zero_optimization.allgather_sequential",
    ),
    "zero_optimization.legacy_stage1": "DeepSpeed deprecates it",
    "zero_optimization.save_muon_momentum_buffer_in_memory": "the optimizer is AdamW",
    **_make_reasons(
        _NVME,
        "zero_optimization.offload_optimizer.nvme_path zero_optimization.offload_optimizer.buffer_count "
        "zero_optimization.offload_optimizer.pipeline_read zero_optimization.offload_optimizer.pipeline_write "
        "zero_optimization.offload_optimizer.fast_init zero_optimization.offload_param.nvme_path "
        "zero_optimization.offload_param.buffer_count zero_optimization.offload_param.buffer_size "
        "zero_optimization.offload_param.max_in_cpu",
    ),
    **_make_reasons(
        "it is for DeepSpeed's own Adam, and the optimizer is torch's AdamW",
        "zero_optimization.offload_optimizer.ratio zero_optimization.offload_optimizer.super_offload "
        "zero_optimization.offload_optimizer.cpuadam_cores_perc",
    ),
}
"""Keys that DeepSpeed knows but that are rejected, by their path, each with the reason."""


def check_keys(keys: Mapping[str, Any], zero_stage: int) -> None:
    """Check keys of DeepSpeed's configuration that are merged into the learner's.

    Args:
        keys: the keys, as in DeepSpeed's own JSON.
        zero_stage: the ZeRO stage that the learner uses.

    Raises:
        ValueError: DeepSpeed has no such key or refuses its value, the key is rejected, or it has no effect at this
            stage.
    """
    _check(keys, "", TOP_KEYS)
    zero = keys.get("zero_optimization", {})
    for names, fits, stages in ((_ZERO_3, zero_stage == 3, "3"), (_ZERO_BELOW_3, zero_stage < 3, "1 and 2")):
        for name, value in zero.items():
            if name in names.split() and not fits and _OFF.get(name) != value:
                raise ValueError(
                    f"zero_optimization.{name}: it has an effect only at stages {stages} of ZeRO, and "
                    f"learner.zero_stage is {zero_stage}"
                )
    if zero_stage == 1 and "communication_data_type" in keys:
        raise ValueError(
            "communication_data_type: with learner.zero_stage = 1 the sums of all micro-batches are reduced, which are "
            "float32 and must not be rounded"
        )
    for name, value in zero.items():
        _check_value(name, value)
    if zero_stage == 1 and zero.get("overlap_comm"):
        raise ValueError(
            "zero_optimization.overlap_comm: DeepSpeed has no overlap for the learner's rows at stage 1 of ZeRO: set "
            "learner.zero_stage to 2"
        )
    prescaled = [name for name, usual in _PRESCALED.items() if keys.get(name, usual) != usual]
    if prescaled and zero_stage > 1 and zero.get("reduce_scatter", True):
        raise ValueError(
            f"{prescaled[0]}: DeepSpeed supports it at stage {zero_stage} of ZeRO only with "
            "zero_optimization.reduce_scatter: false"
        )
    for name in ("offload_optimizer", "offload_param"):
        device = zero.get(name, {}).get("device", "cpu")
        if device not in ("cpu", "none"):
            raise ValueError(f"zero_optimization.{name}.device = {device!r}: {_NVME}")


def _check_value(name: str, value: Any) -> None:
    """Check the value of a key of `zero_optimization`, which is a size, a mapping, or true or false."""
    if name in _SIZES.split():
        whole = isinstance(value, int | float) and not isinstance(value, bool) and value >= 0 and value == int(value)
        if not whole:
            raise ValueError(f"zero_optimization.{name} = {value!r}: must be a whole number, at least 0")
    elif name not in _MAPPINGS.split() and not isinstance(value, bool):
        raise ValueError(f"zero_optimization.{name} = {value!r}: must be true or false")


def _check(keys: Any, path: str, known: Collection[str]) -> None:
    if not isinstance(keys, Mapping):
        raise ValueError(f"{path} = {keys!r}: must be a mapping")
    for name, value in keys.items():
        full = f"{path}.{name}".lstrip(".")
        if full in REFUSED:
            raise ValueError(f"{full} is not passed to DeepSpeed: {REFUSED[full]}; leave it out")
        if name not in known:
            refused = {key.rpartition(".")[2] for key in REFUSED if key.rpartition(".")[0] == path}
            raise ValueError(f"DeepSpeed {VERSION} has no key {full!r}{close_match(name, {*known, *refused})}")
        if full in INNER_KEYS:
            _check(value, full, INNER_KEYS[full])
