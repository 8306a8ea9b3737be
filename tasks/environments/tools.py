r"""Parses and runs tool calls: user functions that the policy calls in the model's tool call format.

    policy: <tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>  ──► add(a=1, b=2)
    tool:   3                                                                     ◄──

The text of a turn is untrusted: a call can only name a function of the data file, its arguments are validated against
the type hints of the function, and errors are returned to the policy as text. Functions run in the environment's
process, under its limits.
"""

from __future__ import annotations

import inspect
import json
import logging
import os
import re
from collections.abc import Callable, Sequence
from functools import cache
from types import MethodType
from typing import Any

from pydantic import ValidationError, validate_call
from pydantic.errors import PydanticUserError

from tasks.environments.interface import EpisodeOver, ToolCall
from tasks.failures import one_line
from tasks.generation.environment_spec import ToolSpec
from tasks.lineage.user_code import find_line
from tasks.verifiers.functions import compute_function_digest, is_transient, load
from tasks.verifiers.scores import CannotJudge, FunctionFailure

PATTERN = r"<tool_call>(.*?)</tool_call>"
"""Pattern of a tool call in the Hermes format (Qwen and others); its one group is the JSON."""
OPENING = re.compile(r"<[^<>\s]{0,20}(?:tool|function)[_▁]?calls?[^<>\s]{0,30}>|\[TOOL_CALLS\]")
"""The beginning of a tool call in most formats: a tag such as `<tool_call>` or `<|tool_call_start|>`."""
SHOWN_CHARS = 200
"""Maximum characters of the policy's text, or of an error, that the answer to an invalid call quotes."""

Parse = Callable[[str], list[ToolCall]]
"""A function that returns the tool calls in a turn, in order."""


def describe_tool(path: str) -> ToolSpec:
    """Return the tool at an import path, with the schema that the chat template shows the policy.

    The schema is generated from the function's name, docstring and type hints by transformers' `get_json_schema`.

    Raises:
        CannotJudge: If it cannot be imported, or lacks a docstring, a type hint or the description of an argument.
    """
    return _describe(path, load(path, None, what="tool"), compute_function_digest(path, "tool"))


def describe_methods(path: str) -> list[ToolSpec]:
    """Return the tools of the class at an import path: its public methods, as for TRL's `environment_factory`.

    `reset` and `get_reward` are not tools.

    Raises:
        CannotJudge: If there is no such class, or a method cannot be described.
    """
    cls = load(path, None, what="environment class")
    if not inspect.isclass(cls):
        raise CannotJudge.of_code("environment", path, " is not a class, as TRL's environment_factory requires")
    digest, stand_in = compute_function_digest(path, "environment class"), object()
    methods = [
        _describe(f"{path}.{name}", MethodType(function, stand_in), digest)  # bound, so that `self` is not a parameter
        for name, function in inspect.getmembers(cls, inspect.isfunction)
        if not name.startswith("_") and name not in ("reset", "get_reward")
    ]
    if not methods or not hasattr(cls, "reset"):
        raise CannotJudge.of_code("environment", path, " has no method `reset`, or none that a policy could call")
    return methods


def _describe(path: str, function: Callable[..., Any], digest: str) -> ToolSpec:
    from transformers.utils.chat_template_utils import (
        DocstringParsingException,
        TypeHintParsingException,
        get_json_schema,
    )

    try:
        schema = get_json_schema(function)
        validate_call(function)
    except (DocstringParsingException, TypeHintParsingException, PydanticUserError) as error:
        raise CannotJudge.of_code("tool", path, f" cannot be described to a model: {one_line(error)}") from error
    return ToolSpec(path=path, digest=digest, schema=schema)


