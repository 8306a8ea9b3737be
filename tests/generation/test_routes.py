"""The routes of an engine's responses. vLLM returns them on GPUs alone, so that its part is played here."""

from types import SimpleNamespace

import numpy as np
import pytest

from tasks.generation.config import EngineConfig, SamplingConfig
from tasks.generation.interface import EngineError, EngineOptionsError, EngineStatistics, EngineUse
from tests.model_check.families import build

pytestmark = pytest.mark.engine


class PlayedLLM:
    """Answers each request with three tokens and with `routes`, as vLLM 0.32 does."""

    def __init__(self, routes):
        self._routes = routes

    async def generate(self, _prompt, _parameters, **_options):
        from vllm.logprobs import Logprob
        from vllm.outputs import CompletionOutput

        logprobs = [{token: Logprob(-0.5)} for token in (7, 8, 9)]
        answer = CompletionOutput(0, "abc", [7, 8, 9], -1.5, logprobs, self._routes, finish_reason="length")
        yield SimpleNamespace(outputs=[answer], finished=True)


def generated(loop, routes, *, returns_routes):
    from tasks.generation.engine import Engine

    engine = Engine(
        PlayedLLM(routes), EngineConfig(), EngineStatistics(), None, None, EngineUse(returns_routes=returns_routes)
    )
    return loop.run(engine.generate([1, 2, 3, 4], SamplingConfig(max_tokens=3)))


def test_a_response_has_the_routes_of_all_tokens_but_the_last(loop):
    routes = np.arange(6 * 2 * 2, dtype=np.uint8).reshape(6, 2, 2)
    np.testing.assert_array_equal(generated(loop, routes, returns_routes=True).routes, routes)
    assert generated(loop, None, returns_routes=False).routes is None


@pytest.mark.parametrize(("routes", "number"), [(None, 0), (np.zeros((7, 2, 2), np.uint8), 7)])
def test_routes_of_other_tokens_are_an_error(loop, routes, number):
    with pytest.raises(EngineError, match=f"routes of {number} tokens instead of 6"):
        generated(loop, routes, returns_routes=True)


def test_vllm_is_asked_for_routes_and_has_none_on_cpus(loop, tmp_path):
    from tasks.generation.engine import Engine

    folder = build(tmp_path / "model", "qwen3_moe")
    with pytest.raises(EngineOptionsError, match="Model Runner V2"):
        loop.run(Engine.start(folder, EngineConfig(max_model_len=64), EngineUse(returns_routes=True)))
