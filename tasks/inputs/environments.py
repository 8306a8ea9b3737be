"""Runs the environment of a source on its first row with dummy turns, before anything is sampled.

An environment runs in a separate process, as in every stage. Only the policy's turns are dummies. A policy could say
any of them, but an environment may have good reason to reject one, so a source is only refused if all episodes fail.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from itertools import cycle
from typing import Any

import numpy as np

from tasks.config.loading import SpecError
from tasks.environments.conversation import ChatTemplate
from tasks.environments.episode import EpisodePlayer, EpisodeRequest, TurnTokens
from tasks.environments.sessions import EnvironmentPool
from tasks.generation.chat_template import ChatTemplateError
from tasks.generation.config import SamplingConfig
from tasks.generation.environment_spec import EnvironmentSpec
from tasks.generation.interface import Completion
from tasks.generation.models import HubModel, LocalFolder, ModelSpec
from tasks.generation.tokenizer_options import change_loaded
from tasks.inputs.files import DataFile
from tasks.inputs.first_rows import try_on_rows, usable_rows
from tasks.sourcing import loaders
from tasks.sourcing.ground_truths import build_environment
from tasks.sourcing.spec import SourceSpec
from tasks.storage.model_folder import convert_load_errors
from tasks.verifiers import Score
from tasks.verifiers.code.running import Execution
from tasks.verifiers.scores import CannotJudge

logger = logging.getLogger(__name__)

TURNS = (
    "42",
    "I do not know.",
    "```python\nprint(42)\n```",
    '<tool_call>{"name": "42", "arguments": {}}</tool_call>',  # is answered with an error, and calls no tool
)
"""The dummy turns. Each episode begins with a different one."""


def check_environment(
    source: SourceSpec, rows: list[loaders.Row], data: DataFile, template: TurnTokens | None = None
) -> None:
    """Run the environment of a source, if it has one, on its first usable row.

    Args:
        source: the source.
        rows: its first rows.
        data: the data file, for its name and the limits of processes.
        template: the policy's chat template. Optional. If None, messages are not rendered.

    Raises:
        SpecError: the environment fails in every episode, or the chat template refuses or leaves out one of its
            messages. The message contains its name, the exception and the line.
    """
    if source.environment is None:
        return
    where = f"{data.name}: source {source.name!r}"
    try:
        row = find_first_row(source, rows)
    except CannotJudge as reason:
        raise SpecError(f"{where}: {reason}") from None
    if row is None:
        return
    spec, messages = row
    spec = replace(spec, tool_pattern=None)  # the dummy call is in the format of the default pattern
    watched = _Watched(template or _NoTemplate())
    orders = [TURNS[sample:] + TURNS[:sample] for sample in range(len(TURNS))]
    completions = asyncio.run(play(spec, messages, data, orders, watched))
    if watched.refusals:
        raise SpecError(f"{where}: environment {source.environment.name}: {watched.refusals[0]}")
    errors = [None if completion.end is None else completion.end.error for completion in completions]
    on_all = "it fails like this in each of {} dummy episodes"
    try_on_rows([errors], list, where, on_all, "it fails like this in one dummy episode, not in others")


def load_template(model: ModelSpec, variables: Mapping[str, Any]) -> ChatTemplate | None:
    """Return the chat template of a model whose tokenizer can be read here, or None.

    Only its tokenizer is loaded. The weights of a package and a folder on blob storage are not at hand: their template
    is applied when the first episode is played.

    Args:
        model: the model.
        variables: values of the template's variables.

    Raises:
        ModelError: the tokenizer cannot be loaded, or its vocabulary lacks one of `model.special_tokens`.
        ChatTemplateError: the template has no such variable.
    """
    source = model.source
    if find_spec("transformers") is None or not isinstance(source, LocalFolder | HubModel):
        logger.info("messages of environments meet the chat template of %s in the first episode", model.name)
        return None
    from transformers import AutoTokenizer

    name, revision = (
        (source.path, {}) if isinstance(source, LocalFolder) else (source.name, {"revision": source.revision})
    )
    with convert_load_errors(name):
        tokenizer = AutoTokenizer.from_pretrained(name, **revision)
    return ChatTemplate(change_loaded(tokenizer, model.chat_template, model.special_tokens), variables)


def find_first_row(
    source: SourceSpec, rows: Sequence[loaders.Row]
) -> tuple[EnvironmentSpec, Sequence[Mapping[str, str]]] | None:
    """Return the environment and the messages of the first usable row of a source, or None if there is none.

    Raises:
        CannotJudge: the environment cannot be imported.
    """

    def environment(content: dict[str, Any]) -> EnvironmentSpec:
        spec = EnvironmentSpec.from_json(build_environment(content, source))
        assert spec is not None
        return spec

    return next(usable_rows(source, rows, environment), None)


async def play(
    spec: EnvironmentSpec,
    messages: Sequence[Mapping[str, str]],
    data: DataFile,
    turns: Sequence[Sequence[str]],
    template: TurnTokens | None = None,
) -> list[Completion]:
    """Play one episode for each list of turns that the policy says, with scores of 0 and programs without output.

    Args:
        spec: the environment.
        messages: messages of the prompt.
        data: the data file, for the limits of processes.
        turns: the policy's turns by episode. It begins again after the last.
        template: the policy's chat template. Optional. If None, messages are not rendered.
    """
    spec = replace(spec, tool_parser=None)  # a tool parser needs vLLM and the policy's tokenizer, which a pod may lack
    player = EpisodePlayer(EnvironmentPool(data.verifiers.environments), template or _NoTemplate())
    sampling = SamplingConfig(max_tokens=1 << 20)
    try:
        return [
            await player.play(
                EpisodeRequest(spec, "dummy", messages, [0], sample, sampling, None),
                _Speaker(texts).generate,
                _NoServices(),
            )
            for sample, texts in enumerate(turns)
        ]
    finally:
        await player.aclose()


class _Watched:
    """A chat template that records what it refuses."""

    def __init__(self, template: TurnTokens) -> None:
        self._template = template
        self.refusals: list[str] = []

    @property
    def control_tokens(self) -> Sequence[str]:
        """Return the template's control tokens."""
        return self._template.control_tokens

    def may_fit(self, messages: Sequence[Mapping[str, str]], tokens: int) -> bool:
        """Return what the template returns."""
        return self._template.may_fit(messages, tokens)

    def inserted(self, messages: Sequence[Mapping[str, str]], last_token: int) -> list[int]:
        """Return the template's tokens, and record an error."""
        return self._recorded(lambda: self._template.inserted(messages, last_token))

    def begun(self, messages: Sequence[Mapping[str, str]], tools: Sequence[Mapping[str, Any]]) -> list[int]:
        """Return the template's tokens, and record an error."""
        return self._recorded(lambda: self._template.begun(messages, tools))

    def _recorded(self, call: Callable[[], list[int]]) -> list[int]:
        try:
            return call()
        except ChatTemplateError as error:
            self.refusals.append(str(error))
            raise


