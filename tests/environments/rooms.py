"""Environments of the tests, as a user would write them."""

import asyncio
import os
import signal
import time

from tasks.environments.interface import EpisodeOver, Outcome
from tasks.environments.python_tool import python_tool


async def silent(prompt, generate):
    """Leave the judgement of the only turn to the verifier."""
    await generate()


async def count(prompt, generate, *, to=3):
    """Ask for turns until there are `to`; the reward is their number."""
    turns = [await generate()]
    while len(turns) < to:
        turns.append(await generate(f"turn {len(turns) + 1}"))
    return float(len(turns))


class Countdown:
    """The same as a class."""

    def __init__(self, prompt, *, to=2):
        self.to = to

    async def run(self, generate):
        await generate()
        for left in range(self.to - 1, 0, -1):
            await generate([{"role": "tool", "content": f"{left} left"}])
        return Outcome(0.25, passed=True)


async def greedy(prompt, generate):
    """Ask for more turns than any limit allows, and do not notice."""
    await generate()
    while True:
        await generate("go on")


async def modest(prompt, generate):
    """Ask for turns until the limits end it, and give a reward then."""
    turns = 0
    try:
        while True:
            await generate("go on" if turns else ())
            turns += 1
    except EpisodeOver:
        return turns / 10


async def hasty(prompt, generate):
    """Return before a turn."""
    return 1.0


async def raising(prompt, generate):
    """Raise after a turn."""
    await generate()
    raise KeyError("answer")


async def odd(prompt, generate):
    """Raise in every sample but the first."""
    await generate()
    if prompt.sample:
        raise KeyError("answer")
    return 1.0


async def outage(prompt, generate, *, until):
    """Ask a service that is away until there is a file, in every sample but the first."""
    await generate()
    if prompt.sample and not os.path.exists(until):
        raise ConnectionRefusedError("the service is away")
    return 1.0


async def again(prompt, generate):
    """Ask for a second turn where the limits allow one, and leave its judgement to the verifier."""
    turn = await generate()
    if not turn.last:
        await generate("Again.")


async def orphaned(prompt, generate):
    """End the process that this one was forked from after a turn."""
    await generate()
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(60)


async def nothing_finite(prompt, generate):
    """Return no finite number."""
    await generate()
    return float("nan")


async def dying(prompt, generate):
    """End the process after a turn."""
    await generate()
    os.kill(os.getpid(), signal.SIGKILL)


async def hanging(prompt, generate):
    """Hang in blocking code after a turn."""
    await generate()
    time.sleep(3600)


async def busy(prompt, generate):
    """Compute for ever after a turn."""
    await generate()
    while True:
        pass


async def hungry(prompt, generate):
    """Take more memory than there may be."""
    await generate()
    return float(len(bytearray(1 << 40)))


async def controlling(prompt, generate):
    """Insert a control token."""
    await generate()
    await generate("<|im_end|>")


async def plain(prompt, generate):
    """Insert a text with a control token, made plain."""
    await generate()
    await generate(prompt.plain("<|im_end|>"))


async def crowded(prompt, generate):
    """Ask for two turns at one time."""
    await asyncio.gather(generate(), generate())


async def judged(prompt, generate):
    """Ask the verifier about the only turn."""
    turn = await generate()
    judgement = await prompt.judge(turn.text)
    return Outcome(judgement.score / 2, judgement.passed)


async def random_words(prompt, generate):
    """Insert other messages whenever it is played."""
    await generate()
    await generate(f"{time.time_ns()}")
    return 1.0


async def forgetful(prompt, generate):
    """Begin anew with a summary after the first turn, and go on from there."""
    turn = await generate()
    summary = [{"role": "user", "content": "count on"}, {"role": "assistant", "content": turn.text * 2}]
    await generate([*summary, {"role": "user", "content": "next"}], anew=True)
    await generate("and next")
    return 1.0


async def observing(prompt, generate):
    """Add an observation to the prompt before the first turn."""
    await generate("It rains.")
    return 1.0


async def unanswerable(prompt, generate):
    """Begin anew with a conversation that ends in the policy's own turn."""
    await generate()
    await generate([{"role": "assistant", "content": "I say"}], anew=True)


def blocking(prompt, generate):
    """Be no async function."""


NO_FUNCTION = 1

tool = python_tool
