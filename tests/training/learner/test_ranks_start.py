"""What is said about ranks that start: free CPUs only when they can be the reason."""

import asyncio

import pytest

from tasks.recipe.learner import LearnerConfig
from tasks.training.learner import ranks_start
from tasks.training.learner.ranks_start import IMPORT_SECONDS, RanksStart


@pytest.fixture(autouse=True)
def busy(monkeypatch):
    async def free_resources():
        return "0 of 2 CPUs are free"

    monkeypatch.setattr(ranks_start, "describe_free_resources", free_resources)
    monkeypatch.setattr(ranks_start, "is_one_machine", lambda: True)


def described(ranks, seconds, *, placed=False, limit=600.0):
    now = [0.0]
    start = RanksStart(LearnerConfig(ranks=ranks), limit, clock=lambda: now[0])
    now[0], start.placed = seconds, placed
    return asyncio.run(start.describe())


def test_while_processes_import_what_they_need_no_lack_of_cpus_is_reported():
    assert "CPU" not in described(1, 60.0)
    assert "0 of 2 CPUs are free" in described(1, IMPORT_SECONDS)


def test_on_several_machines_the_lack_is_reported_at_once(monkeypatch):
    monkeypatch.setattr(ranks_start, "is_one_machine", lambda: False)
    assert "0 of 2 CPUs are free" in described(1, 60.0)


def test_an_error_names_what_is_free_also_if_the_limit_is_shorter():
    assert "0 of 2 CPUs are free" in described(1, 10.0, limit=10.0)


def test_after_placement_the_message_says_that_ranks_load_the_model():
    assert described(2, 500.0, placed=True) == "2 learner ranks load the model and find each other"


@pytest.mark.parametrize(("ranks", "seconds"), [(1, 0.0), (1, 500.0), (2, 0.0), (2, 500.0)])
def test_one_rank_is_singular(ranks, seconds):
    assert ("learner ranks" in described(ranks, seconds)) == (ranks == 2)
