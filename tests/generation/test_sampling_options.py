"""Where responses end and what they may be: the engine's log-probabilities say what each token was drawn from."""

import asyncio
import math

import pytest
from pydantic import ValidationError

from tasks.generation.chat_template import ChatTemplateError, encode
from tasks.generation.config import EngineConfig, SamplingConfig
from tasks.generation.interface import VersionSpan
from tasks.recipe.run import TrainingConfig

PROMPT = [5, 6, 7]


@pytest.fixture(scope="module")
def tokenizer(tiny_model):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(tiny_model)


@pytest.fixture(scope="module")
def policy(tiny_model):
    """Log-probabilities of all tokens after each one of a response."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)

    def logprobs(response):
        with torch.no_grad():
            logits = model(torch.tensor([[*PROMPT, *response]])).logits[0, len(PROMPT) - 1 : -1]
        return logits.log_softmax(-1)

    return logprobs


async def drawn(engine, count, sampling):
    return await asyncio.gather(*(engine.generate(PROMPT, sampling, seed=seed) for seed in range(count)))


@pytest.mark.engine
@pytest.mark.parametrize("by", ["text", pytest.param("token", marks=pytest.mark.complete)])
def test_a_response_ends_with_what_stops_it_and_its_tokens_are_the_policys(engine, loop, tokenizer, policy, by):
    token = tokenizer.encode("e", add_special_tokens=False)[0]
    stops = {"stop": ["e"]} if by == "text" else {"stop_token_ids": [token]}
    sampling = SamplingConfig(max_tokens=100, **stops)
    responses = loop.run(drawn(engine, 40, sampling))
    stopped = [
        response
        for response in responses
        if response.token_ids[-1] != tokenizer.eos_token_id and not response.truncated
    ]
    assert stopped
    for response in stopped:
        if by == "text":
            assert response.text.endswith("e")
            assert "e" not in response.text[:-1]
        else:
            assert response.text.endswith("e")  # it is no special token, and so is part of the text
            assert response.token_ids[-1] == token
            assert token not in response.token_ids[:-1]
        assert response.versions == [VersionSpan(0, 0, len(response.token_ids))]
        expected = [
            row[token].item() for row, token in zip(policy(response.token_ids), response.token_ids, strict=True)
        ]
        assert response.logprobs == pytest.approx(expected, abs=1e-4)


@pytest.mark.complete
@pytest.mark.engine
def test_a_text_of_several_tokens_stops_a_response_too(engine, loop, tokenizer):
    responses = loop.run(drawn(engine, 20, SamplingConfig(max_tokens=100)))
    text = next(response.text for response in responses if len(response.text) > 8)
    several = text[1:5]
    cut = loop.run(drawn(engine, 20, SamplingConfig(max_tokens=100, stop=[several])))
    ended = [response for response in cut if several in response.text]
    assert ended
    for response in ended:
        assert response.text.endswith(several)
        assert len(response.token_ids) == len(response.logprobs) == response.versions[-1].end


@pytest.mark.engine
def test_under_a_regex_log_probabilities_are_those_among_the_tokens_that_can_match(engine, loop, policy):
    """They sum to 1 over what is possible, and each is the policy's but for one constant: the weight is known."""
    responses = loop.run(drawn(engine, 300, SamplingConfig(max_tokens=8, guided_regex="[0-9]")))
    assert {response.text for response in responses} == set("0123456789")
    first = {int(response.token_ids[0]): float(response.logprobs[0]) for response in responses}
    assert len(first) == 10
    assert sum(math.exp(value) for value in first.values()) == pytest.approx(1, abs=1e-4)
    plain = policy([next(iter(first))])[0]
    constants = [value - plain[token].item() for token, value in first.items()]
    assert constants == pytest.approx([constants[0]] * 10, abs=1e-4)
    assert constants[0] == pytest.approx(-math.log(sum(math.exp(plain[token].item()) for token in first)), abs=1e-4)
    for response in responses:  # after a digit, nothing but the end is possible
        assert response.logprobs[1:] == pytest.approx([0.0] * (len(response.token_ids) - 1), abs=1e-6)


