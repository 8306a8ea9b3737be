"""The time of an engine is divided among the workloads that it serves, and nothing is lost."""

import pytest

from tasks.rollouts.time_shares import TimeShares


def test_time_is_divided_by_requests_under_way_and_adds_up():
    """Two requests of one workload and one of another for 3 s, then the other alone for 5 s; none for 4 s."""
    moments = iter([0.0, 0.0, 0.0, 3.0, 3.0, 8.0, 12.0, 13.0])
    shares = TimeShares(3, lambda: next(moments))
    one, same, other = shares.request(0), shares.request(0), shares.request(1)
    for request in (one, same, other):
        request.__enter__()
    for request in (one, same, other):
        request.__exit__(None, None, None)
    assert shares.seconds == pytest.approx([2.0, 1.0 + 5.0, 0.0])
    with shares.request(2):
        pass
    assert shares.seconds == pytest.approx([2.0, 6.0, 1.0])


def test_a_request_that_fails_is_no_longer_under_way():
    moments = iter([0.0, 1.0, 5.0, 7.0])
    shares = TimeShares(2, lambda: next(moments))
    with pytest.raises(ZeroDivisionError), shares.request(0):
        raise ZeroDivisionError
    with shares.request(1):
        pass
    assert shares.seconds == pytest.approx([1.0, 2.0])
