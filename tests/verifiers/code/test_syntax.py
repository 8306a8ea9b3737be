"""Threads that judge programs parse at the same time."""

import gc
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from tasks.verifiers.code.syntax import parse
from tests.examples import examples

SOURCE = "".join(f"assert candidate([{i}, [1, 2, (3, {i})]]) == {i}\n" for i in range(300))


@pytest.fixture
def hasty():
    """Threads take turns as often as they can, in the middle of a tree too."""
    before, interval = gc.get_threshold(), sys.getswitchinterval()
    gc.set_threshold(5, 2, 2)
    gc.callbacks.append(takes_a_turn)
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)
    gc.callbacks.remove(takes_a_turn)
    gc.set_threshold(*before)


def takes_a_turn(*_):
    for _ in range(200):
        pass


@pytest.mark.complete
@pytest.mark.long
@pytest.mark.usefixtures("hasty")
def test_no_thread_fails_because_another_one_parses():
    with ThreadPoolExecutor(8) as threads:
        assert all(len(tree.body) == 300 for tree in threads.map(parse, [SOURCE] * examples(1500)))
