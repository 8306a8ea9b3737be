"""Calls the tools that a turn requests and returns their results to the policy, until a turn calls none."""

from __future__ import annotations

from contextlib import suppress

from tasks.environments.interface import EpisodeOver, Generate, Prompt, Tools, Turn
from tasks.environments.python_tool import check_options
from tasks.verifiers.code.running import keep_ends
from tasks.verifiers.responses import strip_thinking


async def call_tools(prompt: Prompt, generate: Generate, *, role: str = "tool", max_output_chars: int = 2000) -> None:
    """Call the tools of each turn and insert their results, until a turn calls none; the verifier scores that turn.

    Args:
        prompt: the prompt, with its tools.
        generate: continues the conversation.
        role: role of the turns with results: `tool`, or `environment` or `user` for a chat template that does
            not render `tool`.
        max_output_chars: maximum characters of a result; the middle of a longer one is removed.

    Raises:
        ValueError: If an option is out of range, or the environment has no tools.
    """
    if prompt.tools is None:
        raise ValueError("call_tools: the environment has no tools: name functions of yours in environment.tools")
    check_options("call_tools", role, max_output_chars)
    await answer_calls(prompt, generate, await generate(), prompt.tools, role, max_output_chars)


async def answer_calls(
    prompt: Prompt, generate: Generate, turn: Turn, tools: Tools, role: str, max_output_chars: int
) -> Turn:
    """Call the tools of a turn and of later turns, until a turn calls none or a limit is reached; return that turn."""
    with suppress(EpisodeOver):  # as in TRL: what has been done counts, and a result that does not fit is dropped
        while not turn.last and (calls := tools.calls_in(strip_thinking(turn.text))):
            results = [keep_ends(await tools.result_of(call), max_output_chars) for call in calls]
            turn = await generate([{"role": role, "content": prompt.plain(text) or "(no result)"} for text in results])
    return turn
