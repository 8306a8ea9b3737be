"""Environments of the tests, as a user would write them."""

import asyncio
import contextlib
import os
import resource
import signal
import stat
import subprocess
import sys
import time
from decimal import Decimal

import numpy as np

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


async def saying(prompt, generate, *, text, role="user", times=1, anew=False):
    """Insert a text that the row brings."""
    await generate()
    for _ in range(times):
        await generate([{"role": role, "content": text}], anew=anew)
    return 1.0


async def surrogate_before(prompt, generate):
    """Insert half of an emoji before the first turn."""
    await generate("half: \ud83d")
    return 1.0


async def loud(prompt, generate, *, text):
    """Print, raise with and return a hostile text."""
    await generate()
    print(text)
    raise KeyError(text)


async def long_message(prompt, generate, *, length):
    """Insert a text of this many characters, and count it as a success if it does not fit."""
    await generate()
    try:
        await generate("x " * (length // 2))
    except EpisodeOver as over:
        return Outcome(0.5, passed="tokens left" in str(over))


async def patient(prompt, generate, *, how):
    """Take more seconds than there are in one of several ways, and return a reward when the episode is over."""
    await generate()
    try:
        if how == "awaits":
            await asyncio.sleep(3600)
        elif how == "blocks":
            time.sleep(3600)
        elif how == "gathers":
            await asyncio.gather(asyncio.sleep(3600), asyncio.sleep(3600))
        else:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(asyncio.sleep(3600))
    except* EpisodeOver:
        pass
    try:
        await generate("once more")
    except EpisodeOver:
        judgement = await prompt.judge("a")  # services still answer
        return 0.25 + judgement.score / 2


async def stubborn(prompt, generate):
    """Ignore the end of the episode."""
    await generate()
    while True:
        with contextlib.suppress(EpisodeOver):
            time.sleep(3600)


async def slow_starter(prompt, generate):
    """Take too long before the first turn."""
    time.sleep(3600)


LEAK = []


async def leaky(prompt, generate, *, mib):
    """Keep memory of every episode in the process."""
    await generate()
    LEAK.append(bytearray(mib << 20))
    await generate("more")
    return 1.0


async def file_leak(prompt, generate):
    """Keep files of every episode open."""
    await generate()
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
    LEAK.extend(open(os.devnull) for _ in range(40))  # noqa: SIM115 - never closed
    return 1.0


async def aborting(prompt, generate):
    """End the process in every episode but its first."""
    await generate()
    LEAK.append(1)
    if len(LEAK) > 1:
        os.abort()
    return 1.0


async def starting(prompt, generate, *, file, how):
    """Start processes that never end, and return or hang."""
    turn = await generate()
    sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
    started = [subprocess.Popen(sleep), subprocess.Popen(sleep, start_new_session=True)]
    child = os.fork()
    if not child:
        time.sleep(600)
    with open(file, "a") as stream:
        stream.write(" ".join(str(pid) for pid in (child, *(process.pid for process in started))) + "\n")
    if how == "hangs":
        time.sleep(600)
    if how == "dies":
        os.abort()
    return float(len(turn.text))


async def cancelled(prompt, generate):
    """Cancel itself."""
    await generate()
    raise asyncio.CancelledError


async def interrupted(prompt, generate):
    """Raise what only the user should."""
    await generate()
    raise KeyboardInterrupt


async def exiting_task(prompt, generate):
    """Leave Python in a task of its own."""
    await generate()
    await asyncio.create_task(_exit())


async def _exit():
    sys.exit("nothing to do here")


async def exiting_in_background(prompt, generate):
    """Leave Python in a task that nobody waits for."""
    task = asyncio.create_task(_exit())
    await generate()
    await asyncio.sleep(0.01)
    assert task.done()
    return 1.0


async def deaf_task(prompt, generate):
    """Leave a task behind that cannot be cancelled."""
    task = asyncio.create_task(_deaf())
    await generate()
    LEAK.append(task)
    return 0.75


async def _deaf():
    while True:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(3600)


async def closing(prompt, generate):
    """Close the connection of the process."""
    await generate()
    os.closerange(3, 256)
    time.sleep(600)


async def babbling(prompt, generate, *, text):
    """Write to the connection of the process."""
    await generate()
    for descriptor in range(3, 64):
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                os.write(descriptor, text.encode())
    return 1.0


async def numbers(prompt, generate, *, kind):
    """Return a number of another library."""
    await generate()
    return {
        "float32": np.mean(np.array([1, 2], np.float32)),
        "int64": np.int64(2),
        "array": np.array([0.5]),
        "Decimal": Decimal("0.25"),
        "Outcome": Outcome(np.float32(1), passed=np.bool_(False)),
        "text": "1.0",
        "two": np.array([1.0, 2.0]),
        "large": 10**400,
        "infinite": np.float32("inf"),
    }[kind]


async def empty(prompt, generate):
    """Insert a turn without a letter."""
    await generate()
    await generate("")
    return 1.0


def blocking(prompt, generate):
    """Be no async function."""


NO_FUNCTION = 1

tool = python_tool
