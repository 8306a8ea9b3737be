"""The tiny model, built once."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from tiny_model import build


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    """A Hugging Face folder with a random Llama, its tokenizer and a chat template."""
    return build(tmp_path_factory.mktemp("model") / "tiny")
