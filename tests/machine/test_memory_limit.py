"""A process that the kernel kills for memory is named, with the limit and the option that helps."""

import json
import os
import subprocess
import sys

import pytest

from tasks.machine import memory_limit
from tasks.machine.memory_limit import GIB, MemoryLimit, MemoryWatch
from tests.paths import ROOT

FILES = {
    2: ("memory.max", "memory.events", "low 0\nhigh 0\nmax 31\noom 2\noom_kill {}\noom_group_kill 0\n"),
    1: ("memory.limit_in_bytes", "memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill {}\n"),
}
"""The kernel's files of the limit and of the counter, and the text of the latter, by version."""


class Group:
    """A stand-in of a control group and of its processes, in a folder."""

    def __init__(self, folder, version, path="/pod/container"):
        self.mounts, self.processes = folder / "cgroup", folder / "proc"
        self.files = FILES[version]
        self.top = self.mounts / "memory" if version == 1 else self.mounts
        self.folder = self.top / path.strip("/")
        for made in (self.folder, self.processes / "self"):
            made.mkdir(parents=True)
        membership = f"9:pids:/\n4:memory:{path}\n0::/\n" if version == 1 else f"0::{path}\n"
        (self.processes / "self" / "cgroup").write_text(membership)
        (self.processes / "meminfo").write_text("MemTotal:       33554432 kB\nMemFree: 1 kB\n")
        self.count(0)
        self.limit_to(str(14 * GIB))
        self.members = {}

    def count(self, kills):
        (self.folder / self.files[1]).write_text(self.files[2].format(kills))

    def limit_to(self, text, folder=None):
        ((folder or self.folder) / self.files[0]).write_text(f"{text}\n")

    def add(self, pid, gib, *command, group=None):
        folder = self.processes / str(pid)
        folder.mkdir()
        (folder / "status").write_text(f"Name:\tx\nVmRSS:\t 99 kB\nRssAnon:\t {int(gib * GIB / 1024)} kB\n")
        (folder / "cmdline").write_text("\0".join(command) + "\0")
        (folder / "stat").write_text(f"{pid} (a (name) x) S 1 {group or pid} 0 0\n")
        self.members[pid] = folder
        self._write()

    def kill(self, pid):
        (self.members.pop(pid) / "status").unlink()
        self._write()

    def _write(self):
        (self.folder / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in self.members))

    def read(self):
        return MemoryLimit.from_this_process(self.mounts, self.processes)


@pytest.fixture(params=FILES)
def group(request, tmp_path):
    return Group(tmp_path, request.param)


def training(group):
    """The processes of the quickstart's training in float32."""
    group.add(11, 2.5, "python", "-m", "tasks.training", "run")
    group.add(12, 6.1, "ray::LearnerRank.step")
    group.add(13, 2.7, "VLLM::EngineCore")
    group.add(14, 0.2, "/usr/bin/python3", "-m", "tasks.verifiers.chat.launcher", "11")
    group.add(15, 1.9, "VLLM::EngineCore", group=14)
    group.add(16, 0.01, "/usr/bin/bwrap", "--ro-bind")


def test_a_kill_is_named_with_its_process_the_limit_and_the_option(group, caplog):
    training(group)
    watch = MemoryWatch(group.read())
    assert (watch.describe_recent(), watch.report(), watch.kills) == ("", "", 0)
    group.kill(12)
    group.count(1)
    assert watch.describe_recent() == (
        "the kernel killed a process (learner rank 6.1 GiB) because of the memory limit of 14.0 GiB; the largest "
        "processes were learner rank 6.1 GiB, engine 2.7 GiB, tasks.training 2.5 GiB, judge's server 1.9 GiB; lower "
        "learner.micro_batch_tokens, or raise memory_gib of the pod"
    )
    assert (watch.report(), watch.kills) == (watch.describe_recent(), 1)
    assert [record.message for record in caplog.records] == [watch.report()]


def test_a_kill_below_the_limit_is_put_down_to_the_machine(group):
    peaks = {2: "memory.peak", 1: "memory.max_usage_in_bytes"}
    training(group)
    (group.folder / peaks[2 if group.files is FILES[2] else 1]).write_text(f"{11 * GIB}\n")
    watch = MemoryWatch(group.read())
    group.kill(12)
    group.count(1)
    assert (
        "killed a process (learner rank 6.1 GiB) because of the machine's memory, which is used up; "
        in watch.describe_recent()
    )
    assert watch.describe_recent().endswith("or close other programs")


def test_what_was_lost_just_after_a_kill_is_put_down_to_it(group, monkeypatch):
    training(group)
    watch = MemoryWatch(group.read())
    monkeypatch.setattr(memory_limit, "watch", lambda: watch)
    assert memory_limit.add_cause("a rank was lost") == "a rank was lost"
    group.kill(12)
    group.count(1)
    assert memory_limit.add_cause("a rank was lost") == f"a rank was lost: {watch.report()}"
    monkeypatch.setattr(memory_limit, "RECENT_SECONDS", 0)
    assert memory_limit.add_cause("a rank was lost") == "a rank was lost"


