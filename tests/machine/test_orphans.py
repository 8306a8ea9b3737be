"""A process ends once its parent is gone, however the parent ended."""

import subprocess
import sys
import time

from tests.paths import ROOT

CHILD = """
import os, time
from tasks.machine import orphans

orphans.POLL_SECONDS = 0.01
orphans.when_orphaned(os.getppid(), lambda: os._exit(1))
print(os.getpid(), flush=True)
time.sleep(60)
"""
PARENT = f"""
import os, signal, subprocess, sys

child = subprocess.Popen([sys.executable, "-c", {CHILD!r}], stdout=subprocess.PIPE, text=True)
print(child.stdout.readline(), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def runs(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().split()[2] != "Z"
    except OSError:
        return False


def test_a_process_ends_soon_after_its_parent_was_killed():
    done = subprocess.run([sys.executable, "-c", PARENT], capture_output=True, text=True, cwd=ROOT, timeout=120)
    child = int(done.stdout)
    until = time.monotonic() + 30
    while runs(child):
        assert time.monotonic() < until, "the child still runs"
        time.sleep(0.01)
