"""Runs environments inside their processes, one episode at a time on the process's event loop.

    session ──{"begin": ...}──► worker        session ◄──{"generate": messages}── worker
            ──{"turn": ...}───►                       ◄──{"judge": text}─────────
            ──{"over": why}───►                       ◄──{"end": ...}────────────
            ──{"judgement"}───►                       ◄──{"run": program}────────
            ──{"execution"}───►                       ◄──{"fault": ...}──────────
            ──{"refused"}─────►

Every message is a line of JSON. The worker sends requests and the session answers, one request at a time.
"""

from __future__ import annotations

import asyncio
import errno
import inspect
import json
import math
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, SupportsFloat, cast

from tasks.environments.interface import (
    ROLES,
    EpisodeOver,
    Judgement,
    Outcome,
    Prompt,
    ServiceError,
    Turn,
    make_encodable,
)
from tasks.environments.python_tool import RUN_PROGRAM
from tasks.environments.time_limit import TimeLimit
from tasks.environments.tools import build_toolbox
from tasks.environments.tools import warm_up as warm_up_parser
from tasks.failures import list_causes, one_line
from tasks.generation.environment_spec import GIVEN
from tasks.lineage.user_code import find_line
from tasks.verifiers import worker
from tasks.verifiers.code.running import Execution
from tasks.verifiers.functions import is_transient, load
from tasks.verifiers.scores import CannotJudge, FunctionFailure

SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN)
"""System error numbers of a process that has used up its memory, files or threads."""
CANCEL_SECONDS = 1.0
"""Seconds that tasks of an environment have to end after they were cancelled."""


def main() -> None:
    """Run the parent process, which loads the environment and forks the workers."""
    worker.serve(warm_up, run_worker)


def warm_up(settings: Mapping[str, Any]) -> None:
    """Import the environment, so that all workers share its memory. If this fails, each episode reports the error."""
    with suppress(RuntimeError):
        warm_up_parser(settings["tool_parser"], settings["tokenizer"])
    with suppress(CannotJudge):
        load(settings["path"], None, what="environment")
    if settings["path"] == GIVEN["verifiers_package"]:  # imported here, because not every run needs the package
        sys.modules[settings["path"].rpartition(".")[0]].warm_up()


def run_worker(connection: socket.socket, settings: Mapping[str, Any]) -> None:
    """Run one episode after another until the session closes the connection."""
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # a policy's text may be printed
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    episodes = loop.create_task(_run_episodes(connection, settings["path"], settings["tokenizer"]))
    while not episodes.done():
        # A task that the environment started may raise one of these, which stops the loop. The episode continues: the
        # environment gets it if it awaits the task.
        with suppress(SystemExit, KeyboardInterrupt):
            loop.run_until_complete(episodes)
    episodes.result()


async def _run_episodes(connection: socket.socket, path: str, tokenizer: str | None) -> None:
    reader, writer = await asyncio.open_connection(sock=connection, limit=worker.LINE_BYTES)
    line = _Line(reader, writer)
    while begin := await line.read():
        signal.setitimer(signal.ITIMER_PROF, begin["cpu_seconds"])
        end = await _run_episode(path, begin, line, tokenizer)
        signal.setitimer(signal.ITIMER_PROF, 0)
        await line.write({"overran": line.limit.reason, **end})


class _Line:
    """The worker's side of the connection to its session."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._turn = asyncio.Lock()
        self.open = True
        self.limit = TimeLimit()
        self.control_tokens: Sequence[str] = ()

    async def read(self) -> dict[str, Any]:
        line = await self._reader.readline()
        return json.loads(line) if line.endswith(b"\n") else {}

    async def write(self, message: Mapping[str, Any]) -> None:
        self._writer.write(json.dumps(message).encode() + b"\n")
        await self._writer.drain()

    async def ask(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Send a request and return its answer.

        Raises:
            RuntimeError: If another request is in flight, or the episode has ended.
        """
        if self._turn.locked():
            raise RuntimeError("an episode has one conversation: await a call before the next one")
        async with self._turn:
            if not self.open:
                raise RuntimeError("the episode has ended")
            self.limit.pause()
            try:
                await self.write(message)
                return await self.read()
            finally:
                self.limit.resume()

    async def generate(self, messages: str | Sequence[Mapping[str, str]] = (), /, *, anew: bool = False) -> Turn:
        """Continue the conversation (`interface.Generate`)."""
        checked = _check_messages(messages, self.control_tokens, (*ROLES, "assistant") if anew else ROLES)
        if anew and (not checked or checked[-1]["role"] == "assistant"):
            raise ValueError("a conversation that is started again must end with a turn that the policy can answer")
        self.limit.check()
        answer = await self.ask({"generate": checked, "anew": anew})
        if "turn" not in answer:
            raise EpisodeOver(answer.get("over", "the run has ended"))
        return Turn(**answer["turn"])

    async def judge(self, text: str) -> Judgement:
        """Score a text with the prompt's verifier (`interface.Prompt.judge`)."""
        return Judgement(**self._answer(await self.ask({"judge": text}), "judgement"))

    async def run_program(self, program: str, output_chars: int) -> Execution:
        """Run a program in the sandbox."""
        answer = await self.ask({"run": program, "output_chars": output_chars})
        return Execution(**self._answer(answer, "execution"))

    def _answer(self, answer: Mapping[str, Any], key: str) -> dict[str, Any]:
        if key not in answer:
            raise ServiceError(answer.get("refused", "the run has ended"), may_pass=answer.get("may_pass", True))
        return dict(answer[key])


