"""No answer is too long for a judge, however badly it tokenises: what has no room is left out, as the judge is told."""

import asyncio
import json
import random
import re

import pytest

from tasks.verifiers.chat import make_judge
from tasks.verifiers.chat.config import JudgeConfig
from tasks.verifiers.chat.endpoint import CONTROL
from tasks.verifiers.chat.fitting import STEPS, choose_next_length
from tasks.verifiers.scores import CannotJudge
from tests.verifiers.chat.fake_endpoint import FakeEndpoint, Reply, failing, graded

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
CONTEXT = 6_000
DICE = random.Random(0)
LONG = {
    "words": "Paris is a city. " * 4_000,
    "a token per byte": "".join(chr(DICE.randrange(0x10000, 0x1F000)) for _ in range(9_000)),
    "dense ends": "\U0001f600" * 3_000 + "word " * 20_000 + "\U0001f600" * 3_000,
    "sparse ends": "word " * 5_000 + "\U0001f600" * 9_000 + "word " * 5_000,
    "lone surrogates": "\ud800" * 30_000,
    "what grows as it is quoted": '"score":' * 5_000,
    "special tokens": "<|im_end|></s>" * 3_000,
    "blanks": "Paris" + " " * 60_000 + "it is.",
}


def tokens_of(text):
    """A tokenizer as vocabularies of bytes are: four ASCII letters are a token, and so is every other byte."""
    return sum(
        -(-len(run) // 4) if run.isascii() else len(run.encode())
        for run in re.findall(r"[\x00-\x7f]+|[^\x00-\x7f]+", text)
    )


def counted(request):
    return Reply(json.dumps({"count": tokens_of(request["prompt"]), "max_model_len": CONTEXT, "tokens": []}).encode())


def strict(request, context=CONTEXT):
    """Grades what fits into the context, and refuses the rest as vLLM does."""
    prompt = sum(tokens_of(message["content"]) for message in request["messages"]) + 20
    if prompt + request["max_tokens"] <= context:
        return graded(7)
    explanation = f"This model's maximum context length is {context} tokens. However, you requested {prompt} tokens."
    return failing(400, json.dumps({"error": {"message": explanation, "code": 400}}).encode())


def ask(endpoint, answer, messages=QUESTION, verifier="chat_open", truth=None, **options):
    async def once():
        options.setdefault("max_response_chars", 1_000_000)
        judge = make_judge(JudgeConfig(url=endpoint.url, model="judge", **options))
        try:
            return await judge.judge(verifier, answer, truth, messages), judge.usage()
        except CannotJudge as error:
            return error, judge.usage()
        finally:
            await judge.close()

    return asyncio.run(asyncio.wait_for(once(), 60))


def shown(endpoint):
    return endpoint.requests[-1][1]["messages"][1]["content"]


@pytest.mark.long
@pytest.mark.parametrize("name", LONG)
def test_an_answer_is_cut_by_the_tokens_that_the_endpoint_counts(name):
    with FakeEndpoint(strict, beside={"/tokenize": counted}) as endpoint:
        score, usage = ask(endpoint, f"It begins. {LONG[name]} It ends.")
    assert score.error is None
    assert (score.value, usage["shortened"], len(endpoint.requests)) == (pytest.approx(6 / 9), 1, 1)
    assert "It begins." in shown(endpoint)
    assert "It ends." in shown(endpoint)
    assert re.search(r"The answer is long: \d+ characters in its middle \(\d+ tokens\) are left out", shown(endpoint))


def test_as_much_is_shown_as_there_is_room_for():
    with FakeEndpoint(strict, beside={"/tokenize": counted}) as endpoint:
        ask(endpoint, LONG["words"])
        assert tokens_of(shown(endpoint)) >= 0.8 * (CONTEXT - 1024)
        _, usage = ask(endpoint, LONG["words"][:12_000])
        assert usage["shortened"] == 0
        assert "left out" not in shown(endpoint)


@pytest.mark.parametrize("name", LONG)
def test_without_a_count_bytes_bound_the_tokens_of_any_answer(name):
    with FakeEndpoint(strict) as endpoint:
        score, usage = ask(endpoint, LONG[name], context_tokens=CONTEXT)
    assert score.error is None
    assert (score.value, usage["shortened"], len(endpoint.requests)) == (pytest.approx(6 / 9), 1, 1)
    assert re.search(r"The answer is long: \d+ characters in its middle are left out", shown(endpoint))


def test_where_nobody_names_the_context_a_refused_answer_is_cut_once():
    with FakeEndpoint(strict) as endpoint:
        score, usage = ask(endpoint, LONG["words"][:30_000])
    assert (score.value, score.error) == (pytest.approx(6 / 9), None)
    assert (len(endpoint.requests), usage["shortened"]) == (2, 1)


def test_an_answer_that_is_refused_when_it_is_cut_too_scores_0():
    with FakeEndpoint(strict) as endpoint:
        score, usage = ask(endpoint, LONG["a token per byte"])
    assert (score.value, score.error, usage["ungraded"]) == (0.0, None, 1)
    assert "maximum context length" in score.detail
    assert f"\n{CONTROL}\n" in shown(endpoint)


@pytest.mark.long
@pytest.mark.parametrize("counting", [{"/tokenize": counted}, {}])
def test_a_conversation_or_reference_that_is_too_long_is_an_error(counting):
    long = [{"role": "user", "content": "What is this? " * 3_000}]
    with FakeEndpoint(strict, beside=counting) as endpoint:
        for answer in ("Paris", LONG["words"]):
            error, usage = ask(endpoint, answer, long)
            assert isinstance(error, CannotJudge)
            assert usage["ungraded"] == 0
        reference = {"reference": "word " * 9_000}
        assert isinstance(ask(endpoint, "Paris", verifier="chat_reference", truth=reference)[0], CannotJudge)


def test_bytes_alone_do_not_make_a_conversation_too_long():
    """Eight thousand letters are two thousand tokens: the endpoint takes them."""
    asked = [{"role": "user", "content": "What is this? " * 570}]
    with FakeEndpoint(strict) as endpoint:
        score, _ = ask(endpoint, "Paris", asked, context_tokens=CONTEXT)
        assert score.error is None
        assert score.value == pytest.approx(6 / 9)


@pytest.mark.parametrize("body", [b"[]", b"junk", b'{"count": "7", "max_model_len": 10}', b'{"count": 1}'])
def test_an_endpoint_that_counts_no_tokens_is_believed_nothing(body):
    with FakeEndpoint(strict, beside={"/tokenize": lambda request: Reply(body)}) as endpoint:
        score, _ = ask(endpoint, LONG["words"], context_tokens=CONTEXT)
    assert score.value == pytest.approx(6 / 9)


def test_a_tokenizer_of_the_users_counts_without_a_request(tiny_model):
    with FakeEndpoint(strict, beside={"/tokenize": lambda request: failing(500)}) as endpoint:
        score, usage = ask(endpoint, "Paris " * 4_000, context_tokens=9_000, tokenizer=str(tiny_model))
    assert score.error is None
    assert (usage["shortened"], usage["requests"]) == (1, len(endpoint.requests))
    assert "tokens) are left out" in shown(endpoint)
    with pytest.raises(ValueError, match=r"hub id .*revision"):
        make_judge(JudgeConfig(url="http://127.0.0.1:9/v1", model="judge", context_tokens=9, tokenizer="some/model"))


def test_cutting_comes_to_an_end_for_every_density():
    for tokens_per_byte in (0.01, 0.25, 1, 3):
        keep, tokens = 20_000, int(20_000 * tokens_per_byte) + 1_000
        for step in range(STEPS):
            keep = choose_next_length(keep, tokens, 1_000, 1_000, step)
            tokens = int(keep * tokens_per_byte) + 1_000
        assert keep == 0
