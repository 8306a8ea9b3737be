"""The order of prompts: the mixture's, then seeded shuffles, with returned prompts first, across restarts."""

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.training.control.prompt_stream import PromptStream
from tests.examples import examples
from tests.training.stand_ins import prompts


def draw(stream, count):
    return [stream.next().prompt_id for _ in range(count)]


def test_the_first_epoch_is_the_mixtures_order_and_later_ones_are_seeded_shuffles():
    mixture = prompts(20)
    order = [prompt.prompt_id for prompt in mixture]
    first, second, third = (draw(stream, 20) for stream in [PromptStream(mixture, seed=1)] for _ in range(3))
    assert first == order
    assert sorted(second) == sorted(third) == sorted(order)
    assert len({tuple(epoch) for epoch in (first, second, third)}) == 3
    assert draw(PromptStream(mixture, seed=1), 60) == first + second + third
    assert draw(PromptStream(mixture, seed=2), 40)[20:] != second


def test_a_prompt_that_was_put_back_comes_next():
    stream = PromptStream(prompts(5), seed=0)
    first, second = stream.next(), stream.next()
    stream.put_back(first)
    stream.put_back(second)
    assert draw(stream, 3) == ["p1", "p2", "p3"]


def test_what_was_put_back_and_excluded_by_its_other_copy_does_not_come():
    first, second = prompts(2)
    stream = PromptStream([first, first, second], seed=0)
    stream.put_back(stream.next())
    stream.exclude(first)
    assert draw(stream, 3) == ["p2"] * 3
    stream.put_back(second)
    stream.exclude(second)
    assert stream.is_exhausted


def test_an_epoch_is_shuffled_once(monkeypatch):
    shuffled = []

    class Counting(random.Random):
        def shuffle(self, x):
            shuffled.append(len(x))
            super().shuffle(x)

    monkeypatch.setattr("tasks.training.control.prompt_stream.random.Random", Counting)
    draw(PromptStream(prompts(50), seed=0), 150)
    assert shuffled == [50, 50]


def test_the_epoch_counts_new_draws_only():
    stream = PromptStream(prompts(4), seed=0)
    stream.put_back(stream.next())
    draw(stream, 2)
    assert stream.epoch == 0.5


@settings(deadline=None, max_examples=examples(50), derandomize=True)
@given(drawn=st.integers(0, 25), returned=st.integers(0, 3))
def test_a_restored_stream_gives_what_was_put_back_and_then_goes_on(drawn, returned):
    mixture = prompts(7)
    stream = PromptStream(mixture, seed=3)
    back = [stream.next() for _ in range(drawn)][:returned]
    for prompt in back:
        stream.put_back(prompt)
    restored = PromptStream(mixture, seed=3)
    restored.restore(json.loads(json.dumps(stream.state())))
    assert draw(restored, len(back)) == [prompt.prompt_id for prompt in back]
    draw(stream, len(back))
    assert draw(restored, 20) == draw(stream, 20)


def test_an_excluded_prompt_never_comes_again_nor_after_a_restart():
    mixture = prompts(3)
    stream = PromptStream(mixture, seed=0)
    stream.exclude(mixture[1])
    restored = PromptStream(mixture, seed=0)
    restored.restore(json.loads(json.dumps(stream.state())))
    for either in (stream, restored):
        assert set(draw(either, 20)) == {"p1", "p3"}
    stream.exclude(mixture[0])
    stream.exclude(mixture[2])
    with pytest.raises(ValueError, match="every prompt of the mixture is excluded"):
        stream.next()


def test_a_state_that_speaks_of_other_prompts_is_refused():
    stream = PromptStream(prompts(5), seed=0)
    stream.put_back(prompts(5)[4])
    with pytest.raises(ValueError, match="the mixture lacks, such as p5"):
        PromptStream(prompts(4), seed=0).restore(stream.state())


def test_a_mixture_without_prompts_is_refused():
    with pytest.raises(ValueError, match="no prompts"):
        PromptStream([], seed=0)
