"""The tiny model, built once for all tests that need one."""

import pytest

from tests.tiny_model import build


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    """A Hugging Face folder with a random Llama, its tokenizer and a chat template."""
    return build(tmp_path_factory.mktemp("model") / "tiny")