class _NoTemplate:
    """A chat template without tokens."""

    @property
    def control_tokens(self) -> Sequence[str]:
        """Return no tokens."""
        return ()

    def may_fit(self, messages: Sequence[Mapping[str, str]], tokens: int) -> bool:
        """Return True."""
        return True

    def inserted(self, messages: Sequence[Mapping[str, str]], last_token: int) -> list[int]:
        """Return one token in place of the messages."""
        return [0]

    def begun(self, messages: Sequence[Mapping[str, str]], tools: Sequence[Mapping[str, Any]]) -> list[int]:
        """Return one token in place of the conversation."""
        return [0]


class _Speaker:
    """A policy that says the dummy turns one after the other."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = cycle(texts)

    async def generate(self, token_ids: list[int], sampling: SamplingConfig, seed: int | None) -> Completion:
        """Return the next turn."""
        return Completion(next(self._texts), np.zeros(1, np.int32), np.zeros(1, np.float32), "stop", [])


class _NoServices:
    """Dummy services: every score is 0, and programs have no output."""

    async def judge(self, text: str, earlier: list[dict[str, str]]) -> Score:
        """Return a score of 0."""
        return Score.binary(False, "a dummy turn")

    async def run_program(self, program: str, output_chars: int) -> Execution:
        """Return no output."""
        return Execution("")
