"""What the controller does for each completion, counted: it does not grow with what is in flight."""

import sys

import pytest

from tests.bench.controller import measure


class LineCount:
    """Counts the lines of Python that are executed, one for each turn of a loop."""

    def __init__(self):
        self.lines = 0

    def __call__(self):
        return self.lines

    def __enter__(self):
        self._before = sys.gettrace()
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_):
        sys.settrace(self._before)

    def _trace(self, _frame, event, _argument):
        self.lines += event == "line"
        return self._trace


def lines_per_completion(in_flight, actors):
    with LineCount() as count:
        measured = measure(in_flight, actors, clock=count)
    return measured.cost / measured.completions


@pytest.fixture(scope="module", autouse=True)
def imported():
    """What is imported on the way is no part of what a completion costs."""
    measure(160, 4)


@pytest.mark.complete
@pytest.mark.long
def test_a_completion_costs_no_more_with_eight_times_as_many_in_flight():
    assert lines_per_completion(5120, 4) < 1.03 * lines_per_completion(640, 4)


@pytest.mark.complete
@pytest.mark.long
def test_a_completion_costs_little_more_with_ten_times_as_many_actors():
    assert lines_per_completion(2560, 40) < 1.5 * lines_per_completion(2560, 4)
