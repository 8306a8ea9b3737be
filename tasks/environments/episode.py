"""Runs one episode: the policy and the environment alternate until one of them, or a limit, ends it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from tasks.environments.conversation import ChatTemplate
from tasks.environments.interface import Judgement, Turn
from tasks.environments.sessions import (
    AsksForJudgement,
    AsksForTurn,
    AsksToRun,
    Ended,
    EnvironmentPool,
    Failed,
    Overran,
    Request,
    Session,
)
from tasks.failures import one_line
from tasks.generation.chat_template import ChatTemplateError
from tasks.generation.config import SamplingConfig
from tasks.generation.environment_spec import EnvironmentSpec
from tasks.generation.interface import Completion, EpisodeEnd, EpisodeTurn, VersionSpan, sample_seed
from tasks.verifiers.code.running import Execution
from tasks.verifiers.config import EnvironmentsConfig
from tasks.verifiers.scores import CannotJudge, FunctionFailure, Score

NO_TURN = "ended before a turn of the policy"
"""Error of an environment that returned before the policy's first turn."""

SHORT_CHARS = 4096
"""Maximum characters of messages that are tokenised on the event loop, which takes a few milliseconds."""

GenerateTurn = Callable[[list[int], SamplingConfig, int | None], Awaitable[Completion]]
"""The policy: a function of prompt tokens, sampling options and a seed that returns a completion."""


@dataclass(frozen=True)
class EpisodeRequest:
    """A request for one episode, which is one sample of a prompt.

    Attributes:
        spec: the environment.
        prompt_id: id of the prompt, from which the environment's seed is derived.
        messages: messages of the prompt.
        prompt_ids: their tokens under the chat template.
        sample: index of the sample.
        sampling: sampling options; `max_tokens` limits all tokens of the episode after the prompt.
        seed: seed of the episode's turns. Optional. If None, the engine's random stream is used.
        group: number of the group, so that the environment's seed differs when a prompt is sampled again.
    """

    spec: EnvironmentSpec
    prompt_id: str
    messages: Sequence[Mapping[str, str]]
    prompt_ids: list[int]
    sample: int
    sampling: SamplingConfig
    seed: int | None
    group: int = 0


class TurnTokens(Protocol):
    """The interface of a chat template that continues a conversation (`ChatTemplate`)."""

    @property
    def control_tokens(self) -> Sequence[str]:
        """Texts of the control tokens, which an inserted message may not contain."""

    def may_fit(self, messages: Sequence[Mapping[str, str]], tokens: int) -> bool:
        """Return False if the messages are certain to have more than `tokens` tokens (`ChatTemplate.may_fit`)."""

    def inserted(self, messages: Sequence[Mapping[str, str]], last_token: int) -> list[int]:
        """Return the tokens between two turns (`ChatTemplate.inserted`)."""

    def begun(self, messages: Sequence[Mapping[str, str]], tools: Sequence[Mapping[str, Any]]) -> list[int]:
        """Return the tokens of a whole conversation (`ChatTemplate.begun`)."""


class Services(Protocol):
    """The interface of the services that environments can request in addition to the policy's turns."""

    async def judge(self, text: str, earlier: list[dict[str, str]]) -> Score:
        """Score a text with the prompt's verifier, given the messages between the prompt and the text."""

    async def run_program(self, program: str, output_chars: int) -> Execution:
        """Run a program in the sandbox, and return at most `output_chars` characters of its output.

        Raises:
            CannotJudge: If the program cannot be run.
        """


class Observer(Protocol):
    """The interface for callbacks during an episode."""

    def on_environment(self, *, busy: bool) -> None:
        """Handle a switch to the environment (`busy`) or back to the policy."""

    def on_turn(self, so_far: Completion) -> None:
        """Handle the end of a turn of the policy; `so_far` is the episode up to this point."""


class NoObserver:
    """An observer that does nothing."""

    def on_environment(self, *, busy: bool) -> None:
        """Do nothing."""

    def on_turn(self, so_far: Completion) -> None:
        """Do nothing."""


