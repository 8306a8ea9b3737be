"""What a stage held while it ran."""

import os
import platform

import numpy as np
import psutil
import pytest

from tasks.machine import resources
from tasks.machine.memory_limit import return_freed_memory

CORES = len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("limit", "cores"), [("max 100000", CORES), ("50000 100000", 0.5), ("100000000 100000", CORES), (None, CORES)]
)
def test_a_containers_limit_is_what_it_has_of_a_larger_machine(tmp_path, monkeypatch, limit, cores):
    if limit is not None:
        (tmp_path / "cpu.max").write_text(f"{limit}\n")
    monkeypatch.setattr(resources, "QUOTA", tmp_path / "cpu.max")
    assert resources.process_cores() == (cores, 0)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other libraries return memory by themselves")
def test_freed_memory_goes_back_to_the_system():
    process = psutil.Process()
    blocks = [np.ones(12_000) for _ in range(2000)]  # too small to be mapped one by one
    last = blocks.pop()  # at the heap's end, which glibc returns by itself
    del blocks
    before = process.memory_info().rss
    return_freed_memory()
    assert before - process.memory_info().rss > 100e6
    assert last.sum() == 12_000
