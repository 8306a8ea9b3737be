"""Tests that only define what they test run as pytest, `unittest` or Python itself would run them."""

# ruff: noqa: E501 - a row is one line, however long its test

import pytest

from tasks.verifiers.code.harness import TestsNothingError, make_runnable
from tasks.verifiers.code.nothing import remove_free_tests
from tasks.verifiers.code.sandbox import Sandbox
from tests.verifiers.code.judging_code import detail_of_tests

RUN = {
    "pytest functions": "def test_a():\n    assert f(1) == 2\ndef test_b():\n    x = 2\n    assert f(x) == 3",
    "a class of pytest": "class TestF:\n    def setup_method(self): self.x = 1\n    def test_a(self):\n        assert f(self.x) == 2",
    "unittest": "import unittest\nclass TestF(unittest.TestCase):\n    def test_a(self):\n        self.assertEqual(f(1), 2)",
    "unittest with fixtures": "from unittest import TestCase\nclass F(TestCase):\n    @classmethod\n    def setUpClass(cls): cls.y = 2\n    def setUp(self): self.x = 1\n    def test_a(self):\n        self.assertEqual(f(self.x), self.y)",
    "unittest that is run": "import unittest\nclass TestF(unittest.TestCase):\n    def test_a(self):\n        self.assertEqual(f(1), 2)\nunittest.main(argv=['x'], exit=False)",
    "the main program": "import unittest\nclass TestF(unittest.TestCase):\n    def test_a(self):\n        with self.subTest(1):\n            self.assertEqual(f(1), 2)\nif __name__ == '__main__':\n    unittest.main()",
    "code of the main program": "if '__main__' == __name__:\n    assert f(1) == 2",
    "a comparison": "f(1) == 2",
    "a pair": "assert (f(1) == 2, 'differs')",
    "a coroutine": "async def test_a():\n    assert f(1) == 2",
    "a check": "def check(candidate):\n    assert candidate(1) == 2\ncheck(f)",
    "a function that is called": "def test_a(x=1):\n    assert f(x) == 2\ntest_a()",
}


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox("namespaces", None, 16) as opened:
        yield opened


@pytest.mark.parametrize("name", RUN)
def test_a_right_program_passes_a_wrong_one_fails_and_none_too(sandbox, name):
    assert detail_of_tests(sandbox, "def f(x): return x + 1", RUN[name]) == ""
    assert detail_of_tests(sandbox, "def f(x): return x + 5", RUN[name]) != ""
    assert detail_of_tests(sandbox, "x = 1", RUN[name]) != ""


@pytest.mark.parametrize(
    ("test", "reason"),
    [
        ("assert (f(1) == 2, 3)", "asserts a tuple, which is always true"),
        (
            "def test_a(fixture):\n    assert f(fixture) == 2",
            "defines test_a, which takes arguments that nothing provides",
        ),
        (
            "class TestF:\n    def test_a(self, x):\n        assert f(x) == 2",
            "defines TestF.test_a, which takes arguments",
        ),
    ],
)
def test_what_cannot_fail_or_be_run_is_named(test, reason):
    with pytest.raises(TestsNothingError, match=reason):
        make_runnable("", [test])


def test_assertions_stay_as_they_are():
    tests = ["assert f(1)   ==  2  # as written", "import math\nassert f(math.pi) == 4"]
    assert make_runnable("import os", tests) == ("import os", tests)


@pytest.mark.parametrize(
    ("tests", "setup", "nothing"),
    [
        (["assert f(1) == 2"], "", False),
        (["assert len([1]) == 1"], "", True),
        (["def check(candidate):\n    assert candidate(1) == 2"], "", True),
        (["check(f)"], "def check(candidate):\n    assert candidate(1) == 2", False),
        (["try:\n    f(1)\nexcept NameError:\n    pass"], "", True),
        (["for x in []:\n    assert f(x)"], "", True),
        (["for x in [1]:\n    assert f(x)"], "", False),
        ([""], "", True),
    ],
)
def test_tests_that_pass_without_a_response_are_known(tests, setup, nothing):
    left = remove_free_tests({"tests": tests, "setup": setup})
    assert left == {"tests": [] if nothing else tests, "setup": setup}


def test_a_test_that_needs_no_response_pays_nothing_beside_others():
    tests = ["x = 1", "assert f(x) == 2", "assert True", "assert f(2) == 3", "assert len([x]) == 1"]
    joined = ["\n".join(tests[:2]), "\n".join(tests[2:])]
    assert remove_free_tests({"tests": tests}) == {"tests": joined}


def test_cases_of_standard_input_need_a_program_whatever_they_expect():
    cases = {"cases": [{"input": "", "output": ""}]}
    assert remove_free_tests(cases) == cases
