"""What a stage held while it ran."""

import os

import pytest

from tasks.machine import resources

CORES = len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("limit", "cores"), [("max 100000", CORES), ("50000 100000", 0.5), ("100000000 100000", CORES), (None, CORES)]
)
def test_a_containers_limit_is_what_it_has_of_a_larger_machine(tmp_path, monkeypatch, limit, cores):
    if limit is not None:
        (tmp_path / "cpu.max").write_text(f"{limit}\n")
    monkeypatch.setattr(resources, "QUOTA", tmp_path / "cpu.max")
    assert resources.process_cores() == (cores, 0)
