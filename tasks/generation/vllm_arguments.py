"""Checks the arguments that are passed through to vLLM, and lists the refused ones with the reasons.

Arguments that this pipeline sets itself or does not use are always refused, because they would be overridden or
ignored. Training also refuses arguments that make the engine's log-probabilities differ from those that the learner
computes, and arguments that put weights or cached values out of reach of an in-flight weight update.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
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


FILE = Path(__file__).with_suffix(".json")
"""Arguments that are refused, by reason, always or in training. In a reason, `{name}` is the name of the argument, and
`{falsified}` is `FALSIFIED`."""

_CONTENT = json.loads(FILE.read_text())


def _list_reasons(kind: str) -> dict[str, str]:
    """Return the reason by argument."""
    refused: dict[str, list[str]] = _CONTENT[kind]
    return {name: why.format(name=name, falsified=FALSIFIED) for why, names in refused.items() for name in names}


_ENGINE_OF_OURS = _list_reasons("engine")
"""Engine arguments that are always refused, with the reasons."""

ENGINE_REFUSED_IN_TRAINING = _list_reasons("engine_in_training")
"""Engine arguments that training refuses, with the reasons."""

_SAMPLING_OF_OURS = _list_reasons("sampling")
"""Sampling arguments that are always refused, with the reasons."""

SAMPLING_REFUSED_IN_TRAINING = _list_reasons("sampling_in_training")
"""Sampling arguments that training refuses, with the reasons."""


def check_engine_arguments(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return engine arguments after a check of their names, and of the values that decide the number of GPUs.

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
    return arguments


def check_sampling_arguments(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return sampling arguments after a check of their names.

    Raises:
        ValueError: vLLM has no such argument, or it is refused.
    """
    _check(arguments, SAMPLING_ARGUMENTS, _SAMPLING_OF_OURS, "sampling")
    return arguments


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
