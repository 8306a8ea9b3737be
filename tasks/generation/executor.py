"""Defines vLLM executors whose engine ends when the process that started it ends, even if that process was killed.

`InProcessExecutor` runs the worker inside the engine core's process. By default vLLM on a CPU runs the worker in a
separate process that it binds to cores, and reserves one more core for the engine core. The two processes poll shared
memory while they wait for each other. On a machine with few cores this polling takes CPU time from the model and from
a learner on the same machine. Here the engine core calls the worker directly, so there is one process fewer and
nothing polls. `WatchedMultiprocExecutor` is for engines with several workers.
"""

from __future__ import annotations

import multiprocessing
import os

import torch
from vllm.utils import cpu_resource_utils
from vllm.v1.executor.multiproc_executor import MultiprocExecutor
from vllm.v1.executor.uniproc_executor import UniProcExecutor

from tasks.machine.memory_limit import MemoryLimit
from tasks.machine.orphans import when_abandoned, when_orphaned

_usage_of_group = cpu_resource_utils.get_cgroup_memory_usage


def measure_memory() -> int | None:
    """Return the memory of the control group in use without cached files, in bytes.

    It replaces vLLM's function, which counts cached files as used memory. vLLM refuses to start if its KV cache does
    not fit next to the used memory. Files that were read or written fill the rest of a pod's memory sooner or later,
    and the kernel drops them when memory is needed.
    """
    usage = _usage_of_group()
    return None if usage is None else max(0, usage - MemoryLimit.from_this_process().cached())


cpu_resource_utils.get_cgroup_memory_usage = measure_memory

if multiprocessing.current_process().name != "MainProcess":
    # An engine core's process imports this module with its arguments, long before it creates the executor.
    when_abandoned(lambda: os._exit(1))


class InProcessExecutor(UniProcExecutor):
    """Runs the worker in the engine core's process, which ends when the process that started it is gone."""

    def _init_executor(self) -> None:
        when_orphaned(os.getppid(), lambda: os._exit(1))
        if torch.cpu._is_amx_tile_supported():
            torch.cpu._init_amx()  # a process must request AMX from Linux before use; vLLM's attention does not do so
        super()._init_executor()


class WatchedMultiprocExecutor(MultiprocExecutor):
    """Runs one worker process per GPU of an engine. All of them end when the process that started the engine is gone.

    vLLM's workers watch a pipe to the engine core and end with it. But the engine core watches nothing and would
    keep the memory of all its GPUs allocated until the machine is restarted.
    """

    def _init_executor(self) -> None:
        when_orphaned(os.getppid(), lambda: os._exit(1))
        super()._init_executor()
