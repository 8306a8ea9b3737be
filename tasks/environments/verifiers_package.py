"""Runs environments of the package `verifiers` (Prime Intellect; version 0.4, `verifiers.v1`) with our policy.

    its environment ──► its harness (a process) ──► its interception ──► an endpoint here ──► generate
                                                   chat completions      one per episode      only what was added

One call runs one episode of one of its tasks. Its harnesses send the whole conversation with each request. The endpoint
inserts only the messages that a request adds, and restarts the conversation if earlier turns changed (`rerendering`).
"""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any

from tasks.environments.interface import Generate, Outcome, Prompt, Turn
from tasks.environments.rerendering import Conversation, get_text
from tasks.failures import one_line
from tasks.machine.packages import installed_version

if TYPE_CHECKING:
    from aiohttp import web

MODEL = "policy"
"""Name of the policy in requests."""
VERSION = "0.4"
"""Version of the package whose interface is used."""


async def verifiers_package(prompt: Prompt, generate: Generate, *, env: Mapping[str, Any], task: int) -> Outcome:
    """Run one task of an environment of the package, and return its reward.

    Args:
        prompt: the prompt, with the messages of the task (`rows`).
        generate: continues the conversation.
        env: the package's options of an environment (its block `[env]`), such as `{"taskset": {"id":
            "gsm8k-v1"}, "agent": {"harness": {"id": "null"}, "runtime": {"type": "subprocess"}}}`.
        task: index of the task in the taskset, from 0.

    Raises:
        EpisodeOver: If a limit of tokens or seconds is reached. A limit of turns is the agent's `max_turns`, at
            its end the package scores the episode.
        ValueError: If the environment offers tools, has no such task, or has several agents.
        RuntimeError: If the package's episode failed, or another version of the package is installed.
    """
    vf = _import_package()
    options = json.dumps(env, sort_keys=True)
    theirs = _load_environment(json.loads(options), prompt.turns)
    endpoint = _Endpoint(Conversation(prompt.messages, generate, prompt.plain))
    async with endpoint.serve() as url, theirs.serving():
        client = vf.EvalClientConfig(base_url=url, api_key_var="NO_KEY")
        episode = await theirs.run_episode(_load_task(options, task), vf.ModelContext(model=MODEL, client=client))
    if endpoint.failure is not None:
        raise endpoint.failure
    errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
    if errors or not episode.ok:
        reason = f"{errors[0].type}: {errors[0].message}" if errors else "no reason is given"
        raise RuntimeError(f"verifiers_package: the episode of task {task} failed: {reason}")
    if len(episode.traces) != 1:
        raise ValueError(f"verifiers_package: the episode has {len(episode.traces)} agents; one is the policy's")
    return Outcome(float(episode.traces[0].reward))


def rows(env: Mapping[str, Any], limit: int) -> list[dict[str, Any]]:
    """Return rows `{messages, task}` of the first tasks of an environment, for a prompt file.

    Args:
        env: the package's options of an environment.
        limit: maximum number of rows.

    Raises:
        ValueError: If a task has no prompt, or its prompt is not text.
        RuntimeError: If another version of the package is installed.
    """
    theirs = _load_environment(dict(env))
    return [
        {"messages": _extract_messages(task.data), "task": number}
        for number, task in enumerate(islice(iter(theirs.taskset), limit))
    ]


def warm_up() -> None:
    """Import the package before processes are forked, so that they share its memory."""
    with suppress(RuntimeError):
        _import_package()


def _import_package() -> Any:
    """Import the package.

    Raises:
        RuntimeError: If it is not installed, or has another interface.
    """
    try:
        import verifiers.v1 as vf
        from verifiers.v1.utils.loaders import load_environment, resolve_env_config  # noqa: F401
    except ImportError as error:
        version = installed_version("verifiers")
        installed = f"version {version} is installed" if version else "it is not installed"
        raise RuntimeError(
            f"verifiers_package needs version {VERSION} of verifiers (pip install 'verifiers=={VERSION}.*'), "
            f"and {installed} ({one_line(error)})"
        ) from error
    return vf


def _load_environment(env: dict[str, Any], turns: int | None = None) -> Any:
    """Return the package's environment of some options, whose agents take at most `turns` turns."""
    vf = _import_package()
    from verifiers.v1.utils.loaders import load_environment, resolve_env_config

    config = resolve_env_config(env)
    for _, agent in config:
        if isinstance(agent, vf.AgentConfig) and turns is not None:
            agent.max_turns = min(turns, agent.max_turns or turns)
    return load_environment(config)


def _extract_messages(data: Any) -> list[dict[str, str]]:
    if data.prompt is None:
        raise ValueError("verifiers_package: a task has no prompt, because its environment speaks first")
    given = [{"role": "user", "content": data.prompt}] if isinstance(data.prompt, str) else data.prompt
    turns = [turn if isinstance(turn, dict) else turn.model_dump() for turn in given]
    system = [{"role": "system", "content": data.system_prompt}] if data.system_prompt else []
    return [*system, *({"role": turn["role"], "content": get_text(turn)} for turn in turns)]


@lru_cache(maxsize=1024)
def _load_task(options: str, number: int) -> Any:
    theirs = _load_environment(json.loads(options))
    for task in islice(iter(theirs.taskset), number, number + 1):
        return task
    raise ValueError(f"verifiers_package: {theirs.config.env_id} has no task {number}")


class _Endpoint:
    """A local chat completions endpoint that serves the policy in one episode."""

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation
        self.failure: Exception | None = None

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[str]:
        """Listen on a free port under a secret path, and yield the URL."""
        from aiohttp import web

        secret = secrets.token_urlsafe(16)
        application = web.Application(client_max_size=1 << 26)
        application.add_routes([web.post(f"/{secret}/chat/completions", self._complete)])
        runner = web.AppRunner(application, access_log=None)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            yield f"http://127.0.0.1:{runner.addresses[0][1]}/{secret}"
        finally:
            await runner.cleanup()

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        from aiohttp import web

        body = await request.json()
        try:
            if body.get("tools"):
                raise ValueError("the environment offers tools, which its prompt in the episode does not name")
            turn = await self._conversation.answer(body["messages"])
        except Exception as failure:  # raised again after the package has ended its episode
            self.failure = self.failure or failure
            return web.json_response({"error": {"message": str(failure), "type": "episode"}}, status=400)
        if not body.get("stream"):
            message = {"role": "assistant", "content": turn.text}
            choice = {"index": 0, "message": message, "finish_reason": turn.finish_reason}
            return web.json_response(_make_completion("chat.completion", [choice]) | _make_usage())
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for event in _make_events(turn):
            await response.write(f"data: {event}\n\n".encode())
        await response.write_eof()
        return response


def _make_completion(kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
    return {"id": "episode", "object": kind, "created": 0, "model": MODEL, "choices": choices}


def _make_usage() -> dict[str, Any]:
    """Return a usage of zero tokens: tokens are counted by the episode."""
    return {"usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}}


def _make_events(turn: Turn) -> list[str]:
    delta = {"role": "assistant", "content": turn.text}
    choices = (
        {"index": 0, "delta": delta, "finish_reason": None},
        {"index": 0, "delta": {}, "finish_reason": turn.finish_reason},
    )
    chunks = [_make_completion("chat.completion.chunk", [choice]) for choice in choices]
    return [*map(json.dumps, [*chunks, _make_completion("chat.completion.chunk", []) | _make_usage()]), "[DONE]"]
