"""Runs environments written for TRL's `environment_factory`: classes whose public methods are the policy's tools.

    class Dice:                                       # as `GRPOTrainer(environment_factory=Dice)` takes it
        def reset(self, **row): ...                   # an observation, which is added to the prompt, or None
        def roll(self, sides: int) -> str: ...        # a tool, with type hints and a docstring
        def get_reward(self) -> float: ...            # optional: the reward; by default the verifier scores

Each episode has its own instance. Clients of OpenEnv servers can be used through such classes.
"""

from __future__ import annotations

import inspect
from typing import Any, cast

from tasks.environments.call_tools import answer_calls
from tasks.environments.interface import Generate, Outcome, Prompt
from tasks.environments.python_tool import check_options
from tasks.environments.tools import Toolbox
from tasks.verifiers.functions import load


async def trl_environment(
    prompt: Prompt, generate: Generate, *, factory: str, role: str = "tool", max_output_chars: int = 2000, **row: Any
) -> Outcome | None:
    """Run an episode with an instance of a class whose methods the policy calls.

    Args:
        prompt: the prompt; its tools are the methods of the class.
        generate: continues the conversation.
        factory: import path of the class.
        role: role of the turns with results: `tool`, or `environment` or `user` for a chat template that does
            not render `tool`.
        max_output_chars: maximum characters of a result; the middle of a longer one is removed.
        row: the columns of the row, which are passed to `reset`.

    Raises:
        ValueError: If an option is out of range, or `reset` returns anything other than text or None.
    """
    check_options("trl_environment", role, max_output_chars)
    tools = cast(Toolbox, prompt.tools)
    environment = cast(Any, load(factory, tools.digest, what="environment class"))()
    observation = await _wait_for(environment.reset(**row))
    if observation is None:
        turn = await generate()
    elif isinstance(observation, str):
        *before, last = prompt.messages
        begun = {"role": last["role"], "content": last["content"] + prompt.plain(observation)}
        turn = await generate([*before, begun], anew=True)
    else:
        raise ValueError(
            f"trl_environment: reset of {factory} returned {observation!r:.100}, but only text is supported"
        )
    await answer_calls(prompt, generate, turn, tools.bind(environment), role, max_output_chars)
    if not hasattr(environment, "get_reward"):
        return None
    return Outcome(float(await _wait_for(environment.get_reward())))


async def _wait_for(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value
