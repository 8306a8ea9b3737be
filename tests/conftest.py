"""The tiny model, built once for all tests that need one."""

import pytest

from tests.tiny_model import build


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    """A Hugging Face folder with a random Llama, its tokenizer and a chat template."""
    return build(tmp_path_factory.mktemp("model") / "tiny")


def pytest_collection_modifyitems(items):
    """Files with whole pipelines first, then those with engines: else the last of them would run alone."""
    cost = {"pipeline": 2, "engine": 1}
    files = {}
    for item in items:
        costs = [cost.get(mark.name, 0) for mark in item.iter_markers()]
        files[item.path] = max(files.get(item.path, 0), *costs, 0)
    items.sort(key=lambda item: -files[item.path])