def test_a_kill_on_another_node_has_its_limit_and_its_processes(group, tmp_path):
    training(group)
    watch = MemoryWatch(group.read())
    other = Group(tmp_path / "other", 2)
    other.limit_to(str(11 * GIB))
    other.add(7, 10.2, "ray::LearnerRank.step")
    other.count(3)
    watch.see(other.read().read(), "10.0.0.3")
    assert watch.kills == 0, "those before the first reading"
    other.kill(7)
    other.count(4)
    after = other.read().read()
    for _ in range(2):  # a process that is started again reads the same counter
        watch.see(after, "10.0.0.3")
    assert watch.describe_recent("10.0.0.3") == (
        "the kernel killed a process (learner rank 10.2 GiB) because of the memory limit of 11.0 GiB of node 10.0.0.3; "
        "the largest processes were learner rank 10.2 GiB; lower learner.micro_batch_tokens, or raise memory_gib of "
        "the pod"
    )
    assert (watch.describe_recent(), watch.describe_recent("10.0.0.4"), watch.kills) == ("", "", 1)
    assert watch.report() == watch.describe_recent("10.0.0.3")


def test_a_process_that_does_not_start_is_told_of_with_the_limit_and_what_the_others_have(group):
    training(group)
    watch = MemoryWatch(group.read())
    assert watch.explain("no engine").startswith(
        "no engine, within the memory limit of 14.0 GiB; the largest processes were learner rank 6.1 GiB, engine "
    )
    assert watch.explain("no engine", "lower x").endswith("; lower x, or raise memory_gib of the pod")
    assert (watch.kills, watch.report()) == (0, "")


def test_files_that_the_kernel_would_drop_are_counted(group):
    assert group.read().cached() == 0
    own, all_of_it = "inactive_file 5\nactive_file 6\n", "total_inactive_file 70\ntotal_active_file 8\n"
    (group.folder / "memory.stat").write_text(f"anon 900\n{own}{all_of_it if group.files == FILES[1] else ''}")
    assert group.read().cached() == (78 if group.files == FILES[1] else 11)


def test_kills_before_the_watch_began_do_not_count(group):
    group.count(3)
    watch = MemoryWatch(group.read())
    assert (watch.describe_recent(), watch.kills) == ("", 0)
    group.count(5)
    assert watch.report().startswith("the kernel killed a process because of")
    assert watch.kills == 1, "both at one time, by one peak"


def test_the_lowest_limit_of_the_outer_groups_holds(group):
    assert group.read().limit() == 14 * GIB
    group.limit_to(8 * GIB, group.folder.parent)
    assert group.read().limit() == group.read().available() == 8 * GIB


@pytest.mark.parametrize("text", ["max", "9223372036854771712"])
def test_without_a_limit_the_machines_memory_is_the_bound(group, text):
    training(group)
    group.limit_to(text)
    watch = MemoryWatch(group.read())
    assert group.read().limit() is None
    assert group.read().available() == 32 * GIB
    group.count(1)
    assert "because of the machine's memory, which is used up" in watch.describe_recent()
    assert watch.describe_recent().endswith("or close other programs")


def test_a_container_sees_its_own_group_alone(tmp_path):
    """Its path is one of the host's, of which nothing exists within."""
    outside = Group(tmp_path, 1, path="/")
    (outside.processes / "self" / "cgroup").write_text("4:memory:/kubepods/burstable/pod7\n")
    assert outside.read().folder == outside.top
    assert outside.read().limit() == 14 * GIB


def test_a_system_without_control_groups_has_no_limit_and_no_kills(tmp_path):
    limit = MemoryLimit.from_this_process(tmp_path / "nothing", tmp_path)
    assert (limit.limit(), limit.kills(), limit.sizes()) == (None, 0, {})


CHILD = """
import json, os, subprocess, sys
from pathlib import Path
from tasks.machine.memory_limit import MemoryLimit, MemoryWatch

(Path(sys.argv[1]) / "cgroup.procs").write_text(str(os.getpid()))
program = "held = bytearray(120 * 2**20); print(flush=True); input(); held = held * 9"
child = subprocess.Popen([sys.executable, "-c", program], stdin=-1, stdout=-1)
child.stdout.readline()
watch = MemoryWatch(MemoryLimit.from_this_process())
child.stdin.write(b"\\n")
child.stdin.close()
print(json.dumps([child.wait(), watch.describe_recent(), watch.kills]))
"""


@pytest.mark.long
def test_the_kernels_own_kill_is_named():
    own = MemoryLimit.from_this_process()
    folder = own.folder / f"rlvr-test-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made below {own.folder}: {error.strerror}")
    try:
        limits = [folder / name for name in ("memory.max", "memory.limit_in_bytes") if (folder / name).exists()]
        if not limits:
            pytest.skip(f"{own.folder} gives the groups below it no memory controller")
        limits[0].write_text(str(GIB // 4))
        done = subprocess.run(
            [sys.executable, "-c", CHILD, str(folder)], capture_output=True, text=True, cwd=ROOT, timeout=120
        )
        assert done.returncode == 0, done.stderr
        code, sentence, kills = json.loads(done.stdout)
        assert (code, kills) == (-9, 1)
        assert "because of the memory limit of 0.2 GiB" in sentence
        assert "killed a process (" in sentence
    finally:
        folder.rmdir()


def test_freed_memory_is_returned_to_the_system():
    program = (
        "import re, sys; from tasks.machine.memory_limit import return_freed_memory; "
        "used = lambda: int(re.search(r'RssAnon:\\s+(\\d+)', open('/proc/self/status').read())[1]) // 1024; "
        "blocks = [bytearray(100_000) for _ in range(3000)]; last = bytearray(100_000); before = used(); "
        "del blocks; return_freed_memory(); print(before - used())"
    )
    command = [sys.executable, "-c", program]
    freed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert int(freed) > 250  # of 300 MB, below a block that is in use
