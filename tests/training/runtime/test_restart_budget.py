"""Restarts count within a window of time."""

from tasks.training.runtime.restart_budget import RestartBudget


def test_a_restart_leaves_the_budget_when_its_window_has_passed():
    budget = RestartBudget(2, window_seconds=10.0)
    for now in (0.0, 4.0):
        budget.record(now)
    assert [budget.used(now) for now in (4.0, 10.0, 10.5, 14.5)] == [2, 2, 1, 0]


def test_the_oldest_restart_frees_the_budget_first():
    budget = RestartBudget(1, window_seconds=10.0)
    assert budget.compute_seconds_until_freed(3.0) == 0
    budget.record(3.0)
    budget.record(5.0)
    assert budget.compute_seconds_until_freed(6.0) == 7.0
