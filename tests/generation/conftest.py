"""One engine for the files that look at what an engine returns: starting it takes longer than most of their tests."""

import asyncio
import os

import psutil
import pytest

from tasks.generation.config import EngineConfig
from tasks.generation.interface import EngineUse

CONTEXT = 320
BATCHED_TOKENS = 4099


@pytest.fixture(scope="package")
def loop():
    """The event loop in which the engine lives."""
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="package")
def before():
    """The child processes from before the engine."""
    return set(psutil.Process().children(recursive=True))


@pytest.fixture(scope="package")
def engine(tiny_model, loop, before):
    """Eight sequences at a time in float32, so that log-probabilities can be compared closely."""
    from tasks.generation.engine import Engine

    arguments = {"max_num_batched_tokens": BATCHED_TOKENS}
    options = EngineConfig(max_model_len=CONTEXT, max_num_seqs=8, dtype="float32", cpu_threads=1, vllm=arguments)
    environment = dict(os.environ)
    engine = loop.run(Engine.start(tiny_model, options, EngineUse(updatable=True)))
    assert dict(os.environ) == environment, "what the engine needs is no business of this process's other children"
    yield engine
    engine.shutdown()
