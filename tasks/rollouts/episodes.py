"""Plays episodes in the stages that sample and score separately: difficulty and evaluation.

A response is cached with its turns and its end, so that it can be scored later in another stage or process.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from tasks.environments.conversation import ChatTemplate
from tasks.environments.episode import EpisodePlayer, EpisodeRequest
from tasks.environments.sessions import EnvironmentPool
from tasks.generation.config import SamplingConfig
from tasks.generation.environment_spec import EnvironmentSpec
from tasks.generation.episode_turns import make_turn_rows
from tasks.generation.interface import Completion, EpisodeEnd, Response, Sampler
from tasks.tables.schemas import canonical_json
from tasks.verifiers import Score, VerifierPool
from tasks.verifiers.code.running import Execution
from tasks.verifiers.config import EnvironmentsConfig


class Content(NamedTuple):
    """The content of a response that is scored.

    Attributes:
        text: the response, or the last turn of an episode.
        earlier: the messages between the prompt and the last turn. Empty for a single response.
        end: the end of an episode that the verifier does not score, otherwise None.
        identity: a text that is equal only for equal responses.
    """

    text: str
    earlier: list[dict[str, str]]
    end: EpisodeEnd | None
    identity: str


def contents_of(part: pa.Table) -> list[Content]:
    """Return the content of each row of a table with the columns `response`, `turns` and `outcome` of `RESPONSES`."""
    columns = (part[name].to_pylist() for name in ("response", "turns", "outcome"))
    return [_content(text, turns or [], outcome) for text, turns, outcome in zip(*columns, strict=True)]


def content_of(completion: Completion | Response) -> Content:
    """Return the content of a response that has just been sampled."""
    if isinstance(completion, Response):
        return _content(completion.text, [], None)
    turns = [*completion.earlier, {"role": "assistant", "content": completion.text}] if completion.turns else []
    return _content(completion.text, turns, outcome_of(completion))


def _content(text: str, turns: list[dict[str, Any]], outcome: str | None) -> Content:
    messages = [{"role": turn["role"], "content": turn["content"]} for turn in turns]
    identity = canonical_json([text, messages, outcome]) if messages or outcome else text
    end = None if outcome is None else EpisodeEnd.of_fields(json.loads(outcome))
    return Content(text, messages[:-1], end, identity)


def outcome_of(completion: Completion) -> str | None:
    """Return the end of an episode as JSON (column `outcome`), or None if the verifier scores its last turn."""
    return None if completion.end is None else canonical_json(completion.end.to_fields())


def episode_columns(response: Completion | Response) -> dict[str, Any]:
    """Return the columns `turns` and `outcome` of a response that has just been sampled."""
    if isinstance(response, Response) or not response.is_episode:
        return {"turns": None, "outcome": None}
    return {"turns": make_turn_rows(response), "outcome": outcome_of(response)}


def has_environments(prompts: pa.Table) -> bool:
    """Return whether any of the prompts has an environment."""
    return prompts["environment"].null_count < prompts.num_rows


def environment_path(row: Mapping[str, Any]) -> str | None:
    """Return the import path of the environment of a prompt (a row of `PROMPTS`), or None if it has none."""
    spec = EnvironmentSpec.from_json(row["environment"])
    return None if spec is None else spec.path


class StageEpisodes:
    """Plays the episodes of one stage. The stage's sampler generates the policy's turns."""

    def __init__(self, model: Path, config: EnvironmentsConfig, sampler: Sampler, pool: VerifierPool) -> None:
        """Initialize without starting a process.

        Args:
            model: folder of the policy, whose chat template continues conversations.
            config: limits of the environment processes.
            sampler: the policy's engine.
            pool: the verifiers and the sandbox, for environments that use them.
        """
        self._model = model
        self._pool = pool
        self._sampler = sampler
        self._environments = EnvironmentPool(config, model)
        self._players: dict[str, EpisodePlayer] = {}

    async def play(
        self, row: Mapping[str, Any], prompt_ids: list[int], sampling: SamplingConfig, seed: int | None, number: int
    ) -> Completion:
        """Play the episode of sample `number` of a prompt (a row of `PROMPTS` with an environment).

        Raises:
            EngineError, EngineOptionsError: as the sampler raises them.
        """
        spec = EnvironmentSpec.from_json(row["environment"])
        assert spec is not None
        request = EpisodeRequest(
            spec, row["prompt_id"], row["messages"], prompt_ids, number, sampling, seed, sampling.seed or 0
        )
        player = self._player(sampling)
        return await player.play(request, self._turn, _Services(self._pool, row))

    async def _turn(self, token_ids: list[int], sampling: SamplingConfig, seed: int | None) -> Completion:
        completion = await self._sampler.generate(token_ids, sampling, seed=seed, with_logprobs=False)
        assert isinstance(completion, Completion), "a server's responses have no tokens"
        return completion

    def _player(self, sampling: SamplingConfig) -> EpisodePlayer:
        variables = sampling.chat_template_kwargs
        key = canonical_json(variables)
        if key not in self._players:
            self._players[key] = EpisodePlayer(self._environments, ChatTemplate.from_model(self._model, variables))
        return self._players[key]

    async def aclose(self) -> None:
        """Stop the environment processes."""
        await self._environments.close()


@dataclass(frozen=True)
class _Services:
    """Gives the environment of one prompt access to the stage's verifiers and sandbox."""

    pool: VerifierPool
    row: Mapping[str, Any]

    async def judge(self, text: str, earlier: list[dict[str, str]]) -> Score:
        row = self.row
        return await self.pool.score(
            row["verifier"], text, json.loads(row["ground_truth"]), [*row["messages"], *earlier]
        )

    async def run_program(self, program: str, output_chars: int) -> Execution:
        return await self.pool.run_program(program, output_chars)
