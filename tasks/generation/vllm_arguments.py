"""Checks the arguments that are passed through to vLLM, and lists the refused ones with the reasons.

Arguments that this pipeline sets itself or does not use are always refused, because they would be overridden or
ignored. Training also refuses arguments that make the engine's log-probabilities differ from those that the learner
computes, and arguments that put weights or cached values out of reach of an in-flight weight update.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from tasks.config.loading import close_match
from tasks.generation.vllm_names import ENGINE_ARGUMENTS, SAMPLING_ARGUMENTS, VERSION

FALSIFIED = (
    "tokens would be sampled from another distribution than the one that the learner computes, and every importance "
    "weight would be wrong"
)
"""The reason that training gives for refusing an argument that changes the distribution of a token."""

PARALLEL_SIZES = ("pipeline_parallel_size", "prefill_context_parallel_size", "data_parallel_size")
"""Engine arguments that multiply the number of an engine's GPUs, in addition to the tensor parallel size."""

COMPILED = ("compilation_config", "cudagraph_capture_sizes", "max_cudagraph_capture_size", "optimization_level")
"""Engine arguments that vLLM ignores if it runs without compiled graphs."""

HEAD_QUANTISED_BY = frozenset({
    *("modelopt", "modelopt_fp4", "modelopt_mxfp8", "modelopt_mixed", "compressed-tensors", "inc"),
    *("awq", "auto_awq", "awq_marlin", "gptq", "auto_gptq", "gptq_marlin", "moe_wna16"),
})  # fmt: skip
"""Values of `quantization` for which vLLM quantises the head too if the checkpoint says so. The other methods quantise
linear layers and experts only (`get_quant_method` in `vllm.model_executor.layers.quantization`)."""


def _make_reasons(reason: str, names: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), reason)


_ONE_MACHINE = "an engine runs on one machine, on GPUs that Ray gives it; `data_parallel_size` and its like are enough"
_OUTPUT = "nothing reads what it adds to an output"
_ADAPTER = "adapters are set up by `lora` of the recipe"
_ENGINE_OF_OURS = {
    **_make_reasons("the recipe's `model` sets it", "model model_weights tokenizer hf_config_path served_model_name"),
    **_make_reasons("the recipe's `model` sets it", "revision code_revision tokenizer_revision hf_token"),
    **{
        name: f"`engine.{name}` sets it"
        for name in (
            *("dtype", "max_model_len", "max_num_seqs", "tensor_parallel_size", "gpu_memory_utilization"),
            *("enforce_eager", "seed"),
        )
    },
    **_make_reasons(_ADAPTER, "enable_lora max_loras max_lora_rank default_mm_loras fully_sharded_loras max_cpu_loras"),
    **_make_reasons(_ADAPTER, "lora_dtype lora_target_modules enable_tower_connector_lora specialize_active_lora"),
    **_make_reasons(_ADAPTER, "enable_mixed_moe_lora_format enable_moe_shared_loras max_lora_cls_labels"),
    **_make_reasons("`sampling` sets what requests are sampled with", "generation_config override_generation_config"),
    "logprobs_mode": "log-probabilities belong to the distribution that a token was sampled from",
    **_make_reasons(
        "the pipeline sets it to replace weights, follow the load and stop the engine",
        "distributed_executor_backend scheduler_cls worker_cls worker_extension_cls weight_transfer_config "
        "disable_log_stats use_tqdm_on_load shutdown_timeout",
    ),
    **_make_reasons("requests are served in the order in which they come", "scheduling_policy"),
    **_make_reasons("a request that is sent must not be turned away", "max_num_queued_reqs max_num_queued_tokens"),
    **_make_reasons(
        "an engine generates text from the tokens of a prompt",
        "runner convert pooler_config skip_tokenizer_init enable_prompt_embeds tokens_only io_processor_plugin",
    ),
    **_make_reasons(
        "`placement: time_shared` of the recipe puts engines to sleep",
        "enable_sleep_mode sleep_mode_offload_cudagraph sleep_preserve_parameter_names",
    ),
    **_make_reasons(
        _ONE_MACHINE,
        "master_addr master_port nnodes node_rank device_ids data_parallel_rank data_parallel_start_rank "
        "data_parallel_size_local data_parallel_address data_parallel_rpc_port data_parallel_hybrid_lb "
        "data_parallel_external_lb data_parallel_multi_port_external_lb data_parallel_backend",
    ),
    **_make_reasons("the number of an engine's GPUs never changes", "enable_elastic_ep elastic_ep_max_dp_size"),
    **_make_reasons(_OUTPUT, "enable_return_routed_experts return_sampling_mask aux_output_config stream_interval"),
}
"""Engine arguments that are always refused, with the reasons."""

