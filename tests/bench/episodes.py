"""Episodes beside single completions of as many sampled tokens, on one engine.

python -m tests.bench.episodes nothing|turns <folder>

    nothing   an environment that asks for one turn and returns, beside the completion alone: the quickstart's model
    turns     512 episodes of five turns at one time, beside completions that are as long as all turns together: a tiny
              model, whose short decoding steps let what an episode costs beside them weigh more than it ever will

The player of episodes, the processes of environments and vLLM are the real ones. Lengths are fixed, so that both sample
the same number of tokens. Both take turns, and medians count.
"""

from __future__ import annotations

import asyncio
import json
import logging
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from tasks.environments.episode import EpisodePlayer, EpisodeRequest
from tasks.generation.config import EngineConfig, SamplingConfig
from tasks.generation.environment_spec import EnvironmentSpec
from tasks.generation.interface import Completion
from tests.bench import inputs
from tests.bench.figures import Figure
from tests.training.processes import role

CONTEXT = 1024
SEQUENCES = 128
ENVIRONMENT = "tests.environments.rooms.count"
"""An environment that inserts `turn 2`, `turn 3` and so on, and returns the number of its turns."""
SINGLE, EPISODES = "single", "episodes"
ENDLESS = {"ignore_eos": True}


@dataclass(frozen=True)
class Load:
    """What is asked for at one time.

    Attributes:
        count: episodes, or completions.
        turns: turns of an episode.
        turn_tokens: tokens of a turn; a completion has `turns` times as many.
        rounds: rounds that count, of each of both; one before them does not.
    """

    count: int
    turns: int
    turn_tokens: int
    rounds: int

    @property
    def tokens(self) -> int:
        """Tokens that are sampled in a round."""
        return self.count * self.turns * self.turn_tokens


LOADS = {
    "nothing": Load(count=64, turns=1, turn_tokens=48, rounds=2),
    "turns": Load(count=512, turns=5, turn_tokens=32, rounds=3),
}

Generate = Callable[[list[int], SamplingConfig, int | None], Awaitable[Completion]]


@dataclass(frozen=True)
class Asked:
    """A prompt: its messages, and its tokens under the chat template."""

    messages: list[dict[str, str]]
    token_ids: list[int]


def prompts(tokenizer: Any, count: int) -> list[Asked]:
    """Different prompts of some twenty words."""
    contents = (f"Write a sentence about the sea, the river and the rain; number {number}." for number in range(count))
    chats = [[{"role": "user", "content": content}] for content in contents]
    ids = [tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False) for chat in chats]
    return [Asked(chat, tokens) for chat, tokens in zip(chats, ids, strict=True)]


async def single(load: Load, asked: Sequence[Asked], generate: Generate) -> list[Completion]:
    """Sample all completions at one time."""
    sampling = SamplingConfig(max_tokens=load.turns * load.turn_tokens, vllm=ENDLESS)
    return await asyncio.gather(*(generate(prompt.token_ids, sampling, None) for prompt in asked))


async def episodes(load: Load, asked: Sequence[Asked], generate: Generate, player: EpisodePlayer) -> list[Completion]:
    """Play all episodes at one time."""
    spec = EnvironmentSpec(ENVIRONMENT, {"to": load.turns}, turns=load.turns, turn_tokens=load.turn_tokens)
    sampling = SamplingConfig(max_tokens=CONTEXT, vllm=ENDLESS)  # of an episode; its turns are what ends it

    async def turn(token_ids: list[int], sampling: SamplingConfig, seed: int | None) -> Completion:
        # A limit cuts every turn, at the same length. Left at that, it would end the episode.
        return replace(await generate(token_ids, sampling, seed), finish_reason="stop")

    played = await asyncio.gather(
        *(
            player.play(
                EpisodeRequest(spec, str(number), prompt.messages, prompt.token_ids, 0, sampling, None),
                turn,
                services=None,  # the environment asks for none
            )
            for number, prompt in enumerate(asked)
        )
    )
    for episode in played:
        assert episode.end is not None
        assert episode.end.reward == load.turns, episode.end.error
    return played