class _Transcript:
    """Collects the tokens of an episode.

    Attributes:
        context: tokens before the current segment: the prompt's tokens, or the new conversation's after a restart.
        begins: number of episode tokens before the current segment.
    """

    def __init__(self, prompt_ids: list[int]) -> None:
        self.context = prompt_ids
        self.begins = 0
        self.token_ids: list[int] = []
        self._logprobs: list[np.ndarray] = []
        self._versions: list[VersionSpan] = []
        self.turns: list[EpisodeTurn] = []
        self.truncated = False

    @property
    def seen(self) -> list[int]:
        """All tokens that the policy sees before its next turn."""
        return [*self.context, *self.token_ids[self.begins :]]

    def begin_anew(self, context: list[int]) -> None:
        """Start a new segment of the episode with another context."""
        self.context, self.begins = context, len(self.token_ids)

    def add(self, inserted_ids: list[int], asked: AsksForTurn, turn: Completion) -> None:
        """Add the tokens that the environment inserted and the policy's turn after them."""
        start = len(self.token_ids) + len(inserted_ids)
        self.token_ids += [*inserted_ids, *np.asarray(turn.token_ids).tolist()]
        self._logprobs += [np.zeros(len(inserted_ids), np.float32), np.asarray(turn.logprobs, np.float32)]
        self._versions += [VersionSpan(span.version, start + span.start, start + span.end) for span in turn.versions]
        context = np.array(self.context, np.int32) if asked.anew else None
        self.turns.append(EpisodeTurn(start, len(self.token_ids), turn.text, tuple(asked.messages), context))
        self.truncated = turn.truncated

    def completion(self, end: EpisodeEnd | None = None) -> Completion:
        """Return the episode so far, with the outcome `end`."""
        logprobs = np.concatenate([np.empty(0, np.float32), *self._logprobs])
        return Completion(
            text=self.turns[-1].text if self.turns else "",
            token_ids=np.array(self.token_ids, np.int32),
            logprobs=logprobs,
            finish_reason="length" if self.truncated else "stop",
            versions=list(self._versions),
            turns=tuple(self.turns),
            end=end,
        )


class EpisodePlayer:
    """Runs the episodes of one stage.

    An interrupted episode is replayed from its recorded turns (`recorded`): the environment restarts and receives these
    turns instead of new ones, as long as it inserts the same messages. From the first different message on, new turns
    are sampled.
    """

    def __init__(self, pool: EnvironmentPool, conversation: TurnTokens) -> None:
        self._pool = pool
        self._conversation = conversation

    @classmethod
    def from_model(cls, model: Path, variables: Mapping[str, Any], config: EnvironmentsConfig) -> EpisodePlayer:
        """Return a player for a policy, on the running event loop.

        Args:
            model: Hugging Face folder of the policy, with its tokenizer and chat template.
            variables: values of the chat template's variables.
            config: limits of the environment processes.

        Raises:
            ModelError: If the tokenizer cannot be loaded.
            ChatTemplateError: If the template has no such variable.
        """
        return cls(EnvironmentPool(config, model), ChatTemplate.from_model(model, variables))

    async def aclose(self) -> None:
        """End the environment processes."""
        await self._pool.close()

    async def play(
        self,
        request: EpisodeRequest,
        generate: GenerateTurn,
        services: Services,
        observer: Observer | None = None,
        recorded: Completion | None = None,
    ) -> Completion:
        """Run one episode and return it. Environment failures do not raise; they are stored in the episode's `end`.

        Args:
            request: the episode.
            generate: the policy; its exceptions are propagated.
            services: the prompt's verifier and the sandbox, for environments that use them.
            observer: callbacks during the episode. Optional.
            recorded: the turns of the episode before it was interrupted. Optional.
        """
        observer = observer or NoObserver()
        observer.on_environment(busy=True)
        fresh = False
        try:
            while True:
                async with self._pool.session(request.spec, fresh=fresh) as session:
                    game = _Game(self._conversation, session, request, generate, services, observer, recorded)
                    completion = await game.play()
                if not session.worn:
                    return completion
                # Earlier episodes have used the process up, so this one is played again, with its turns so far.
                recorded, fresh = _choose_longer(completion, recorded), True
        except CannotJudge as reason:  # no process could be started
            failure = FunctionFailure(request.spec.path, "no process could be started", may_pass=True)
            return _Transcript(request.prompt_ids).completion(EpisodeEnd(None, error=str(reason), failure=failure))
        finally:
            observer.on_environment(busy=False)


