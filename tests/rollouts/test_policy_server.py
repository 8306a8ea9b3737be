"""Responses from a server that someone else runs: the same as an engine's, and which failure means what."""

import asyncio
import json

import pytest
from pydantic import ValidationError
from transformers import AutoTokenizer

from tasks.difficulty.spec import DifficultySpec
from tasks.evaluation.spec import EvaluationSpec, check_server
from tasks.failures import MistakeError
from tasks.generation.config import EndpointConfig, EngineConfig, SamplingConfig
from tasks.generation.interface import EngineError, EngineOptionsError
from tasks.recipe.run import TrainingConfig
from tasks.rollouts.policy_server import open_server
from tasks.verifiers.chat.config import JudgeConfig, ServerConfig
from tasks.verifiers.chat.server import serve
from tests.generation.conftest import CONTEXT
from tests.verifiers.chat.fake_endpoint import FakeEndpoint, Reply, failing, scripted

PROMPT = [5, 6, 7, 8]
SAMPLING = SamplingConfig(max_tokens=8, temperature=0.5, stop=["STOP"])


def answered(text, finish_reason="stop", tokens=3):
    choice = {"index": 0, "text": text, "finish_reason": finish_reason, "logprobs": None}
    usage = {"prompt_tokens": 4, "completion_tokens": tokens, "total_tokens": 4 + tokens}
    answer = {
        "id": "1",
        "object": "text_completion",
        "created": 0,
        "model": "policy",
        "choices": [choice],
        "usage": usage,
    }
    return Reply(json.dumps(answer).encode(), headers={"Content-Type": "application/json"})


def listed(*models, **fields):
    """The reply to a question for the server's models."""
    data = [{"id": name, "object": "model", "created": 0, "owned_by": "a", **fields} for name in models]
    body = json.dumps({"object": "list", "data": data}).encode()
    return lambda _request: Reply(body, headers={"Content-Type": "application/json"})


def server(reply, models=None):
    return FakeEndpoint(reply, path="/completions", beside={"/v1/models": models or listed("policy")})


def sampled(url, tiny_model, *, count=1, sampling=SAMPLING, engine=None, **options):
    """The responses to `count` requests at the same time."""
    endpoint = EndpointConfig(url=url, model="policy", retries=1, **options)

    async def main():
        async with open_server(endpoint, tiny_model, engine or EngineConfig(max_model_len=64)) as policy:
            return await asyncio.gather(*(policy.generate(PROMPT, sampling, seed=seed) for seed in range(count)))

    return asyncio.run(main())


@pytest.mark.complete
@pytest.mark.engine
@pytest.mark.long
def test_a_server_answers_as_an_engine_of_the_stage(tiny_model, loop, engine):
    """vLLM's own server of the same weights: greedy texts, numbers of tokens and ends are those of the engine."""
    options = ServerConfig(max_model_len=CONTEXT, dtype="float32", cpu_threads=1, max_num_seqs=8)
    judge = JudgeConfig(model=str(tiny_model), server=options)
    greedy = SamplingConfig(max_tokens=24, temperature=0.0)
    prompts = [[first, 7, 9] for first in range(3, 11)]
    with serve(judge) as served:
        endpoint = EndpointConfig(url=served.url, model=served.model, api_key_env=served.api_key_env)

        async def answers():
            async with open_server(endpoint, tiny_model, EngineConfig(max_model_len=CONTEXT)) as policy:
                return await asyncio.gather(*(policy.generate(prompt, greedy) for prompt in prompts))

        of_server = asyncio.run(answers())
        with pytest.raises(EngineOptionsError, match=f"a context of {CONTEXT} tokens, and engine.max_model_len is 999"):
            asyncio.run(_opened(endpoint, tiny_model, EngineConfig(max_model_len=999)))
        with pytest.raises(EngineOptionsError, match="401"):
            asyncio.run(_opened(endpoint.model_copy(update={"api_key_env": None}), tiny_model, EngineConfig()))
    of_engine = loop.run(_all(engine.generate(prompt, greedy, with_logprobs=False) for prompt in prompts))
    assert [(one.text, one.num_tokens, one.finish_reason) for one in of_server] == [
        (one.text, one.num_tokens, one.finish_reason) for one in of_engine
    ]


async def _opened(endpoint, model, engine):
    async with open_server(endpoint, model, engine):
        pass


async def _all(calls):
    return await asyncio.gather(*calls)


def test_a_request_has_the_tokens_and_all_options_by_name(tiny_model, monkeypatch):
    monkeypatch.setenv("POLICY_KEY", "secret")
    sampling = SamplingConfig(
        max_tokens=8, temperature=0.5, top_p=0.9, top_k=7, min_p=0.1, stop=["STOP"], stop_token_ids=[3],
        guided_regex="a+", vllm={"repetition_penalty": 1.1},
    )  # fmt: skip
    with server(lambda _: answered("one STOP")) as endpoint:
        [response] = sampled(endpoint.url, tiny_model, sampling=sampling, api_key_env="POLICY_KEY")
        [(headers, request)] = endpoint.requests
    assert (response.text, response.num_tokens, response.finish_reason) == ("one STOP", 3, "stop")
    assert {name.lower(): value for name, value in headers.items()}["authorization"] == "Bearer secret"
    assert request == {
        "model": "policy", "prompt": PROMPT, "max_tokens": 8, "temperature": 0.5, "top_p": 0.9, "stop": ["STOP"],
        "seed": 0, "top_k": 7, "min_p": 0.1, "stop_token_ids": [3], "structured_outputs": {"regex": "a+"},
        "repetition_penalty": 1.1, "presence_penalty": 0.0, "frequency_penalty": 0.0,
        "include_stop_str_in_output": True, "skip_special_tokens": False,
        "spaces_between_special_tokens": False,
    }  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("options", [{"temperature": 0.0}, {"top_k": 5, "vllm": {"repetition_penalty": 1.3}}])
