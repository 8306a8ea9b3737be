"""Episodes in a real engine whose weights change between turns and within one: every token knows its policy.

It runs before test_engine.py, whose engine it shares, and leaves the weights as version 0 has them.
"""

import asyncio
import re
from pathlib import Path

import numpy as np
import pytest

from tasks.environments.conversation import ChatTemplate
from tasks.environments.episode import EpisodePlayer, EpisodeRequest
from tasks.environments.sessions import EnvironmentPool
from tasks.generation.config import SamplingConfig
from tasks.generation.environment_spec import EnvironmentSpec
from tasks.verifiers.config import EnvironmentsConfig
from tests.generation.test_engine import policy_logprobs
from tests.tiny_model import build

pytestmark = pytest.mark.engine

EPISODES = 8  # as many as the engine decodes at one time
MESSAGES = [{"role": "user", "content": "count"}]
SAMPLING = SamplingConfig(max_tokens=200, stop_token_ids=list(range(20, 32)))
"""The tiny model hardly ever ends a turn: some tokens in twenty do it instead."""


@pytest.fixture(scope="module")
def other_model(tmp_path_factory):
    """Another policy of the same shape."""
    return build(tmp_path_factory.mktemp("model") / "other", seed=1)


@pytest.fixture(scope="module")
def tokenizer(tiny_model):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(tiny_model)


@pytest.fixture(scope="module")
def prompt(tokenizer):
    return tokenizer.apply_chat_template(MESSAGES, add_generation_prompt=True, return_dict=False)


def player_of(tokenizer):
    return EpisodePlayer(EnvironmentPool(EnvironmentsConfig()), ChatTemplate(tokenizer, {}))


def request(prompt, sample, sampling):
    spec = EnvironmentSpec("tests.environments.rooms.count", turns=3)
    return EpisodeRequest(spec, "p", MESSAGES, prompt, sample, sampling, seed=sample)


@pytest.fixture(scope="module")
def played(engine, loop, tokenizer, prompt, tiny_model, other_model):
    """Episodes of three turns; version 1 comes between turns, and version 2 within them."""

    async def play():
        player = player_of(tokenizer)
        first_turns = asyncio.Barrier(EPISODES + 1)

        async def one(sample):
            had = 0

            async def generate(token_ids, sampling, seed):
                nonlocal had
                if had == 1:  # all have their first turn, and none its second
                    await first_turns.wait()
                    await updated.wait()
                had += 1
                return await engine.generate(token_ids, sampling, seed=seed)

            return await player.play(request(prompt, sample, SAMPLING), generate, services=None)

        updated = asyncio.Event()
        try:
            episodes = [asyncio.create_task(one(sample)) for sample in range(EPISODES)]
            await first_turns.wait()
            await engine.update_weights(Path(other_model) / "model.safetensors", 1)
            made = engine.statistics.generated_tokens
            updated.set()
            while engine.statistics.generated_tokens < made + 5 * EPISODES:
                await asyncio.sleep(0.001)
            await engine.update_weights(Path(tiny_model) / "model.safetensors", 2, keep_cache=False)
            return await asyncio.gather(*episodes)
        finally:
            await player.aclose()
            await engine.update_weights(Path(tiny_model) / "model.safetensors", 0)

    return loop.run(play())


def test_turns_are_sampled_by_the_policy_of_their_time(played):
    assert len(played) == EPISODES
    versions = [[span.version for span in episode.versions] for episode in played]
    assert all(spans[:2] == [0, 1] for spans in versions)
    within = 0
    for episode in played:
        assert len(episode.turns) == 3
        for turn in episode.turns:
            spans = [span for span in episode.versions if turn.start <= span.start < turn.end]
            assert (spans[0].start, spans[-1].end) == (turn.start, turn.end)
            within += len(spans) - 1
    assert within > 0


def test_log_probabilities_are_those_of_the_whole_conversation_under_these_policies(
    played, prompt, tiny_model, other_model
):
    """So an importance weight of an episode is 1 where the learner has the policy that sampled the token."""
    for episode in played:
        ids = episode.token_ids.tolist()
        under = {0: policy_logprobs(tiny_model, prompt, ids), 1: policy_logprobs(other_model, prompt, ids)}
        under[2] = under[0]
        sampled = np.zeros(len(ids), bool)
        for span in episode.versions:
            tokens = slice(span.start, span.end)
            sampled[tokens] = True
            assert episode.logprobs[tokens] == pytest.approx(under[span.version][tokens], abs=1e-4)
        assert not episode.logprobs[~sampled].any()
        assert sampled.sum() == episode.num_tokens


def test_a_regular_expression_holds_within_every_turn(engine, loop, tokenizer, prompt):
    """And not over the whole conversation: a turn that follows another matches it from its own beginning."""
    sampling = SamplingConfig(max_tokens=200, guided_regex="[a-f]{2}[0-9]")

    async def play():
        player = player_of(tokenizer)

        async def generate(token_ids, sampling, seed):
            return await engine.generate(token_ids, sampling, seed=seed)

        try:
            return await asyncio.gather(
                *(player.play(request(prompt, sample, sampling), generate, services=None) for sample in range(4))
            )
        finally:
            await player.aclose()

    texts = [turn.text for episode in loop.run(play()) for turn in episode.turns]
    assert len(texts) == 4 * 3
    assert [text for text in texts if not re.fullmatch("[a-f]{2}[0-9]", text)] == []