async def _run_episode(path: str, begin: Mapping[str, Any], line: _Line, tokenizer: str | None) -> dict[str, Any]:
    """Run one episode and return its final message."""
    line.open, line.control_tokens = True, begin["control_tokens"]
    RUN_PROGRAM.set(line.run_program)
    function: Callable[..., Any] | None = None
    try:
        specs = begin["tools"]
        tools = build_toolbox(specs, begin["tool_parser"], begin["tool_pattern"], tokenizer) if specs else None
        prompt = Prompt(
            begin["messages"],
            begin["sample"],
            begin["seed"],
            line.judge,
            line.control_tokens,
            tools,
            begin["turns"],
        )
        function = load(path, begin["digest"], what="environment")
        called = _call(function, prompt, line.generate, begin["columns"])
        end = _make_end(path, await line.limit.run(called, begin["seconds"]))
    except EpisodeOver:
        end = {"end": None}
    except BaseException as error:  # KeyboardInterrupt and CancelledError are the environment's own, too
        end = _describe_error(path, function, error)
    line.open = False
    return {**end, "retire": not await _cancel_others() or "worn" in end}


def _describe_error(path: str, function: Callable[..., Any] | None, error: BaseException) -> dict[str, Any]:
    """Return the message for an environment that raised or could not be loaded."""
    if isinstance(error, MemoryError):
        return _make_fault(path, "needs more memory than verifiers.environments.memory_mib") | {"worn": True}
    if isinstance(error, CannotJudge):
        failure = error.failure or FunctionFailure(path, str(error))
        return _make_fault(path, failure.reason, may_pass=failure.may_pass)
    where, text = find_line(error, path.rpartition(".")[0], function), one_line(error)
    passes = error.may_pass if isinstance(error, ServiceError) else is_transient(error)
    fault = _make_fault(path, f"raised {type(error).__name__}{where}", f": {text}" if text else "", may_pass=passes)
    return fault | {"worn": True} if any(map(_is_shortage, list_causes(error))) else fault


def _is_shortage(error: BaseException) -> bool:
    """Return whether something was used up that earlier episodes of the process may have taken."""
    no_thread = isinstance(error, RuntimeError) and "start new thread" in str(error)
    return no_thread or isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in SHORTAGES)


async def _call(function: Callable[..., Any], prompt: Prompt, generate: Any, columns: Mapping[str, Any]) -> Any:
    if inspect.isclass(function):
        return await cast(Any, function)(prompt, **columns).run(generate)
    returned = function(prompt, generate, **columns)
    if not inspect.isawaitable(returned):
        raise TypeError("an environment must be an async function, or a class with an async method `run`")
    return await returned


async def _cancel_others() -> bool:
    """Cancel the tasks that an environment left running, and return whether all of them ended."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    if not others:
        return True
    done, left = await asyncio.wait(others, timeout=CANCEL_SECONDS)
    for task in done:
        if not task.cancelled():
            task.exception()  # marks it as retrieved: asyncio would log it
    return not left


def _check_messages(
    messages: str | Sequence[Mapping[str, str]], control: Sequence[str], roles: Sequence[str]
) -> list[dict[str, str]]:
    """Return the messages of a call of `generate`; raises `ValueError` if one is malformed or has a control token."""
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    checked = []
    for message in messages:
        if not isinstance(message, Mapping) or message.get("role") not in roles or len(message) != 2:
            raise ValueError(f"a message has a role of {', '.join(roles)}, and content; got {message!r:.100}")
        content = message.get("content")
        if not isinstance(content, str):
            raise ValueError(f"the content of a message must be text, got {content!r:.100}")
        content = make_encodable(content)
        for token in control:
            if token in content:
                raise ValueError(f"a message contains the control token {token!r}: pass it through prompt.plain")
        checked.append({"role": message["role"], "content": content})
    return checked


def _make_end(path: str, result: Any) -> dict[str, Any]:
    """Return the message for an episode whose environment returned."""
    if result is None:
        return {"end": None}
    outcome = result if isinstance(result, Outcome) else Outcome(result)
    reward = _to_float(outcome.reward)
    if reward is None:
        return _make_fault(path, "must return a finite number, an Outcome or None", f", got {result!r:.100}")
    passed = reward >= 1 if outcome.passed is None else bool(outcome.passed)
    return {"end": {"reward": reward, "passed": passed}}


def _to_float(reward: object) -> float | None:
    """Return a finite number, of any type such as NumPy's, as a float, or None if it is something else."""
    try:
        number = float(reward) if isinstance(reward, SupportsFloat) else math.nan
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return None
    return number if math.isfinite(number) else None


def _make_fault(path: str, reason: str, details: str = "", *, may_pass: bool = False) -> dict[str, Any]:
    """Return the message for an environment that failed; `details` depend on the episode, `reason` does not."""
    return {"fault": {"function": path, "reason": reason, "details": details, "may_pass": may_pass}}
