"""Episodes in virtual time: the real player of episodes, with environments that are scripts of the test."""

import asyncio
import random
from contextlib import asynccontextmanager

from tasks.environments.episode import EpisodePlayer
from tasks.environments.sessions import AsksForTurn, Ended, Failed, Overran
from tasks.generation.environment_spec import EnvironmentSpec
from tasks.verifiers.scores import FunctionFailure

ENVIRONMENT = EnvironmentSpec("rooms.scripted", turns=4)
BETWEEN = [900, 901]
"""The tokens that the chat template of these runs inserts between two turns."""


class ScriptedConversation:
    """A chat template that writes the same two tokens between any two turns."""

    control_tokens = ()

    def may_fit(self, _messages, _tokens):
        return True

    def inserted(self, _messages, _last_token):
        return list(BETWEEN)

    def begun(self, messages, _tools):
        return [800 + len(messages)]


class ScriptedSession:
    """An environment that asks for `turns` turns, and then returns `reward`; at each point it may take `seconds`."""

    worn = False

    def __init__(self, turns=3, reward=1.0, seconds=0.0):
        self.turns, self.reward, self.seconds = turns, reward, seconds
        self.had = 0

    async def begin(self, _messages, _sample, seed, _control_tokens):
        self.choose(seed)
        return await self.next()

    def choose(self, seed):
        """Choose by the seed of the episode."""

    async def turn(self, _turn):
        self.had += 1
        return await self.next()

    async def over(self, _reason):
        return await self.next()

    async def next(self):
        await asyncio.sleep(self.seconds)
        if self.had == self.turns:
            return Ended(self.reward, self.reward == 1.0) if self.reward is not None else Ended()
        return AsksForTurn([{"role": "user", "content": f"turn {self.had}"}] if self.had else [])


class FaultySession(ScriptedSession):
    """An environment of which anything can go wrong, drawn from `chance`; every other one makes equal choices again."""

    def __init__(self, chance):
        super().__init__()
        self.chance = chance

    def choose(self, seed):
        if seed % 2:
            self.chance = random.Random(seed)
        self.turns = self.chance.choice([1, 1, 2, 3, 5, 0 if self.chance.random() < 0.05 else 2])
        self.reward = self.chance.choice([None, None, 1.0, 0.0])

    async def next(self):
        await asyncio.sleep(self.chance.expovariate(1 / 5))
        fault = self.chance.random()
        if fault < 0.01:
            return Failed("environment rooms.scripted raised", FunctionFailure("rooms.scripted", f"raised {fault}"))
        if fault < 0.02:
            await asyncio.sleep(60)
            return Overran("took more than 60 s")
        return await super().next()


class ScriptedPool:
    """Environments without processes."""

    def __init__(self, make):
        self.make = make

    @asynccontextmanager
    async def session(self, _spec, *, fresh=False):
        yield self.make()

    async def close(self):
        """There is nothing to end."""


def episodes(make):
    """The player of episodes whose environments are what `make` returns."""
    return EpisodePlayer(ScriptedPool(make), ScriptedConversation())
