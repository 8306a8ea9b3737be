"""The tests of this folder run with one thread of torch."""

import pytest


@pytest.fixture(autouse=True, scope="module")
def _one_thread(one_thread):
    """Use the fixture in every file."""
