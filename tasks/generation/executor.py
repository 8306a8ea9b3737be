"""vLLM executors whose engine ends with the process that started it, however that ended.

One runs the worker inside the engine core's process: one process fewer, and none that polls. By default vLLM on a CPU
puts the worker into a process of its own, which it binds to cores, and reserves one more core for the engine core: the
two poll shared memory while they wait for each other. On a machine of few cores that polling takes CPU time from the
model, and from a learner beside it. Here the engine core calls the worker. The other is for engines of several workers.
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


def usage_without_files() -> int | None:
    """Return the memory of the control group that is in use, bytes, for vLLM's function of what is used and cached.

    vLLM refuses to start where its KV cache does not fit beside that. Files that were read or written fill the rest of
    a pod's memory sooner or later, and the kernel drops them where memory is needed.
    """
    usage = _usage_of_group()
    return None if usage is None else max(0, usage - MemoryLimit.of_this_process().cached())


cpu_resource_utils.get_cgroup_memory_usage = usage_without_files

if multiprocessing.current_process().name != "MainProcess":
    # An engine core's process imports this module with its arguments, long before it makes the executor.
    when_abandoned(lambda: os._exit(1))


class InProcessExecutor(UniProcExecutor):
    """The worker in the engine core's process, which ends when the process that started it is gone."""

    def _init_executor(self) -> None:
        when_orphaned(os.getppid(), lambda: os._exit(1))
        if torch.cpu._is_amx_tile_supported():
            torch.cpu._init_amx()  # a process must ask Linux for AMX before it uses it; vLLM's attention does not ask
        super()._init_executor()


class WatchedMultiprocExecutor(MultiprocExecutor):
    """A worker process for each GPU of an engine, all of which end when the process that started the engine is gone.

    vLLM's workers end with the engine core, whose end of a pipe they watch; its engine core watches nothing, and would
    hold the memory of all its GPUs until the machine is restarted.
    """

    def _init_executor(self) -> None:
        when_orphaned(os.getppid(), lambda: os._exit(1))
        super()._init_executor()
