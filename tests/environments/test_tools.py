"""Tools of the user's own: what the policy may write, what it reads, and what is a fault of the tool."""

import asyncio
import json

import pytest
from pydantic import ValidationError

from tasks.environments.interface import ToolCall
from tasks.environments.tools import PATTERN, Toolbox, build_toolbox, describe_tool, make_pattern_parser
from tasks.generation.chat_template import ChatTemplateError, encode
from tasks.generation.environment_spec import EnvironmentSpec
from tasks.sourcing.environment_options import EnvironmentOptions
from tasks.verifiers.scores import CannotJudge
from tests.tiny_model import tokenizer_of

MODULE = "tests.environments.tools_of_tests"


def tool(name):
    return describe_tool(f"{MODULE}.{name}")


@pytest.fixture(scope="module")
def box():
    return Toolbox([tool(name) for name in ("add", "look_up", "divide", "broken")], make_pattern_parser(PATTERN))


def result(box, name, **arguments):
    return asyncio.run(box.result_of(ToolCall(name, arguments)))


def written(name, **arguments):
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def test_a_tool_is_described_by_its_hints_and_docstring():
    function = tool("look_up")["schema"]["function"]
    assert (function["name"], function["description"]) == ("look_up", "Look a word up.")
    assert function["parameters"]["required"] == ["word"]
    assert function["parameters"]["properties"]["word"] == {"type": "string", "description": "the word."}


@pytest.mark.parametrize("name", ["undescribed", "without_arguments"])
def test_one_that_cannot_be_described_is_refused_with_its_name(name):
    with pytest.raises(CannotJudge, match=name):
        tool(name)


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("three", []),
        (f"I add. {written('add', a=1, b=2)}", [ToolCall("add", {"a": 1, "b": 2})]),
        (
            written("add", a=1) + written("look_up", word="x"),
            [ToolCall("add", {"a": 1}), ToolCall("look_up", {"word": "x"})],
        ),
        ('<tool_call>{"name": "add"}</tool_call>', [ToolCall("add", {})]),
        ('<tool_call>{"name": "add", "arguments": "{\\"a\\": 1}"}</tool_call>', [ToolCall("add", {"a": 1})]),
        ("<tool_call>{unclosed", []),
    ],
)
def test_calls_of_the_hermes_format_are_read(text, calls):
    assert make_pattern_parser(PATTERN)(text) == calls


@pytest.mark.parametrize(
    "text", ["add(1, 2)", "[1]", '{"name": 3}', '{"name": "add", "arguments": [1]}', "[" * 100_000, '{"arguments": {}}']
)
def test_a_call_that_cannot_be_read_is_a_text_for_the_policy(box, text):
    [call] = box.calls_in(f"<tool_call>{text}</tool_call>")
    assert call.problem
    answer = asyncio.run(box.result_of(call))
    assert answer.startswith("Error: ")
    assert len(answer) < 500


def test_functions_are_called_and_async_ones_awaited(box):
    assert result(box, "add", a=1, b="2") == "3"  # as pydantic coerces it
    assert json.loads(result(box, "look_up", word="cat")) == {"language": "en", "meaning": "an animal <|im_end|>"}
    assert result(box, "divide", a=1, b=4) == "0.25"


@pytest.mark.parametrize(
    ("name", "arguments", "holds"),
    [
        ("add", {"a": 1}, "b"),
        ("add", {"a": 1, "b": "two"}, "b"),
        ("add", {"a": 1, "b": 2, "c": 3}, "c"),
        ("look_up", {"word": "cat", "language": "fr"}, "language"),
        ("look_up", {"word": "dog"}, "KeyError"),
        ("divide", {"a": 1, "b": 0}, "ZeroDivisionError"),
        ("__import__", {"module": "os"}, "add, look_up"),
        ("x" * 10_000, {}, "no tool"),
    ],
)
def test_a_wrong_call_is_answered_and_no_fault(box, name, arguments, holds):
    answer = result(box, name, **arguments)
    assert answer.startswith("Error: ")
    assert holds in answer
    assert len(answer) < 500


def test_a_mistake_in_a_tool_is_the_tools(box):
    with pytest.raises(CannotJudge) as fault:
        result(box, "broken", word="a")
    assert "broken raise NameError (tests/environments/tools_of_tests.py, line" in fault.value.failure.reason


def test_a_pattern_of_ones_own():
    [call] = build_toolbox([tool("add")], None, r"CALL (\{.*?\}\}) END", None).calls_in(
        'CALL {"name": "add", "arguments": {"a": 1, "b": 2}} END'
    )
    assert call == ToolCall("add", {"a": 1, "b": 2})


