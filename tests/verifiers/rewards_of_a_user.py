"""Reward functions as a user would write them, good ones and bad ones, for the tests to name."""

import asyncio
import os
import signal
import time


def accuracy(completions, answer, **kwargs):
    return [float(c[0]["content"] == str(right)) for c, right in zip(completions, answer, strict=True)]


def length_penalty(completions, **kwargs):
    return [-0.5 if len(completion[0]["content"]) < 5 else 2.0 for completion in completions]


def polite_only(completions, prompts, **kwargs):
    """Applies only where the prompt asks for politeness."""
    asked = "politely" in prompts[0][-1]["content"]
    return ["please" in completions[0][0]["content"]] if asked else [None]


async def later(completions, **kwargs):
    return [0.25]


def raises(completions, **kwargs):
    raise KeyError("no such column")


def is_away(completions, **kwargs):
    raise ConnectionRefusedError("port 9")


def is_away_inside(completions, **kwargs):
    try:
        raise TimeoutError
    except TimeoutError as error:
        raise RuntimeError("no answer from the service") from error


def leaves(completions, **kwargs):
    raise SystemExit(3)


def odd_length(completions, **kwargs):
    text = completions[0][0]["content"]
    if len(text) % 2:
        raise ValueError(f"odd length: {text}")
    return [1.0]


def too_many(completions, **kwargs):
    return [1.0, 1.0]


def a_word(completions, **kwargs):
    return ["good"]


def infinite(completions, **kwargs):
    return [float("inf")]


def takes_no_prompts(completions):
    return [1.0]


def hangs(completions, **kwargs):
    time.sleep(3600)


NOT_A_FUNCTION = 7
_KEPT = []
_LOOPS = []


def keeps_300_mib(completions, **kwargs):
    _KEPT.append(bytearray(300 << 20))
    return [1.0]


def takes_a_terabyte(completions, **kwargs):
    bytearray(1 << 40)
    return [1.0]


def recurses(completions, **kwargs):
    return recurses(completions, **kwargs)


def kills_itself(completions, **kwargs):
    os.kill(os.getpid(), signal.SIGKILL)


def spins(completions, **kwargs):
    while True:
        pass


def ranks(completions, prompts, **columns):
    """Rewards of a group by length: 0 for the shortest, 1 for the longest, and even steps between."""
    assert len(prompts) == len(completions)
    assert all(len(column) == len(completions) for column in columns.values())
    lengths = [len(completion[0]["content"]) for completion in completions]
    return [sorted(lengths).index(length) / max(len(lengths) - 1, 1) for length in lengths]


def longest_only(completions, **columns):
    longest = max(len(completion[0]["content"]) for completion in completions)
    return [3.0 if len(completion[0]["content"]) == longest else None for completion in completions]


def one_for_all(completions, **columns):
    return [1.0]


def nan_for_one(completions, **columns):
    return [0.5] * (len(completions) - 1) + [float("nan")]


async def waits(completions, **columns):
    await asyncio.sleep(1.0)
    return [0.5] * len(completions)


async def waits_forever(completions, **columns):
    await asyncio.Event().wait()


async def blocks_the_loop(completions, **columns):
    time.sleep(3600)


async def spins_on_the_loop(completions, **columns):
    while True:
        pass


async def raises_later(completions, **columns):
    await asyncio.sleep(0)
    raise KeyError("no such column")


async def keeps_the_loop(completions, **columns):
    """1 where the calls before it ran on the same event loop, as clients of a network need it."""
    _LOOPS.append(asyncio.get_running_loop())
    return [float(all(loop is _LOOPS[-1] for loop in _LOOPS))] * len(completions)