async def _run_encoding(call: Callable[[], list[int]], messages: Sequence[Mapping[str, str]]) -> list[int]:
    """Return the tokens of messages. A long text takes seconds, so it is tokenised in a thread."""
    if sum(len(message["content"]) for message in messages) <= SHORT_CHARS:
        return call()
    return await asyncio.to_thread(call)


def _choose_longer(played: Completion, recorded: Completion | None) -> Completion:
    return played if recorded is None or len(played.turns) >= len(recorded.turns) else recorded


@dataclass
class _Game:
    """Plays one episode to its end: alternates the policy's turns with requests of the environment."""

    conversation: TurnTokens
    session: Session
    request: EpisodeRequest
    generate: GenerateTurn
    services: Services
    observer: Observer
    recorded: Completion | None

    def __post_init__(self) -> None:
        self.transcript = _Transcript(self.request.prompt_ids)
        self.over = ""

    async def play(self) -> Completion:
        """Run the episode to its end."""
        request = self.request
        asked: Request = await self.session.begin(
            request.messages,
            request.sample,
            sample_seed(request.group, request.prompt_id, request.sample),
            self.conversation.control_tokens,
        )
        while True:
            match asked:
                case AsksForTurn():
                    if self.over:  # it was refused a turn, and requests one again
                        return self.transcript.completion(self._end(Ended()))
                    asked = await self._next(asked)
                case AsksForJudgement(text):
                    asked = await self._judged(text)
                case AsksToRun(program, output_chars):
                    asked = await self._run(program, output_chars)
                case Overran(reason):
                    self.transcript.truncated = True
                    return self.transcript.completion(None if self.transcript.turns else self._failure(reason))
                case Failed(error, failure):
                    return self.transcript.completion(EpisodeEnd(None, error=error, failure=failure))
                case Ended():
                    return self.transcript.completion(self._end(asked))

    def _end(self, ended: Ended) -> EpisodeEnd | None:
        if ended.overran:
            self.transcript.truncated = True
        if not self.transcript.turns:
            return self._failure(ended.overran or NO_TURN)
        if ended.reward is None:
            return None
        return EpisodeEnd(ended.reward, ended.passed)

    def _failure(self, reason: str) -> EpisodeEnd:
        path = self.request.spec.path
        return EpisodeEnd(None, error=f"environment {path} {reason}", failure=FunctionFailure(path, reason))

    async def _next(self, asked: AsksForTurn) -> Request:
        """Let the policy take its next turn, or refuse it, and return the environment's next request.

        Messages before the first turn are appended to the prompt, and the conversation restarts with the result.
        """
        if asked.messages and not asked.anew and not self.transcript.turns:
            prompt = [dict(message) for message in self.request.messages]
            asked = AsksForTurn([*prompt, *asked.messages], anew=True)
        turns, limit = self.transcript.turns, self.request.spec.turns
        if self.transcript.truncated or len(turns) >= limit:
            return await self._refuse_turn(0)
        try:
            inserted = await self._encode_insertion(asked)
        except Exception as error:  # the text is untrusted: whatever a template or a tokenizer raises is this sample's
            reason = (
                one_line(error)
                if isinstance(error, ChatTemplateError)
                else f"{type(error).__name__}: {one_line(error)}"
            )
            return Failed(
                f"environment {self.request.spec.path}: {reason}", FunctionFailure(self.request.spec.path, reason)
            )
        room = 0 if inserted is None else self._compute_room(inserted)
        if inserted is None or room <= 0:
            return await self._refuse_turn(room)
        turn = self._take_recorded(asked) or await self._sampled(inserted, room)
        self.transcript.add(inserted, asked, turn)
        self.observer.on_turn(self.transcript.completion())
        last = turn.truncated or len(turns) >= limit or room <= len(turn.token_ids)
        return await self.session.turn(Turn(turn.text, turn.finish_reason, last))

    async def _refuse_turn(self, room: int) -> Request:
        """Refuse a turn, for which `room` tokens are left, and return the environment's next request."""
        turns, limit = len(self.transcript.turns), self.request.spec.turns
        self.transcript.truncated = True
        self.over = f"the episode has had {turns} turns of {limit} and has {max(room, 0)} tokens left"
        return await self.session.over(self.over)

    def _compute_room(self, inserted: list[int]) -> int:
        """Return the maximum number of tokens of the next turn; `max_tokens` limits all turns of an episode together.

        The policy never sees more tokens than the prompt and `max_tokens` together, which fit the engine's context.
        """
        most, transcript = self.request.sampling.max_tokens, self.transcript
        left = most - len(transcript.token_ids)
        visible = len(self.request.prompt_ids) + most - len(transcript.seen)
        return min(left, visible) - len(inserted)

    async def _encode_insertion(self, asked: AsksForTurn) -> list[int] | None:
        """Return the tokens between the last turn and the next, or None if they are certain to be too many.

        Before the first turn there are none.
        """
        template, transcript = self.conversation, self.transcript
        if asked.anew:
            if not template.may_fit(asked.messages, len(self.request.prompt_ids) + self.request.sampling.max_tokens):
                return None
            tools = [tool["schema"] for tool in self.request.spec.tools]
            begun = partial(template.begun, asked.messages, tools)
            transcript.begin_anew(await _run_encoding(begun, asked.messages))
            return []
        if not transcript.turns:
            return []
        if not template.may_fit(asked.messages, self._compute_room([])):
            return None
        return await _run_encoding(partial(template.inserted, asked.messages, transcript.token_ids[-1]), asked.messages)

    def _take_recorded(self, asked: AsksForTurn) -> Completion | None:
        """Return the next recorded turn, or None if there is none or the environment inserts different messages.

        After different messages, the rest of the record is discarded.
        """
        record, index = self.recorded, len(self.transcript.turns)
        if record is None or index >= len(record.turns):
            return None
        turn = record.turns[index]
        if list(turn.inserted) != asked.messages or (turn.context is not None) != asked.anew:
            self.recorded = None
            return None
        spans = [
            VersionSpan(span.version, span.start - turn.start, span.end - turn.start)
            for span in record.versions
            if turn.start <= span.start < turn.end
        ]
        span = slice(turn.start, turn.end)
        reason = record.finish_reason if index == len(record.turns) - 1 else "stop"
        return Completion(turn.text, record.token_ids[span], record.logprobs[span], reason, spans)

    async def _sampled(self, inserted: list[int], room: int) -> Completion:
        request, sampling = self.request, self.request.sampling
        tokens = min(room, request.spec.turn_tokens or room)
        seed = None if request.seed is None else sample_seed(request.seed, "turn", len(self.transcript.turns))
        self.observer.on_environment(busy=False)
        try:
            return await self.generate(
                [*self.transcript.seen, *inserted],
                sampling.model_copy(update={"max_tokens": tokens}),
                seed,
            )
        finally:
            self.observer.on_environment(busy=True)

    async def _judged(self, text: str) -> Request:
        """Score a text with the verifier, and return the environment's next request."""
        score = await self.services.judge(text, self.transcript.completion().earlier)
        if score.error is not None:
            return await self.session.refuse(score.error, may_pass=score.failure is None or score.failure.may_pass)
        return await self.session.judgement(Judgement(score.value, score.passed, score.detail))

    async def _run(self, program: str, output_chars: int) -> Request:
        """Run a program in the sandbox, and return the environment's next request."""
        try:
            execution = await self.services.run_program(program, output_chars)
        except CannotJudge as reason:
            return await self.session.refuse(str(reason), may_pass=True)
        return await self.session.execution(execution)
