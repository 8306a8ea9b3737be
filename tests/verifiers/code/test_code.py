"""`code`: what is read, what is scored, and how values cross between the two processes."""

import asyncio
import math
import socket
from collections import namedtuple
from contextlib import ExitStack
from datetime import date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from functools import cache

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from tasks.verifiers import Call, GroundTruthError, Score, check_ground_truth, code
from tasks.verifiers.code.config import CodeConfig
from tasks.verifiers.code.inside.wire import Peer, WireError
from tasks.verifiers.code.programs import Programs
from tasks.verifiers.scores import CannotJudge
from tests.examples import examples

ADD = {"tests": ["assert add(1, 2) == 3", "assert add(0, 0) == 0", "assert add(-1, 5) == 4", "assert add(2, 2) == 4"]}
ECHO = {"cases": [{"input": "a\n", "output": "a\n"}, {"input": "b\n", "output": "b\n"}]}
RIGHT = "Here it is:\n```python\ndef add(a, b):\n    return a + b\n```\n"
HALF_RIGHT = "```python\ndef add(a, b):\n    return a * b + (a == 1)\n```"
WORDS = ["def", "f(x):", "return", "[", "]", "1", "\n", "x", ".", "(", ")", ";", "'", "=", ":", "yield"]
SLOW = settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def judge():
    """Score a response, by the default limits or by others."""
    with ExitStack() as stack:

        @cache
        def programs(**limits):
            opened = Programs(CodeConfig(**limits), 1)
            stack.callback(opened.close)
            return opened

        yield lambda response, ground_truth, **limits: asyncio.run(programs(**limits).judge(response, ground_truth))


def test_a_response_scores_the_proportion_of_tests_that_pass(judge):
    assert judge(RIGHT, ADD) == Score(1.0, True, "4 of 4 tests passed")
    partly = judge(HALF_RIGHT, ADD)
    assert (partly.value, partly.passed) == (0.75, False)
    assert partly.detail == "3 of 4 tests passed; test 3: AssertionError"


def test_all_or_nothing_and_a_least_proportion_pay_nothing_for_less():
    all_or_nothing = CodeConfig(reward="all_or_nothing")
    assert (all_or_nothing.score(0.75), all_or_nothing.score(1.0)) == (0, 1)
    assert CodeConfig(min_proportion=0.75).score(0.75) == 0.75
    assert CodeConfig(min_proportion=0.76).score(0.75) == 0


@pytest.mark.long
def test_a_test_that_hangs_costs_that_test_only(judge):
    hangs = "```python\ndef add(a, b):\n    while a == 0: pass\n    return a + b\n```"
    score = judge(hangs, ADD, test_seconds=0.5, total_seconds=5)
    assert (score.value, score.detail) == (0.75, "3 of 4 tests passed; test 2: time limit of the test")


def test_a_test_that_ends_the_process_costs_that_test_only(judge):
    score = judge("```python\nimport os\ndef add(a, b): return a + b if a else os._exit(0)\n```", ADD)
    assert score.value == 0.75


@pytest.mark.complete
@pytest.mark.long
def test_the_total_time_bounds_all_tests(judge):
    hangs = "```python\ndef add(a, b):\n    while True: pass\n```"
    score = judge(hangs, {"tests": ADD["tests"] * 50}, test_seconds=0.3, total_seconds=0.6)
    assert (score.value, score.error) == (0.0, None)


@pytest.mark.complete
@pytest.mark.long
@pytest.mark.parametrize("ground_truth", [ADD["tests"], [{"input": "", "output": "1"}]], ids=["tests", "cases"])
def test_what_dies_while_it_is_loaded_is_charged_for_that_each_time(judge, ground_truth):
    dies = "```python\nimport os\nfor _ in range(3_000_000): pass\nos._exit(1)\n```"
    kind = "tests" if ground_truth is ADD["tests"] else "cases"
    score = judge(dies, {kind: ground_truth * 50}, test_seconds=0.4, total_seconds=0.5)
    assert (score.value, score.timed_out, score.error) == (0.0, True, None)