async def alternated(
    load: Load, tokenizer: Any, generate: Generate, player: EpisodePlayer, cpu_seconds: Callable[[], float]
) -> dict[str, float]:
    """Measure both by turns.

    Args:
        load: what is asked for.
        tokenizer: that of the model.
        generate: the engine.
        player: has processes for all episodes at one time.
        cpu_seconds: returns the CPU time that the engine has used.

    Returns:
        Medians over the rounds for `single` and `episodes`: `/tokens_per_second` sampled, and `/busy`, the CPU seconds
        of the engine in a second.
    """
    asked = prompts(tokenizer, load.count)
    rows: dict[str, list[tuple[float, float]]] = {SINGLE: [], EPISODES: []}
    for _ in range(1 + load.rounds):
        for name, play in (
            (SINGLE, lambda: single(load, asked, generate)),
            (EPISODES, lambda: episodes(load, asked, generate, player)),
        ):
            began, used = time.perf_counter(), cpu_seconds()
            done = await play()
            seconds = time.perf_counter() - began
            rows[name].append((load.tokens / seconds, (cpu_seconds() - used) / seconds))
            assert sum(completion.num_tokens for completion in done) == load.tokens
    return dict(_medians(rows))


def _medians(rows: dict[str, list[tuple[float, float]]]) -> Iterator[tuple[str, float]]:
    """The medians, the first round left out: it forks the processes, and compiles what is compiled."""
    for name, rounds in rows.items():
        for number, figure in enumerate(("tokens_per_second", "busy")):
            yield f"{name}/{figure}", statistics.median(round_[number] for round_ in rounds[1:])


def figures(nothing: dict[str, float], turns: dict[str, float]) -> list[Figure]:
    """The figures of both measurements, with the targets of the project."""
    load = LOADS["turns"]
    one, many = "an environment that does nothing", f"{load.count} episodes of {load.turns} turns"
    unit, reference = "sampled tokens/s", "single completions"
    busy = f"{many}: the engine's busy time"

    def of(found: dict[str, float], figure: str) -> tuple[float, float]:
        return found[f"{EPISODES}/{figure}"], found[f"{SINGLE}/{figure}"]

    rates, shares = of(turns, "tokens_per_second"), of(turns, "busy")
    alone = of(nothing, "tokens_per_second")
    return [
        Figure.at_least(one, alone[0], unit, reference, alone[1], 0.97),
        Figure.at_least(busy, shares[0], "CPU s/s", reference, shares[1], 0.9),
        Figure.stated(many, rates[0], unit, reference, rates[1]),
    ]


async def measured(load: Load, model: Path) -> dict[str, float]:
    """Start the engine and the player, and measure."""
    from transformers import AutoTokenizer

    from tasks.generation.engine import run_engine
    from tasks.verifiers.config import EnvironmentsConfig

    config = EngineConfig(max_model_len=CONTEXT, max_num_seqs=SEQUENCES, cpu_threads=1)
    player = EpisodePlayer.from_model(model, {}, EnvironmentsConfig(processes=load.count))
    async with run_engine(model, config) as engine:
        core = next(each for each in psutil.Process().children(recursive=True) if role(each) == "vLLM's engine core")

        async def generate(token_ids: list[int], sampling: SamplingConfig, seed: int | None) -> Completion:
            return await engine.generate(token_ids, sampling, seed=seed)

        def cpu_seconds() -> float:
            times = core.cpu_times()
            return times.user + times.system

        try:
            return await alternated(load, AutoTokenizer.from_pretrained(model), generate, player, cpu_seconds)
        finally:
            await player.aclose()


def main(what: str, folder: Path) -> dict[str, float]:
    """Measure one of `LOADS`."""
    from tests.tiny_model import build

    model = inputs.model(folder) if what == "nothing" else build(folder / "episodes-model", context=CONTEXT)
    return asyncio.run(measured(LOADS[what], model))


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    print(json.dumps(main(sys.argv[1], Path(sys.argv[2]))))
