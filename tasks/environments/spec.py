"""The environment of one prompt, as its row holds it, and the options of environments' processes."""

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
    """Digest of its file when the prompts were made."""
    schema: dict[str, Any]
    """The description that chat templates take: `{"type": "function", "function": {"name", "parameters", ...}}`."""


@dataclass(frozen=True)
class EnvironmentSpec:
    """The environment of a prompt.

    Attributes:
        path: import path of the function or class.
        columns: keyword arguments beside the prompt and `generate`, JSON values.
        turns: most turns of the policy.
        turn_tokens: most tokens of one turn; None: as many as the episode has left.
        seconds: most wall seconds that the environment may take in all, its waits for the policy left out.
        digest: digest of the file when the prompts were made; None: it is not compared.
        tools: the functions that the policy may call.
        tool_parser: vLLM's name of the format in which the model calls tools; None: `tool_pattern` tells calls.
        tool_pattern: regular expression of a call; None: the Hermes format.
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
        """Return the text of the column `environment`."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str | None) -> EnvironmentSpec | None:
        """Return the environment that a column holds; None for a prompt without one."""
        return None if text is None else cls(**json.loads(text))
