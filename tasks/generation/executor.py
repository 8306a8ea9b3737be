"""vLLM's worker inside its engine core: one process fewer, and none that polls.

By default vLLM on a CPU puts the worker into a process of its own, which it binds to cores, and reserves one more core
for the engine core: the two poll shared memory while they wait for each other. On a machine of few cores that polling
takes them from the model, and from a learner beside it. Here the engine core calls the worker.
"""

from __future__ import annotations

import os
import threading
import time

from vllm.v1.executor.uniproc_executor import UniProcExecutor


class InProcessExecutor(UniProcExecutor):
    """The worker in the engine core's process, which ends when the process that started it is gone."""

    def _init_executor(self) -> None:
        threading.Thread(target=_end_with, args=(os.getppid(),), name="end-with-parent", daemon=True).start()
        super()._init_executor()


def _end_with(parent: int) -> None:
    """End this process once it is orphaned: a killed parent shuts nothing down, and the engine holds gigabytes."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)