THINKING = (
    "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    "{% if enable_thinking is defined and not enable_thinking %} no thoughts{% endif %}"
)


DATED = (
    "{% if date_string is not defined %}{% set date_string = strftime_now('%d %b %Y') %}{% endif %}"
    "{% for message in messages %}{{ message['content'] }}{% endfor %} Today: {{ date_string }}"
)


SEA = {"prompt_id": "a1", "source": "test", "messages": [{"role": "user", "content": "Sea?"}], "environment": None}


def test_a_prompt_that_the_template_refuses_is_named(tokenizer):
    tokenizer.chat_template = "{{ raise_exception('Conversation roles must alternate') }}"
    with pytest.raises(ChatTemplateError, match=r"prompt a1 of source 'test' \(roles: user\): .*must alternate"):
        encode(tokenizer, [SEA], {})


def test_a_template_that_prints_the_date_prints_one_that_does_not_change(tokenizer):
    tokenizer.chat_template = DATED
    assert tokenizer.decode(encode(tokenizer, [SEA], {})[0]) == "Sea? Today: 26 Jul 2024"
    [dated] = encode(tokenizer, [SEA], {"date_string": "1 May 2025"})
    assert tokenizer.decode(dated) == "Sea? Today: 1 May 2025"


def without_cut(text):
    """The text without a character at its end that tokens have cut: vLLM waits for the rest of it."""
    return text.rstrip("\N{REPLACEMENT CHARACTER}")


@pytest.mark.engine
def test_the_text_has_special_tokens_but_for_the_one_that_ends_it(engine, loop, tokenizer):
    responses = loop.run(drawn(engine, 40, SamplingConfig(max_tokens=100)))
    for response in responses:
        ended = not response.truncated
        tokens = response.token_ids[:-1] if ended else response.token_ids
        assert without_cut(response.text) == without_cut(tokenizer.decode(tokens, skip_special_tokens=False))
    assert any("<|pad|>" in response.text or "<|im_start|>" in response.text for response in responses)


@pytest.mark.complete
@pytest.mark.engine
def test_a_stop_string_is_not_seen_in_the_token_that_ends_a_response(engine, loop, tokenizer):
    responses = loop.run(drawn(engine, 40, SamplingConfig(max_tokens=100, stop=["im_end"])))
    ended = [response for response in responses if response.token_ids[-1] == tokenizer.eos_token_id]
    assert ended
    for response in ended:
        whole = tokenizer.decode(response.token_ids[:-1], skip_special_tokens=False)
        assert without_cut(response.text) == without_cut(whole)


def test_variables_of_the_chat_template_reach_it(tokenizer):
    tokenizer.chat_template = THINKING

    def text(**variables):
        return tokenizer.decode(encode(tokenizer, [SEA], variables)[0])

    assert text() == text(enable_thinking=True) == "Sea?"
    assert text(enable_thinking=False) == "Sea? no thoughts"
    with pytest.raises(
        ChatTemplateError, match=r"chat_template_kwargs: thinking: the template of .* has no such variab"
    ):
        text(thinking=False)
    with pytest.raises(ChatTemplateError, match="add_generation_prompt: it is set here"):
        text(add_generation_prompt=False)


@pytest.mark.parametrize("name", ["repetition_penalty", "logit_bias", "min_tokens"])
def test_an_argument_of_vllm_beside_our_options_is_refused_with_the_way_and_the_reason(name):
    message = f"give vllm.{name} in difficulty and evaluation; training .* every importance weight would be wrong"
    with pytest.raises(ValidationError, match=message):
        SamplingConfig.model_validate({name: 1})