@pytest.mark.parametrize(
    ("response", "detail"),
    [
        ("", "no code block"),
        ("```java\nint x;\n```", "no code block"),
        ("```python\n" + "#" * 200_001 + "\n```", "a program of more than 200000 characters"),
        ("I cannot do that.", "0 of 4 tests passed; test 1: SyntaxError"),
        (
            "```python\ndef plus(a, b): return a + b\n```",
            "0 of 4 tests passed; test 1: NameError: the response defines no",
        ),
    ],
)
def test_a_response_without_a_solution_scores_0_and_says_why(judge, response, detail):
    score = judge(response, ADD)
    assert (score.value, score.error) == (0.0, None)
    assert score.detail.startswith(detail)


def test_a_test_that_needs_a_missing_package_is_an_error_not_a_0(judge):
    with pytest.raises(CannotJudge, match=r"MissingModuleError: .*networkx"):
        judge(RIGHT, {"tests": ["assert nx.Graph(add(1, 1)) == 3"]})
    with pytest.raises(CannotJudge, match=r"ModuleNotFoundError: .*networkx"):
        judge(RIGHT, {"setup": "import networkx", "tests": ["assert add(1, 1) == 2"]})


@pytest.mark.long
def test_a_pool_and_its_server_agree_with_the_programs(judge, pool):
    calls = [Call("code", response, truth) for response in (RIGHT, HALF_RIGHT, "") for truth in (ADD, ECHO)]
    assert pool.score_many(calls) == [judge(call.response, call.ground_truth) for call in calls]


@pytest.mark.long
def test_one_thousand_tests_are_run(judge):
    score = judge(RIGHT, {"tests": [f"assert add({n}, 1) == {n + 1}" for n in range(code.MAX_TESTS)]})
    assert score.passed


@pytest.mark.parametrize(
    ("ground_truth", "reason"),
    [
        (None, "expected an object with either 'tests' or 'cases'"),
        ({}, "expected an object with either 'tests' or 'cases'"),
        ({"tests": ["pass"], "cases": []}, "expected an object with either 'tests' or 'cases'"),
        ({"tests": []}, "a list of 1 to 1000"),
        ({"tests": "assert f()"}, "a list of 1 to 1000"),
        ({"tests": ["assert f() =="]}, "test 0 is not Python"),
        ({"tests": ["x\0"]}, "test 0 is not Python"),
        ({"tests": [7]}, "test 0 is not text"),
        ({"tests": ["pass"], "setup": 7}, "setup is not text"),
        ({"tests": ["pass"], "setUp": ""}, r"unknown keys \['setUp'\]"),
        ({"cases": [{"input": ""}]}, "a case must have 'input' and 'output'"),
        ({"cases": [{"input": "", "output": 7}]}, "input and output of a case must be text"),
        ({"cases": [], "setup": ""}, r"unknown keys \['setup'\]"),
    ],
)
def test_malformed_ground_truths_are_refused(ground_truth, reason):
    with pytest.raises(GroundTruthError, match=reason):
        code.check_ground_truth(ground_truth)
    assert check_ground_truth("code", ground_truth).startswith("malformed ground truth: ")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["tests", "cases", "setup", "input", "output", "x"]), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(json_values)
def test_any_ground_truth_is_accepted_or_refused_by_name(ground_truth):
    reason = check_ground_truth("code", ground_truth)
    assert reason is None or reason.startswith("malformed ground truth: ")


def test_options_that_contradict_each_other_are_refused():
    with pytest.raises(ValidationError, match=r"min_proportion.*reward: proportion"):
        CodeConfig(reward="all_or_nothing", min_proportion=0.5)
    with pytest.raises(ValidationError, match=r"test_seconds.*total_seconds"):
        CodeConfig(test_seconds=5, total_seconds=4)


hashable = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=9)
    | st.binary(max_size=9)
    | st.complex_numbers(allow_nan=False)
    | st.fractions()
    | st.decimals(allow_nan=False)
    | st.dates()
    | st.times()
    | st.datetimes()
    | st.timedeltas()
    | st.sampled_from([int, str, len, sorted]),
    lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3),
    max_leaves=8,
)
plain = st.recursive(
    hashable,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(hashable, inner, max_size=4)
        | st.sets(hashable, max_size=4)
        | st.lists(inner, max_size=3).map(tuple)
    ),
    max_leaves=20,
)


