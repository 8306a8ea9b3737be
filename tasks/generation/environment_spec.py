"""Defines the environment of a prompt, as it is stored in the prompt's row."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any, TypedDict

GIVEN: dict[str, str] = {
    name: f"tasks.environments.{name}.{name}"
    for name in ("guess_number", "second_try", "python_tool", "call_tools", "trl_environment", "verifiers_package")
}
"""Import paths of the environments that come with the project, by their names."""


class ToolSpec(TypedDict):
    """A function that the policy may call."""

    path: str
    """The import path of the function."""
    digest: str
    """Digest of its file at the time the prompts were made."""
    schema: dict[str, Any]
    """Schema for the chat template: `{"type": "function", "function": {"name", "parameters", ...}}`."""


@dataclass(frozen=True)
class EnvironmentSpec:
    """The environment of a prompt.

    Attributes:
        path: import path of the function or class.
        columns: keyword arguments in addition to the prompt and `generate`, as JSON values.
        turns: maximum number of turns of the policy.
        turn_tokens: maximum tokens of one turn. Optional. If None, all remaining tokens of the episode.
        seconds: maximum wall-clock seconds of the environment in one episode, without its waits for the policy.
        digest: digest of the file at the time the prompts were made. Optional. If None, it is not checked.
        tools: the functions that the policy may call.
        tool_parser: name of vLLM's parser for the model's tool calls. Optional. If None, `tool_pattern` is used.
        tool_pattern: regular expression of a tool call. Optional. If None, the Hermes format is used.
    """

    path: str
    columns: dict[str, Any] = field(default_factory=dict)
    turns: int = 8
    turn_tokens: int | None = None
    seconds: float = 60.0
    digest: str | None = None
    tools: list[ToolSpec] = field(default_factory=list)
    tool_parser: str | None = None
    tool_pattern: str | None = None

    def to_json(self) -> str:
        """Return the environment as JSON text, for the column `environment`."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str | None) -> EnvironmentSpec | None:
        """Return the environment stored in the column `environment`, or None if the prompt has none."""
        return None if text is None else cls(**json.loads(text))