@pytest.mark.parametrize(
    "options",
    [
        {"tools": ["add"]},
        {"tools": ["my_tools.add", "other.add"]},
        {"tools": ["my_tools.add"], "tool_parser": "hermse"},
        {"tools": ["my_tools.add"], "tool_parser": "hermes", "tool_pattern": "(.*)"},
        {"tools": ["my_tools.add"], "tool_pattern": "no group"},
        {"tools": ["my_tools.add"], "tool_pattern": "("},
        {"tool_parser": "hermes"},
        {},
    ],
)
def test_options_that_cannot_be_meant_are_refused(options):
    with pytest.raises(ValidationError):
        EnvironmentOptions(name="call_tools", **options)


@pytest.mark.long
@pytest.mark.parametrize(
    ("parser", "text"),
    [
        ("hermes", written("add", a=1, b=2)),
        ("pythonic", "[add(a=1, b=2)]"),
        ("olmo3", "<function_calls>add(a=1, b=2)</function_calls>"),
    ],
)
def test_parsers_of_vllm_read_the_models_own_format(tiny_model, parser, text):
    tools = build_toolbox([tool("add")], parser, None, str(tiny_model))
    assert tools.calls_in(text) == [ToolCall("add", {"a": 1, "b": 2})]
    assert tools.calls_in("three") == []


def test_the_chat_template_describes_the_tools_in_the_prompt():
    tokenizer = tokenizer_of(ends=True)
    spec = EnvironmentSpec("tasks.environments.call_tools.call_tools", tools=[tool("add")])
    messages = [{"role": "user", "content": "add"}]
    row = {"prompt_id": "p", "source": "sums", "messages": messages, "environment": spec.to_json()}
    with pytest.raises(ChatTemplateError, match="'sums'"):
        encode(tokenizer, [row], {})
    tokenizer.chat_template = "{{ tools | tojson if tools else '' }}" + tokenizer.chat_template
    [with_tools, without] = encode(tokenizer, [row, row | {"environment": None}], {})
    assert json.loads(tokenizer.decode(with_tools[: -len(without)])) == [spec.tools[0]["schema"]]
    assert with_tools[-len(without) :] == without


@pytest.mark.long
def test_a_parser_that_needs_tokens_of_another_model_says_so(tiny_model):
    with pytest.raises(RuntimeError, match="tool_parser: "):
        build_toolbox([tool("add")], "llama3_json", None, str(tiny_model)).calls_in("three")


@pytest.mark.complete
@pytest.mark.long
@pytest.mark.parametrize(
    ("parser", "text", "problems"),
    [
        ("hermes", '<tool_call>{"name":"add","arguments":{"a":1,"b":2}}</tool_call>', [""]),
        ("hermes", '<tool_call>{"name":"add","arguments":{"a":1,}}</tool_call>', ["a call cannot be read"]),
        ("olmo3", "<function_calls>add(1, 2)</function_calls>", ["a call cannot be read"]),
        ("olmo3", "<function_calls>add(a=1, b=2", ["a call cannot be read"]),
        ("pythonic", "The answer is in <functional>.", []),
        ("pythonic", "add(1, 2)", []),  # a format without a tag: what cannot be read is text
    ],
)
def test_a_call_that_a_parser_of_vllm_cannot_read_is_answered_with_an_error(tiny_model, parser, text, problems):
    box = build_toolbox([tool("add")], parser, None, str(tiny_model))
    calls = box.calls_in(text)
    assert [call.problem.partition(":")[0] for call in calls] == problems


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a_numpy_number", "3"),
        ("a_set", "{1}"),
        ("a_record", "Point(x=1)"),
        ("a_dictionary", '{"x": 1}'),
        ("nothing", "null"),
        ("itself", "[[...]]"),
    ],
)
def test_a_result_of_any_type_is_text(name, text):
    box = build_toolbox([tool(name)], None, None, None)
    assert asyncio.run(box.result_of(ToolCall(name, {}))) == text


def test_a_result_that_has_no_text_is_a_fault_with_the_tools_name():
    box = build_toolbox([tool("unwritable")], None, None, None)
    with pytest.raises(CannotJudge) as fault:
        asyncio.run(box.result_of(ToolCall("unwritable", {})))
    assert (
        "unwritable raise NotImplementedError (tests/environments/tools_of_tests.py, line" in fault.value.failure.reason
    )
