"""Starts vLLM with the options of this project's engines and a separate environment."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.generation.config import EngineConfig
from tasks.generation.engine_output import EngineOutput
from tasks.generation.interface import EngineError, EngineOptionsError, EngineStatistics, EngineUse, ServedAdapter
from tasks.machine import precision
from tasks.machine.engine_errors import make_memory_error
from tasks.machine.image import check_image_of_pod
from tasks.machine.large_imports import large_imports
from tasks.machine.memory_limit import add_cause
from tasks.machine.resources import has_gpu
from tasks.storage.model_folder import has_experts

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM

REFUSALS = (RuntimeError, ValueError, OSError)
"""Types of errors that vLLM raises if it does not start."""
REFUSALS_OF_ARGUMENTS = (*REFUSALS, TypeError, AttributeError, KeyError, AssertionError)
"""`REFUSALS`, and the errors that vLLM raises if an argument that is passed through has a value of a wrong type."""


def load(model: str, config: EngineConfig, output: EngineOutput, use: EngineUse) -> tuple[AsyncLLM, EngineStatistics]:
    """Start vLLM, and return it with the statistics that it updates.

    Raises:
        EngineError: vLLM could not start. The message contains the reason that its process printed.
        EngineOptionsError: vLLM does not accept the model or the options.
        ShortOfMemoryError: vLLM did not start for lack of memory.
        MemoryLimitError: vLLM did not start for lack of memory, and waiting does not help.
        ImageError: the image is for machines with GPUs but the pod has none, or the reverse.
    """
    check_image_of_pod()
    if not has_gpu() and config.vllm.get("enable_chunked_prefill"):
        raise EngineOptionsError(
            "engine.vllm.enable_chunked_prefill: without a GPU prompts are computed whole, as vLLM cannot rewind a "
            "request's seed after a part of its prompt; leave it out"
        )
    with large_imports():
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.usage.usage_lib import UsageContext
        from vllm.v1.engine.async_llm import AsyncLLM

    from tasks.generation.engine_stats import Recorder

    options: dict[str, Any] = {}
    recorder = Recorder()
    from tasks.generation.executor import InProcessExecutor, WatchedMultiprocExecutor

    # Inside a placement group vLLM would choose Ray automatically, and request GPUs that this process already has.
    is_one = config.gpus_of_replica == 1
    options["distributed_executor_backend"] = InProcessExecutor if is_one else WatchedMultiprocExecutor
    if not has_gpu():
        # vLLM cannot rewind a request's CPU generator after a partial prefill, so seeds need whole prefills.
        options |= {"enable_chunked_prefill": False, "max_num_batched_tokens": max(config.max_model_len, 4096)}
        options["kv_cache_memory_bytes"] = round(config.cpu_kv_cache_gib * 2**30)
    if use.can_sleep and has_gpu():  # without a GPU a sleeping engine only pauses, for which vLLM needs no option
        options["enable_sleep_mode"] = True
    options["enable_return_routed_experts"] = use.returns_routes
    if use.head_dtype != "model":
        options["hf_overrides"] = {"head_dtype": use.head_dtype}
    if use.adapter is not None:
        options |= _build_adapter_options(Path(model), use.adapter)
    elif use.updatable:
        options |= _update_options()
    refusals = REFUSALS_OF_ARGUMENTS if config.vllm else REFUSALS
    try:
        llm = AsyncLLM.from_engine_args(
            AsyncEngineArgs(
                model=model,
                dtype=precision.resolve(config.dtype, gpu=has_gpu()),
                max_model_len=config.max_model_len,
                max_num_seqs=config.max_num_seqs,
                tensor_parallel_size=config.tensor_parallel_size,
                gpu_memory_utilization=config.share_of_gpu,
                enforce_eager=config.is_eager(gpu=has_gpu()),
                seed=config.seed,
                logprobs_mode="processed_logprobs",
                disable_log_stats=False,
                use_tqdm_on_load=False,
                **options | config.vllm,
            ),
            usage_context=UsageContext.LLM_CLASS,  # vLLM's largest defaults: 8,192 to 16,384 tokens per batch on GPUs
            stat_loggers=[lambda *_: recorder],
        )
    except refusals as error:
        # The engine's process raises its error only there. This process sees only that it has ended.
        given = f" with engine.vllm = {config.vllm}" if config.vllm else ""
        start, reason = f"vLLM does not start on {model}{given}", output.find_reason(error)
        if short := make_memory_error(start, reason, "cpu_kv_cache_gib of the engine"):
            raise short from error
        is_mistake = not isinstance(error, RuntimeError) or output.has_mistake(error)
        kind = EngineOptionsError if is_mistake else EngineError
        raise kind(add_cause(f"{start}: {reason}")) from error
    if has_gpu():
        from vllm.platforms import current_platform

        recorder.statistics.gpu = current_platform.get_device_name()
    return llm, recorder.statistics


def _update_options() -> dict[str, Any]:
    """Return vLLM's options for an engine whose weights are replaced."""
    from vllm.config import WeightTransferConfig

    from tasks.generation.scheduler import SCHEDULER
    from tasks.generation.weight_transfer import BACKEND, WORKER_EXTENSION

    return {
        "scheduler_cls": SCHEDULER,
        "weight_transfer_config": WeightTransferConfig(backend=BACKEND),
        "worker_extension_cls": WORKER_EXTENSION,
    }


def _build_adapter_options(model: Path, adapter: ServedAdapter) -> dict[str, Any]:
    """Return vLLM's options for an engine whose adapter is replaced.

    Raises:
        EngineOptionsError: the model is a mixture of experts and there is no GPU.
    """
    if not has_gpu() and has_experts(model):
        raise EngineOptionsError(
            f"lora: model {model} is a mixture of experts, and vLLM serves adapters of those on GPUs alone; train all "
            "weights, or use a machine with a GPU"
        )
    from tasks.generation.adapter import WORKER_EXTENSION, choose_rank
    from tasks.generation.scheduler import SCHEDULER

    return {
        "scheduler_cls": SCHEDULER,
        "enable_lora": True,
        "max_loras": 1,
        "max_lora_rank": choose_rank(adapter.rank),
        "lora_target_modules": list(adapter.layers),
        "worker_extension_cls": WORKER_EXTENSION,
    }
