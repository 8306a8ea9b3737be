"""Defines the pydantic model of a source's `environment:`."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import Field, field_validator, model_validator

from tasks.config.fields import ModuleMark, UserCode
from tasks.config.loading import Config, close_match
from tasks.generation.environment_spec import GIVEN
from tasks.generation.vllm_names import TOOL_PARSERS
from tasks.sourcing.fields import IMPORT_PATH, Where


class EnvironmentOptions(Config):
    """The environment of a source's prompts, which responds between the turns of an episode (`tasks.environments`)."""

    name: UserCode[str]
    """Name of a built-in environment, such as `guess_number`, or the import path of your own async function or class
    (`tasks.environments.interface`), such as `my_rooms.maze`, in the folder of this file, the working directory or on
    the Python path."""
    columns: list[str] = []  # noqa: RUF012 (pydantic copies defaults)
    """Columns of the row that are passed to the environment as keyword arguments."""
    options: Annotated[Where, ModuleMark(keys=("factory",))] = {}  # noqa: RUF012 (pydantic copies defaults)
    """Further keyword arguments, the same for all rows."""
    turns: int = Field(default=8, gt=0)
    """Maximum number of policy turns in an episode. A longer episode is truncated."""
    turn_tokens: int | None = Field(default=None, gt=0)
    """Optional. Maximum number of tokens of one turn. A longer turn is cut off, and the episode is truncated there. If
    null, only `sampling.max_tokens` applies, which limits all tokens of an episode after its prompt."""
    seconds: float = Field(default=60.0, gt=0)
    """Maximum wall time in seconds that the environment may take in one episode, not counting its waits for the policy.
    An episode that takes longer is truncated."""

    tools: UserCode[list[str]] = []  # noqa: RUF012 (pydantic copies defaults)
    """Import paths of your functions that the policy may call, such as `my_tools.search`. They need type hints and a
    docstring with `Args:`; the model's chat template describes them in the prompt. The environment `call_tools` calls
    them, and your own environment can too (`prompt.tools`)."""
    tool_parser: str | None = None
    """Optional. Format of the model's tool calls, by its name in vLLM's option `--tool-call-parser`, such as
    `llama3_json` or `olmo3`. If null, `tool_pattern` is used."""
    tool_pattern: str | None = None
    """Optional. Regular expression of a tool call with one group, which matches JSON with `name` and `arguments`; `.`
    also matches line ends. If null, the Hermes format is used, `<tool_call>(.*?)</tool_call>`, which is also that of
    Qwen models."""

    @property
    def path(self) -> str:
        """The import path of the environment."""
        return GIVEN.get(self.name, self.name)

    @property
    def factory(self) -> str | None:
        """The import path of the class that `trl_environment` wraps."""
        return self.options.get("factory") if self.name == "trl_environment" else None

    @property
    def code_of_the_user(self) -> list[str]:
        """The import paths of the user's code: the environment, the tools, and the class behind `trl_environment`."""
        own = [] if self.name in GIVEN else [self.name]
        return [*own, *self.tools, *([self.factory] if self.factory else [])]

    @field_validator("name")
    @classmethod
    def _is_given_or_a_path(cls, name: str) -> str:
        if name not in GIVEN and not IMPORT_PATH.fullmatch(name):
            raise ValueError(
                f"{name!r} is not one of {', '.join(GIVEN)}{close_match(name, GIVEN)}, nor an import path such as "
                "my_rooms.maze"
            )
        return name

    @field_validator("tools")
    @classmethod
    def _check_tool_paths(cls, tools: list[str]) -> list[str]:
        for path in tools:
            if not IMPORT_PATH.fullmatch(path):
                raise ValueError(f"{path!r} is not the import path of a function, such as my_tools.search")
        names = [path.rpartition(".")[2] for path in tools]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"two tools are called {twice!r}, and the policy calls them by name: rename one")
        return tools

    @field_validator("tool_parser")
    @classmethod
    def _is_a_parser(cls, name: str | None) -> str | None:
        if name is not None and name not in TOOL_PARSERS:
            raise ValueError(f"{name!r} is not a parser of vLLM{close_match(name, TOOL_PARSERS)}")
        return name

    @field_validator("tool_pattern")
    @classmethod
    def _has_one_group(cls, pattern: str | None) -> str | None:
        try:
            groups = re.compile(pattern or "()").groups
        except re.error as error:
            raise ValueError(f"{pattern!r} is not a regular expression: {error}") from None
        if groups != 1:
            raise ValueError(f"{pattern!r} has {groups} groups, and must have one, the JSON of a call")
        return pattern

    @model_validator(mode="after")
    def _check_tools(self) -> EnvironmentOptions:
        if self.tool_parser is not None and self.tool_pattern is not None:
            raise ValueError("tool_parser and tool_pattern both say how calls of tools are parsed: give one of them")
        if not self.tools and self.factory is None and (self.tool_parser or self.tool_pattern):
            raise ValueError("tool_parser and tool_pattern say how calls of tools are parsed, but tools is empty")
        if self.name == "trl_environment" and (self.tools or not IMPORT_PATH.fullmatch(str(self.factory))):
            raise ValueError(
                "trl_environment needs options.factory, the import path of a class, and no tools in addition"
            )
        if not self.tools and self.name == "call_tools":
            raise ValueError("call_tools needs tools: import paths of functions that the policy may call")
        return self

    @model_validator(mode="after")
    def _check_unique_names(self) -> EnvironmentOptions:
        twice = sorted(set(self.columns) & set(self.options))
        if twice:
            raise ValueError(f"{twice[0]!r} is among columns and options: give it once")
        return self