@pytest.mark.engine
def test_outside_of_training_the_distribution_may_be_cut(engine, loop, policy):
    greedy = loop.run(engine.generate(PROMPT, SamplingConfig(max_tokens=8, temperature=0.0)))
    likeliest = [int(row.argmax()) for row in policy(greedy.token_ids)]
    assert greedy.token_ids.tolist() == likeliest
    for cut in ({"top_k": 1}, {"min_p": 1.0}):
        responses = loop.run(drawn(engine, 5, SamplingConfig(max_tokens=8, **cut)))
        assert {tuple(response.token_ids.tolist()) for response in responses} == {tuple(likeliest)}


@pytest.mark.engine
def test_arguments_of_vllm_reach_it(engine, loop):
    from tasks.generation.interface import EngineOptionsError

    few = [40, 41, 42]
    responses = loop.run(drawn(engine, 20, SamplingConfig(max_tokens=8, vllm={"allowed_token_ids": few})))
    assert {int(token) for response in responses for token in response.token_ids} == set(few)
    biased = SamplingConfig(max_tokens=8, vllm={"logit_bias": {41: 100.0}})
    assert biased == SamplingConfig.model_validate_json(biased.model_dump_json())
    responses = loop.run(drawn(engine, 5, biased))
    assert {int(token) for response in responses for token in response.token_ids} == {41}
    with pytest.raises(EngineOptionsError, match=r"sampling.vllm = .*min_tokens: .*valid integer"):
        loop.run(drawn(engine, 1, SamplingConfig(max_tokens=8, vllm={"min_tokens": "few"})))
    with pytest.raises(EngineOptionsError, match=r"sampling.vllm = .*repetition_penalty"):
        loop.run(drawn(engine, 1, SamplingConfig(max_tokens=8, vllm={"repetition_penalty": -1.0})))


@pytest.mark.long
def test_a_budget_of_thinking_reaches_vllms_parameters_and_not_the_policys_in_training():
    from tasks.generation.engine_sampling import build_sampling_parameters
    from tasks.generation.interface import EngineOptionsError

    def budget(tokens):
        sampling = SamplingConfig(max_tokens=8, vllm={"thinking_token_budget": tokens})
        return build_sampling_parameters(sampling, seed=0, with_logprobs=False).thinking_token_budget

    assert budget(4) == 4
    with pytest.raises(EngineOptionsError, match=r"sampling.vllm = .*thinking_token_budget"):
        budget(-2)
    with pytest.raises(ValidationError, match=r"sampling.vllm.thinking_token_budget: training refuses it"):
        TrainingConfig.model_validate({"sampling": {"vllm": {"thinking_token_budget": 4}}})


@pytest.mark.engine
@pytest.mark.complete
def test_an_engine_ends_thinking_at_its_budget(tiny_model, tokenizer, loop):
    """A model that thinks on is made to end its thinking, and answers; the tags are tokens, as those of models are."""
    from tasks.generation.engine import Engine

    tags = {"reasoning_start_str": tokenizer.pad_token, "reasoning_end_str": tokenizer.eos_token}
    options = EngineConfig(max_model_len=128, max_num_seqs=4, cpu_threads=1, vllm={"reasoning_config": tags})
    prompt = [*PROMPT, tokenizer.pad_token_id]
    budgets = [{"thinking_token_budget": 6}, {}]

    async def answers():
        engine = await Engine.start(tiny_model, options)
        try:
            given = [SamplingConfig(max_tokens=20, vllm={"ignore_eos": True} | budget) for budget in budgets]
            return await asyncio.gather(*(engine.generate(prompt, sampling, seed=1) for sampling in given))
        finally:
            engine.shutdown()

    ended, endless = (response.token_ids.tolist() for response in loop.run(answers()))
    assert tokenizer.eos_token_id not in endless
    assert ended[:7] == [*endless[:6], tokenizer.eos_token_id]
    assert len(ended) == 20


def test_what_is_no_regular_expression_is_refused_before_anything_starts():
    with pytest.raises(ValidationError, match=r"'\[0-9' is not a regular expression: unterminated character set"):
        SamplingConfig(guided_regex="[0-9")