@pytest.fixture(scope="module")
def peers():
    """Both ends of a wire."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield Peer(ours, lambda request: request), Peer(theirs, lambda request: request)


@pytest.mark.long
@given(plain)
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_plain_data_crosses_the_wire_unchanged(peers, value):
    near, far = peers
    near.send({"value": near.encode(value)})
    arrived = far.decode(far.receive()["value"])
    assert arrived == value
    assert shape(arrived) == shape(value)


def shape(value):
    """The types of a value and its parts, in an order that does not depend on hashes."""
    if isinstance(value, dict):
        return [dict, sorted(str((shape(key), shape(item))) for key, item in value.items())]
    if isinstance(value, set | frozenset):
        return [type(value), sorted(str(shape(item)) for item in value)]
    return [type(value), [shape(item) for item in value]] if isinstance(value, list | tuple) else type(value)


@pytest.mark.parametrize(
    "value",
    [Decimal("1.10"), Fraction(1, 3), date(2024, 2, 29), datetime(2024, 1, 1, 5), timedelta(microseconds=1), math.inf],
)
def test_subclasses_cross_as_what_they_extend(peers, value):
    near, far = peers
    lying = type("Lying", (type(value),), {"__eq__": lambda self, other: True, "__hash__": None})
    if isinstance(value, date | timedelta):
        arrived = far.decode(near.encode(value))
    else:
        arrived = far.decode(near.encode(lying(value)))
    assert arrived == value
    assert type(arrived) is type(value)


def test_a_named_tuple_crosses_with_its_fields(peers):
    near, far = peers
    arrived = far.decode(near.encode(namedtuple("Point", "x y")(1, [2])))
    assert (arrived, arrived.x, arrived.y, type(arrived).__name__) == ((1, [2]), 1, [2], "Point")
    forged = {"values": [[0]], "nodes": [["named", "P", ["__class__"], [1]]]}
    with pytest.raises(WireError, match="Field names cannot start with an underscore"):
        far.decode(forged)


def test_a_message_holds_no_integer_that_would_take_long_to_read(peers):
    near, far = peers
    near.send({"value": near.encode(10**5000)})
    assert far.decode(far.receive()["value"]) == 10**5000
    near._stream.write(b'{"value": ' + b"1" * 5000 + b"}\n")
    near._stream.flush()
    with pytest.raises(WireError):
        far.receive()


def test_integers_have_as_many_digits_as_they_need(judge):
    power = "```python\ndef f(n): return 10**n\ndef g(n): return len(str(10**n))\nprint(f(20_000))\n```"
    tests = ["assert g(9_000) == 9_001", "assert len(str(f(5_000))) == 5_001", f"assert f(6_000) == 1{'0' * 6_000}"]
    assert judge(power, {"tests": tests}).detail == "3 of 3 tests passed"
    assert judge(power, {"cases": [{"input": "", "output": "1" + "0" * 20_000}]}).passed


def test_tests_read_the_fields_of_named_tuples(judge):
    program = "```python\nfrom typing import NamedTuple\nclass P(NamedTuple):\n    x: int\n    y: int = 2\n```"
    tests = ["assert P(1).x == 1", "assert P(1) == (1, 2)", "assert P(3)._asdict() == {'x': 3, 'y': 2}"]
    assert judge(program, {"tests": tests}).detail == "3 of 3 tests passed"


@pytest.mark.complete
@pytest.mark.long
@SLOW
@given(st.one_of(st.text(max_size=80), st.lists(st.sampled_from(WORDS), max_size=25).map(" ".join)))
def test_random_programs_are_judged_and_earn_nothing(judge, text):
    for ground_truth in ({"tests": ["assert f(3) == 73952"]}, {"cases": [{"input": "3", "output": "73952"}]}):
        score = judge(f"```python\n{text}\n```", ground_truth)
        assert (score.value, score.error) == (0.0, None)
