"""A client of messages and an episode that only grows: which requests belong to it."""

import asyncio

import pytest

from tasks.environments.interface import EpisodeOver, Turn
from tasks.environments.rerendering import Conversation, get_text

USER = {"role": "user", "content": "Begin."}


def answer(text):
    return {"role": "assistant", "content": text}


class Client:
    """Sends requests of one episode, whose policy counts its turns."""

    def __init__(self, *prompt, turns=9):
        self.inserted = []
        self._limit = turns
        self._conversation = Conversation(prompt or (USER,), self._generate, lambda text: text.replace("<|", "< |"))

    async def _generate(self, messages, *, anew):
        if len(self.inserted) == self._limit:
            raise EpisodeOver
        self.inserted.append(("anew", *messages) if anew else list(messages))
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
    "an answer is edited": [USER, answer("one"), USER],
    "the prompt is edited": [answer("Begin."), answer("1"), USER],
    "an answer is dropped": [USER, USER],
    "an answer is put into its mouth": [USER, answer("1"), USER, answer("yes"), USER],
}


@pytest.mark.parametrize("what", CHANGED)
def test_a_request_with_another_history_begins_the_conversation_anew(what):
    client, messages = Client(), CHANGED[what]
    client.send(USER)
    assert client.send(*messages) == "2"
    assert client.send(*messages, answer("2"), USER) == "3"
    assert client.inserted == [[], ("anew", *messages), [USER]]


@pytest.mark.parametrize("messages", [[], [USER, answer("1")], [answer("yes")]])
def test_a_request_that_the_policy_cannot_answer_is_refused_and_changes_nothing(messages):
    client = Client()
    client.send(USER)
    with pytest.raises(ValueError, match="does not end with a turn that the policy could answer"):
        client.send(*messages)
    assert client.send(USER, answer("1"), USER) == "2"


def test_a_limit_of_the_episode_is_its_end():
    client = Client(turns=1)
    client.send(USER)
    with pytest.raises(EpisodeOver):
        client.send(USER, answer("1"), USER)


def test_the_text_of_a_message_is_that_of_its_parts():
    assert get_text(USER) == "Begin."
    assert get_text({"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}) == "ab"
    for content in (None, 7, [{"type": "image_url", "image_url": {}}], ["a"]):
        with pytest.raises(ValueError, match="an episode contains only text"):
            get_text({"role": "user", "content": content})
    with pytest.raises(ValueError, match="calls tools"):
        get_text({"role": "assistant", "content": "", "tool_calls": [{}]})


def test_a_control_token_in_a_request_is_made_plain_and_its_history_is_not():
    client, quoting = Client(), {"role": "user", "content": "You said <|end|>"}
    client.send(USER)
    assert client.send(USER, answer("1"), quoting) == "2"
    assert client.send(USER, answer("1"), quoting, answer("2"), USER) == "3"
    assert client.inserted == [[], [{"role": "user", "content": "You said < |end|>"}], [USER]]