_REJECTION = (
    "vLLM drafts tokens that weight updates in flight do not reach, and accepts several at once: it is not known that "
    "their log-probabilities and weight versions stay exact"
)
_OLD_CACHE = "keys and values that older weights computed would outlive a weight update outside of the engine"
_OFFLOADED = "weights outside of the GPU's memory are not reached by a weight update"
ENGINE_REFUSED_IN_TRAINING = {
    **_make_reasons(_REJECTION, "speculative_config spec_method spec_model spec_tokens diffusion_config"),
    **_make_reasons(FALSIFIED, "logits_processors watermark_config enable_trace_replay"),
    **_make_reasons(
        "the engine would compute another model than the learner trains", "hf_overrides model_class_overrides"
    ),
    "kv_sharing_fast_prefill": "log-probabilities of a prompt, which check the engine against the learner, are wrong",
    **_make_reasons(_OLD_CACHE, "kv_transfer_config kv_events_config ec_transfer_config"),
    **_make_reasons(_OLD_CACHE, "kv_offloading_size kv_offloading_backend"),
    **_make_reasons(_OFFLOADED, "offload_backend cpu_offload_gb cpu_offload_params offload_group_size"),
    **_make_reasons(_OFFLOADED, "offload_num_in_group offload_prefetch_step offload_params"),
    **_make_reasons(
        "experts move between GPUs, and a weight update is loaded to where they were first", "enable_eplb eplb_config"
    ),
}
"""Engine arguments that training refuses, with the reasons."""

_SAMPLING_OF_OURS = {
    "n": "`sampling.samples` sets it",
    **{
        name: f"`sampling.{name}` sets it"
        for name in ("temperature", "top_p", "top_k", "min_p", "max_tokens", "stop", "stop_token_ids", "seed")
    },
    "structured_outputs": "`sampling.guided_regex` sets it",
    **_make_reasons(
        "the pipeline sets which log-probabilities are computed",
        "logprobs prompt_logprobs prompt_logprob_token_ids prompt_logprob_start logprob_token_ids flat_logprobs",
    ),
    **_make_reasons(
        "the text of a response is that of its tokens",
        "detokenize skip_special_tokens spaces_between_special_tokens include_stop_str_in_output",
    ),
    **_make_reasons(_OUTPUT, "output_kind stream_interval skip_clone output_text_buffer_length"),
    **_make_reasons(_OUTPUT, "routed_experts_prompt_start"),
    "trace_decode_token_ids": "the response would be given and not sampled",
    "repetition_detection": "a response ends with its own end or at `sampling.max_tokens`",
}
"""Sampling arguments that are always refused, with the reasons."""

SAMPLING_REFUSED_IN_TRAINING = _make_reasons(
    FALSIFIED,
    "presence_penalty frequency_penalty repetition_penalty logit_bias allowed_token_ids bad_words min_tokens "
    "ignore_eos thinking_token_budget watermarking extra_args",
)
"""Sampling arguments that training refuses, with the reasons."""


def check_engine_arguments(arguments: Mapping[str, Any]) -> None:
    """Check the names of engine arguments, and the values that decide the number of an engine's GPUs.

    Raises:
        ValueError: vLLM has no such argument, it is refused, or a parallel size is not a positive integer.
    """
    _check(arguments, ENGINE_ARGUMENTS, _ENGINE_OF_OURS, "engine")
    for name in PARALLEL_SIZES:
        size = arguments.get(name, 1)
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise ValueError(f"{name} = {size!r}: must be a whole number above 0")
    if arguments.get("load_format") == "dummy":
        raise ValueError("load_format = 'dummy': the weights would be random numbers")


def check_sampling_arguments(arguments: Mapping[str, Any]) -> None:
    """Check the names of sampling arguments.

    Raises:
        ValueError: vLLM has no such argument, or it is refused.
    """
    _check(arguments, SAMPLING_ARGUMENTS, _SAMPLING_OF_OURS, "sampling")


def _check(arguments: Mapping[str, Any], known: Collection[str], refused: Mapping[str, str], kind: str) -> None:
    for name in arguments:
        if name not in known:
            raise ValueError(f"vLLM {VERSION} has no {kind} argument {name!r}{close_match(name, known)}")
        if name in refused:
            raise ValueError(f"{name} is not passed to vLLM: {refused[name]}; leave it out")


def refuse_in_training(option: str, arguments: Mapping[str, Any], refused: Mapping[str, str]) -> str | None:
    """Return an error message about the first argument that training refuses, or None if it refuses none.

    Args:
        option: path of the recipe option that contains the arguments.
        arguments: the arguments.
        refused: `ENGINE_REFUSED_IN_TRAINING` or `SAMPLING_REFUSED_IN_TRAINING`.
    """
    for name in arguments:
        if name in refused:
            return f"{option}.{name}: training refuses it: {refused[name]}; leave it out"
    return None


def check_thinking_budget(sampling: Mapping[str, Any], engine: Mapping[str, Any], where: str = "sampling") -> None:
    """Check that an engine can enforce the thinking budget of responses.

    Args:
        sampling: the sampling arguments.
        engine: the arguments of the engine that samples.
        where: path of the option that contains the sampling arguments as `vllm`.

    Raises:
        ValueError: there is a budget, but the engine does not know the texts that begin and end the thinking.
    """
    budget = sampling.get("thinking_token_budget")
    if budget in (None, -1) or engine.get("reasoning_parser") or engine.get("reasoning_config"):
        return
    raise ValueError(
        f"{where}.vllm.thinking_token_budget is {budget!r}, and the engine does not know where thinking ends: give "
        "engine.vllm.reasoning_parser, such as qwen3, or engine.vllm.reasoning_config, such as "
        "{reasoning_start_str: <think>, reasoning_end_str: </think>}"
    )
