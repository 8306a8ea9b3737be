"""Sets the environment variables of vLLM's processes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from tasks.generation.config import EngineConfig
from tasks.machine import cpu_variables
from tasks.machine.resources import has_gpu


@contextlib.contextmanager
def set_engine_variables(config: EngineConfig, sockets: str) -> Iterator[None]:
    """Set the environment variables of vLLM's processes while the block runs. Later child processes do not get them."""
    settings = choose_runner(config) | {
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_RPC_BASE_PATH": sockets,
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",  # a fork would inherit our threads and their locks
    }
    if not has_gpu():
        settings |= cpu_variables.ENGINE | {
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": str(config.cpu_threads or len(os.sched_getaffinity(0))),
        }
        if config.is_eager(gpu=False):
            # vLLM compiles one function of its sampler even then, which needs a C++ compiler and takes 17 seconds.
            settings["TORCHDYNAMO_DISABLE"] = "1"
    before = dict(os.environ)
    os.environ.update(settings)
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():  # vLLM adds more variables
            del os.environ[name]
        os.environ.update(before)


def choose_runner(config: EngineConfig) -> dict[str, str]:
    """Return the variable that makes vLLM use the model runner of the options, or {} if vLLM chooses."""
    return {"VLLM_USE_V2_MODEL_RUNNER": "0"} if config.model_runner == "v1" else {}
