"""A client of messages and an episode that only grows: which requests belong to it."""

import asyncio

import pytest

from tasks.environments.interface import EpisodeOver, Turn
from tasks.environments.rerendering import Conversation, HistoryChanged, text_of

USER = {"role": "user", "content": "Begin."}


def answer(text):
    return {"role": "assistant", "content": text}


class Client:
    """Sends requests of one episode, whose policy counts its turns."""

    def __init__(self, *prompt, turns=9):
        self.inserted = []
        self._limit = turns
        self._conversation = Conversation(prompt or (USER,), self._generate)

    async def _generate(self, messages):
        if len(self.inserted) == self._limit:
            raise EpisodeOver
        self.inserted.append(list(messages))
        return Turn(str(len(self.inserted)), "stop", last=False)

    def send(self, *messages):
        return asyncio.run(self._conversation.answer(messages)).text


def test_only_what_a_request_adds_is_inserted():
    client, more = Client(), {"role": "tool", "content": "more"}
    assert client.send(USER) == "1"
    assert client.send(USER, answer("1"), USER) == "2"
    assert client.send(USER, answer("1"), USER, answer("2"), more, USER) == "3"
    assert client.inserted == [[], [USER], [more, USER]]


def test_a_first_request_may_add_to_the_prompt():
    client = Client()
    assert client.send(USER, USER) == "1"
    assert client.send(USER, USER, answer("1"), USER) == "2"
    assert client.inserted == [[USER], [USER]]


def test_a_request_that_is_sent_once_more_has_the_same_answer():
    client = Client()
    assert [client.send(USER), client.send(USER)] == ["1", "1"]
    assert [client.send(USER, answer("1"), USER) for _ in range(2)] == ["2", "2"]
    assert client.inserted == [[], [USER]]


CHANGED = {
    "an answer is edited": ([USER, answer("one"), USER], "turn 2 of the episode is assistant: '1', and in a request"),
    "the prompt is edited": ([answer("Begin."), answer("1"), USER], "turn 1 of the episode is user: 'Begin.'"),
    "an answer is dropped": ([USER, USER], "turn 2 .* user: 'Begin.'"),
    "all is dropped": ([], "turn 1 .* absent"),
    "nothing is added": ([USER, answer("1")], "adds no turn"),
    "an answer is put into its mouth": ([USER, answer("1"), USER, answer("yes")], "that the policy did not say"),
}


@pytest.mark.parametrize("what", CHANGED)
def test_a_request_with_another_history_is_refused(what):
    messages, reason = CHANGED[what]
    client = Client()
    client.send(USER)
    with pytest.raises(HistoryChanged, match=reason):
        client.send(*messages)
    assert client.send(USER, answer("1"), USER) == "2"  # and changes nothing


def test_a_limit_of_the_episode_is_its_end():
    client = Client(turns=1)
    client.send(USER)
    with pytest.raises(EpisodeOver):
        client.send(USER, answer("1"), USER)


def test_the_text_of_a_message_is_that_of_its_parts():
    assert text_of(USER) == "Begin."
    assert text_of({"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}) == "ab"
    for content in (None, 7, [{"type": "image_url", "image_url": {}}], ["a"]):
        with pytest.raises(ValueError, match="text alone goes into an episode"):
            text_of({"role": "user", "content": content})
    with pytest.raises(ValueError, match="calls tools"):
        text_of({"role": "assistant", "content": "", "tool_calls": [{}]})
