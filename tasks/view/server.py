"""Runs Inspect's viewer in Inspect's environment, in a process that ends with its parent.

Its arguments are the parent's process id, the path of the command `inspect`, and the arguments of this command.
"""

from __future__ import annotations

import os
import runpy
import sys

from tasks.machine.orphans import when_orphaned


def main() -> None:
    """Serve until a signal ends this process or its parent ends, also if it is killed."""
    _, parent, *command = sys.argv
    when_orphaned(int(parent), lambda: os._exit(1))
    sys.argv = command
    runpy.run_path(command[0], run_name="__main__")