class Toolbox:
    """The tools of one episode (`interface.Tools`)."""

    def __init__(self, tools: Sequence[ToolSpec], parse: Parse, instance: object | None = None) -> None:
        """Create the toolbox.

        Args:
            tools: specs of the tools.
            parse: parses the calls in a turn.
            instance: the object whose methods are the tools. Optional. If None, the tools are functions.
        """
        self._tools = {tool["schema"]["function"]["name"]: tool for tool in tools}
        self._parse = parse
        self._instance = instance

    @property
    def digest(self) -> str:
        """Digest of the first tool's file at the time the prompts were made."""
        return next(iter(self._tools.values()))["digest"]

    def bind(self, instance: object) -> Toolbox:
        """Return a toolbox whose tools are methods of an object."""
        return Toolbox(list(self._tools.values()), self._parse, instance)

    def calls_in(self, text: str) -> list[ToolCall]:
        """Return the tool calls in a turn, in order."""
        return self._parse(text)

    async def result_of(self, call: ToolCall) -> str:
        """Call a tool and return its result, or an error message for the policy if the call is invalid.

        Raises:
            CannotJudge: If the tool cannot be imported, has changed since the prompts were made, or raised an exception
                other than `ValueError`, `LookupError`, `ArithmeticError` or `MemoryError`.
        """
        if call.problem:
            return _format_refusal(call.problem)
        if call.name not in self._tools:
            return _format_refusal(f"no tool is called {call.name[:SHOWN_CHARS]!r}, but {', '.join(self._tools)}")
        tool = self._tools[call.name]
        function = self._function(tool)
        try:
            result = validate_call(function)(**call.arguments)
            if inspect.isawaitable(result):
                result = await result
            return _format_result(result)
        except ValidationError as error:
            return _format_refusal("; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()))
        except (ValueError, LookupError, ArithmeticError) as error:
            return _format_refusal(f"{type(error).__name__}: {error}")
        except (MemoryError, EpisodeOver):
            raise
        except (Exception, SystemExit) as error:
            raise _make_fault(tool["path"], function, error) from error

    def _function(self, tool: ToolSpec) -> Callable[..., Any]:
        if self._instance is None:
            return load(tool["path"], tool["digest"], what="tool")
        method: Callable[..., Any] = getattr(self._instance, tool["schema"]["function"]["name"])
        return method


def build_toolbox(tools: Sequence[ToolSpec], parser: str | None, pattern: str | None, tokenizer: str | None) -> Toolbox:
    """Return the tools of an episode.

    Args:
        tools: specs of the tools.
        parser: name of vLLM's parser for the model's tool calls. Optional. If None, `pattern` is used.
        pattern: regular expression of a tool call. Optional. If None, `PATTERN` is used.
        tokenizer: folder of the policy's tokenizer, which `parser` needs.

    Raises:
        RuntimeError: If vLLM is not installed, or its parser does not support the tokenizer.
    """
    if parser is None:
        return Toolbox(tools, make_pattern_parser(pattern or PATTERN))
    return Toolbox(tools, _make_vllm_parser(parser, str(tokenizer), json.dumps([tool["schema"] for tool in tools])))


def make_pattern_parser(pattern: str) -> Parse:
    """Return a function that parses tool calls by a pattern, whose one group is the JSON `{"name", "arguments"}`."""
    compiled = re.compile(pattern, re.DOTALL)
    return lambda text: [_read(match) for match in compiled.findall(text)]


@cache
def _make_vllm_parser(parser: str, tokenizer: str, schemas: str) -> Parse:
    """Return a function that parses tool calls with vLLM's parser, as with its server option `--tool-call-parser`."""
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "CRITICAL")  # it would log every call that it cannot parse
    logging.getLogger("vllm").setLevel(logging.CRITICAL)
    try:
        from transformers import AutoTokenizer
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
        from vllm.tool_parsers import ToolParserManager

        request = ChatCompletionRequest(model="", messages=[], tools=json.loads(schemas) or None)
        make: Callable[..., Any] = ToolParserManager.get_tool_parser(parser)
        reader = make(AutoTokenizer.from_pretrained(tokenizer), request.tools)
    except Exception as error:
        raise RuntimeError(
            f"tool_parser: {parser} cannot be used here: {type(error).__name__}: {one_line(error)}"
        ) from error

    def parse(text: str) -> list[ToolCall]:
        try:
            calls = reader.extract_tool_calls(text, request).tool_calls
        except Exception as error:  # the text is the policy's
            return [ToolCall("", {}, f"a call cannot be read: {one_line(error)}")]
        if not calls and (opening := OPENING.search(text)):  # the parser takes it for text
            return [ToolCall("", {}, f"a call cannot be read: {text[opening.start() :][:SHOWN_CHARS]}")]
        return [_make_call(call.function.name, call.function.arguments) for call in calls]

    return parse


def warm_up(parser: str | None, tokenizer: str | None) -> None:
    """Import a vLLM parser before forking, so that all environment processes share it."""
    if parser is not None:
        _make_vllm_parser(parser, str(tokenizer), "[]")


def _read(text: str) -> ToolCall:
    try:
        call = json.loads(text)
    except (ValueError, RecursionError):
        return ToolCall("", {}, f"a call is not JSON: {text.strip()[:SHOWN_CHARS]}")
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return ToolCall("", {}, f'a call is an object with "name" and "arguments", not {text.strip()[:SHOWN_CHARS]}')
    return _make_call(call["name"], call.get("arguments", {}))


def _make_call(name: str, arguments: object) -> ToolCall:
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            return ToolCall(name, {}, f"the arguments are not JSON: {str(arguments)[:SHOWN_CHARS]}")
    if not isinstance(arguments, dict):
        return ToolCall(name, {}, "the arguments are not an object of names and values")
    return ToolCall(name, arguments)


def _format_result(result: object) -> str:
    """Return the result of a tool as text: JSON, or `str` of what JSON cannot express, such as NumPy's numbers."""
    if isinstance(result, str):
        return result
    try:
        return json.dumps(result, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        return str(result)


def _make_fault(path: str, function: Callable[..., Any], error: BaseException) -> CannotJudge:
    where = find_line(error, function.__module__, function)
    reason = f"had its tool {path} raise {type(error).__name__}{where}"
    return CannotJudge(f"tool {path}: {one_line(error)}", FunctionFailure(path, reason, is_transient(error)))


def _format_refusal(reason: str) -> str:
    return f"Error: {reason[: 2 * SHOWN_CHARS]}"
