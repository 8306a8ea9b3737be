"""Parses the tests of a programming task from the formats of published datasets into the verifier's two formats.

| format | used by |
|---|---|
| a list of assertions | MBPP (`test_list`), AceCoder (`test_cases`), `code` rows of the Dolci mixtures |
| a list of `{input, output}` | SYNTHETIC-1, `code_stdio` rows of the Dolci mixtures |
| `{inputs, outputs}` | APPS, TACO, SYNTHETIC-2 and code-r1, standard input and output |
| `{inputs, outputs, fn_name}` | APPS, TACO and SYNTHETIC-2, a function that is called |
| `{functional}` | code-r1, a program that runs after the response |
| the text of a module of pytest functions | KodCode (`test`) |

The value may also be JSON text, the only item of a list, or an object with the tests under the key `test_cases`.
"""

from __future__ import annotations

import ast
from typing import Any

from tasks.sourcing.values import UnusableError, parse_structure

SOLUTION = "solution"
"""The module that KodCode's tests import the response from."""


def read_tests(value: Any, setup: Any = None, given: Any = None) -> dict[str, Any]:
    """Return the ground truth for the verifier `code`, from tests in any of the formats above.

    Args:
        value: the value of the row's tests column.
        setup: code that runs before the assertions: text, a list of lines, or None.
        given: code that runs before the response, in the same formats as `setup`.

    Raises:
        UnusableError: the value contains no tests, or its format is none of the above.
    """
    truth = _parse_tests(value, setup)
    return truth | {"given": _setup(given)} if given and "tests" in truth else truth


def _parse_tests(value: Any, setup: Any) -> dict[str, Any]:
    tests = parse_structure(value)
    if isinstance(tests, list) and len(tests) == 1:
        inner = parse_structure(tests[0])
        tests = inner if isinstance(inner, list) or (isinstance(inner, dict) and "inputs" in inner) else tests
    if isinstance(tests, str) and "def test" in tests:
        return _convert_pytest(tests, _setup(setup))
    if isinstance(tests, dict):
        tests = parse_structure(tests.get("test_cases", tests))
    if isinstance(tests, dict):
        tests = [tests["functional"]] if isinstance(tests.get("functional"), str) else _make_pairs(tests)
    if not isinstance(tests, list) or not tests:
        raise UnusableError("code without tests: not a list with at least one", value)
    if all(isinstance(test, str) and test.strip() for test in tests):
        return {"tests": tests, "setup": _setup(setup)}
    tests = [parse_structure(test) for test in tests]
    if all(isinstance(test, dict) and {"input", "output"} <= test.keys() for test in tests):
        names = {test.get("fn_name") for test in tests}
        if len(names) == 1 and None not in names:
            return _make_calls(names.pop(), tests, _setup(setup))
        return {"cases": [{side: _join_lines(test[side]) for side in ("input", "output")} for test in tests]}
    raise UnusableError("tests are neither all assertions nor all {input, output} pairs of text", value)


def _setup(setup: Any) -> str:
    if isinstance(setup, list) and all(isinstance(line, str) for line in setup):
        return "\n".join(setup)
    if setup is not None and not isinstance(setup, str):
        raise UnusableError("the setup code is not text", setup)
    return setup or ""


def _make_pairs(tests: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the test cases of APPS's object of parallel lists."""
    inputs, outputs = tests.get("inputs"), tests.get("outputs")
    if not isinstance(inputs, list) or not isinstance(outputs, list):
        raise UnusableError("tests are an object without the lists inputs and outputs", tests)
    if len(inputs) != len(outputs):
        reason = f"{len(inputs)} inputs but {len(outputs)} outputs"
        raise UnusableError(reason, tests, "as many inputs as outputs are needed")
    named = {"fn_name": tests["fn_name"]} if tests.get("fn_name") else {}
    return [{"input": one, "output": other} | named for one, other in zip(inputs, outputs, strict=True)]


def _make_calls(name: Any, tests: list[dict[str, Any]], setup: str) -> dict[str, Any]:
    """Return assertions on calls of the function `name`, whose inputs are lists of arguments.

    An output may be wrapped in a list of one. Since the two cases cannot be told apart, both values are accepted, as in
    APPS's checker.
    """
    if not isinstance(name, str) or not name.isidentifier():
        raise UnusableError("fn_name is not the name of a function", name)
    if not all(isinstance(test["input"], list) for test in tests):
        raise UnusableError("the inputs of a function are not lists of arguments", tests)
    asserted = []
    for test in tests:
        arguments, output = ", ".join(map(repr, test["input"])), test["output"]
        wanted = (
            f"in ({output!r}, {output[0]!r})" if isinstance(output, list) and len(output) == 1 else f"== {output!r}"
        )
        asserted.append(f"assert {name}({arguments}) {wanted}")
    return {"tests": asserted, "setup": setup}


def _join_lines(side: Any) -> str:
    """Return the text that a program reads or prints. A list contains its lines."""
    if isinstance(side, list) and all(isinstance(line, str) for line in side):
        return "\n".join(side)
    if not isinstance(side, str):
        raise UnusableError("an input or output is neither text nor a list of lines", side)
    return side


def _convert_pytest(text: str, setup: str) -> dict[str, Any]:
    """Turn the body of each pytest function into a test, and all other code into setup."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise UnusableError(f"the tests are not Python: {error}", text, "the tests are not Python") from None
    tests, before = [], [setup] if setup else []
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module == SOLUTION:
            continue
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test"):
            if node.args.args or node.decorator_list:
                raise UnusableError("a pytest function with fixtures or decorators", ast.unparse(node))
            tests.append("\n".join(map(ast.unparse, node.body)))
        else:
            before.append(ast.unparse(node))
    if any(_has_pytest(ast.parse(code)) for code in (*tests, *before)):
        raise UnusableError("tests that need pytest itself, which no sandbox has", text)
    if not tests:
        raise UnusableError("code without tests: not a list with at least one", text)
    return {"tests": tests, "setup": "\n".join(before)}


def _has_pytest(tree: ast.AST) -> bool:
    return any(isinstance(node, ast.Name) and node.id == "pytest" for node in ast.walk(tree))
