"""What all tests share: the tiny model, what vLLM knows of it, and their order."""

import os
from itertools import zip_longest
from pathlib import Path

import pytest

from tests.tiny_model import build

# Many tests give a process a home of its own, where vLLM would find out anew what it knows of the model's class.
os.environ.setdefault("VLLM_CACHE_ROOT", str(Path("~/.cache/vllm").expanduser()))


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    """A Hugging Face folder with a random Llama, its tokenizer and a chat template."""
    return build(tmp_path_factory.mktemp("model") / "tiny")


def pytest_collection_modifyitems(items):
    """Whole pipelines first, then files with engines, which compute, by turns with others, which mostly wait."""
    files = {}
    for item in items:
        files.setdefault(item.path, []).append(item)

    def marked(path, name):
        return any(item.get_closest_marker(name) for item in files[path])

    pipelines = [path for path in files if marked(path, "pipeline")]
    # In reverse, as the longest, whole runs of training, have late names.
    engines = [path for path in reversed(files) if marked(path, "engine") and path not in pipelines]
    others = [path for path in files if path not in {*pipelines, *engines}]
    others.sort(key=lambda path: not marked(path, "long"))
    by_turns = [path for pair in zip_longest(engines, others) for path in pair if path]
    items[:] = [item for path in (*pipelines, *by_turns) for item in files[path]]
