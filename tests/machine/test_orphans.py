"""A process ends once its parent is gone, however the parent ended."""

import os
import subprocess
import sys
import time

import pytest

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


def wait_for_end(pid):
    until = time.monotonic() + 30
    while runs(pid):
        assert time.monotonic() < until, "the process still runs"
        time.sleep(0.01)


def test_a_process_ends_soon_after_its_parent_was_killed():
    done = subprocess.run([sys.executable, "-c", PARENT], capture_output=True, text=True, cwd=ROOT, timeout=120)
    wait_for_end(int(done.stdout))


LEADER = """
import subprocess, sys
member = subprocess.Popen([sys.executable, "-c", sys.argv[1]])
print(member.pid, flush=True)
member.wait()
"""

MEMBER = """
import os, time
from tasks.machine import orphans
{before}
orphans.POLL_SECONDS = 0.01
orphans.when_leaderless(lambda: os._exit(0))
time.sleep(60)
"""


@pytest.mark.parametrize("before", ["", "while os.getppid() == os.getpgrp(): time.sleep(0.01)"], ids=["runs", "starts"])
def test_a_member_of_a_group_ends_with_the_groups_leader_also_where_it_was_still_starting(before):
    leader = subprocess.Popen(
        [sys.executable, "-c", LEADER, MEMBER.format(before=before)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        cwd=ROOT,
    )
    member = int(leader.stdout.readline())
    leader.kill()  # not waited for yet, so that its entry in the process table stays
    wait_for_end(member)
    leader.wait()


STARTING = """
import multiprocessing, os, signal, sys, time

def core():
    from tasks.machine import orphans
    while os.getppid() == multiprocessing.parent_process().pid:
        time.sleep(0.01)
    orphans.POLL_SECONDS = 0.01
    orphans.when_abandoned(lambda: os._exit(1))
    time.sleep(60)

if __name__ == "__main__":
    process = multiprocessing.get_context("spawn").Process(target=core)
    process.start()
    print(process.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_process_that_was_still_starting_when_its_parent_was_killed_ends(tmp_path):
    (tmp_path / "starting.py").write_text(STARTING)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, tmp_path / "starting.py"], capture_output=True, text=True, env=environment, timeout=120
    )
    wait_for_end(int(done.stdout))