def test_a_server_takes_no_option_of_sampling_from_the_models_files(tiny_model, options):
    """vLLM's own reading of the request, with a generation_config.json that sets all that it may set."""
    from vllm.entrypoints.openai.completion.protocol import CompletionRequest

    from tasks.generation.engine_sampling import build_sampling_parameters

    sampling = SamplingConfig(max_tokens=8, **options)
    with server(lambda _: answered("one")) as endpoint:
        sampled(endpoint.url, tiny_model, sampling=sampling)
        [(_, request)] = endpoint.requests
    penalties = ("repetition_penalty", "presence_penalty", "frequency_penalty")
    names = (*penalties, "temperature", "top_p", "top_k", "min_p")
    of_files = dict.fromkeys(names, 0.5) | {"top_k": 20, "repetition_penalty": 1.1}
    read = CompletionRequest(**request).to_sampling_params(8, of_files)
    ours = build_sampling_parameters(sampling, seed=0, with_logprobs=False)
    assert {name: getattr(read, name) for name in names} == {name: getattr(ours, name) for name in names}


def test_the_token_that_ended_a_response_is_no_part_of_it(tiny_model):
    end = AutoTokenizer.from_pretrained(tiny_model).eos_token
    with server(scripted(answered(f"four{end}"), answered(f"cut{end}", "length"))) as endpoint:
        texts = [sampled(endpoint.url, tiny_model)[0].text for _ in range(2)]
    assert texts == ["four", f"cut{end}"]


def test_half_of_an_emoji_in_an_answer_is_escaped_so_that_it_can_be_stored(tiny_model):
    with server(scripted(answered("half \ud83d"))) as endpoint:
        assert sampled(endpoint.url, tiny_model)[0].text == r"half \ud83d"


def test_requests_in_flight_are_as_many_as_the_engine_would_decode(tiny_model):
    slow = answered("a")
    slow.delay_s = 0.2
    with server(lambda _: slow) as endpoint:
        sampled(endpoint.url, tiny_model, count=9, engine=EngineConfig(max_model_len=64, max_num_seqs=3))
        assert endpoint.most_at_once == 3


@pytest.mark.parametrize(
    ("reply", "kind", "message"),
    [
        (failing(500, b'{"error": {"message": "out of memory"}}'), EngineError, "out of memory"),
        (failing(429), EngineError, "429"),
        (Reply(drop=True), EngineError, "Connection error"),
        (Reply(b"<html>", headers={"Content-Type": "text/html"}), EngineError, "without a response"),
        (Reply(b"{}", headers={"Content-Type": "application/json"}), EngineError, "without a response"),
        (Reply(b"{", headers={"Content-Type": "application/json"}), EngineError, "engine.server"),
        (answered("a", finish_reason="abort"), EngineError, "ended a response with finish_reason 'abort'"),
        (failing(400, b'{"error": {"message": "top_k is unknown"}}'), EngineOptionsError, "top_k is unknown"),
        (failing(401), EngineOptionsError, "401"),
    ],
)
def test_a_failure_of_the_server_is_retried_elsewhere_and_a_refusal_is_a_mistake(tiny_model, reply, kind, message):
    with server(lambda _: reply) as endpoint, pytest.raises(kind, match=message):
        sampled(endpoint.url, tiny_model)


def test_one_failure_is_no_failure(tiny_model):
    with server(scripted(failing(503, retry_after="0"), answered("fine"))) as endpoint:
        assert sampled(endpoint.url, tiny_model)[0].text == "fine"


def test_a_server_that_lacks_the_model_or_context_or_is_away_is_named(tiny_model, monkeypatch):
    with server(lambda _: answered("a"), listed("base", "other")) as endpoint:
        with pytest.raises(EngineOptionsError, match="has no model 'policy'; it has base, other"):
            sampled(endpoint.url, tiny_model)
        url = endpoint.url
    small = listed("policy", max_model_len=32)
    context = r"a context of 32 tokens, and engine\.max_model_len is 64"
    with server(lambda _: answered("a"), small) as endpoint, pytest.raises(EngineOptionsError, match=context):
        sampled(endpoint.url, tiny_model)
    with pytest.raises(EngineError, match=f"{url}: Connection error"):
        sampled(url, tiny_model)
    monkeypatch.delenv("POLICY_KEY", raising=False)
    with pytest.raises(EngineOptionsError, match="no variable POLICY_KEY"):
        sampled(url, tiny_model, api_key_env="POLICY_KEY")


def test_a_server_is_refused_where_it_cannot_do_the_work():
    with_server = {"server": {"url": "http://host:8000/v1/", "model": "policy"}}
    assert EngineConfig.model_validate(with_server).server.url == "http://host:8000/v1"
    assert EngineConfig.model_validate(with_server).gpus == 0
    with pytest.raises(ValidationError, match="training needs its own engines"):
        TrainingConfig.model_validate({"actors": {"engine": with_server}})
    with pytest.raises(ValidationError, match="tensor_parallel_size: an option of the stage's own engine"):
        EngineConfig.model_validate(with_server | {"tensor_parallel_size": 2})
    with pytest.raises(ValidationError, match=r"compared\.other\.model: another checkpoint"):
        DifficultySpec.model_validate(
            {"engine": with_server, "compared": {"other": {"model": {"source": {"kind": "folder", "path": "m"}}}}}
        )
    with pytest.raises(MistakeError, match="serves 'policy' alone"):
        check_server(EvaluationSpec.model_validate({"engine": with_server}))
