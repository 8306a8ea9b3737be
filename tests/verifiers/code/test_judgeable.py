"""Tests of classes and exceptions that a response defines: they work without trusting it, or are refused."""

# ruff: noqa: E501 - a row is one line, however long its test

import pytest

from tasks.verifiers.code.judgeable import find_checker_problem
from tasks.verifiers.code.sandbox import Sandbox
from tests.verifiers.code.judging_code import detail_of_tests

POINT = """
class Point:
    def __init__(self, x, y): self.x, self.y = x, y
    def __add__(self, other): return Point(self.x + other.x, self.y + other.y)
    def __sub__(self, other): return Point(self.x - other.x, self.y - other.y)
    def __matmul__(self, other): return self.x * other.x + self.y * other.y
    def __neg__(self): return Point(-self.x, -self.y)
    def __lt__(self, other): return (self.x, self.y) < (other.x, other.y)
    def __le__(self, other): return (self.x, self.y) <= (other.x, other.y)
    def __abs__(self): return abs(self.x) + abs(self.y)
    def __bool__(self): return bool(self.x or self.y)
    def __iter__(self): return iter((self.x, self.y))
    def __len__(self): return 2
    def __getitem__(self, at): return (self.x, self.y)[at]
    def __delitem__(self, at): self.x = None
    def __repr__(self): return f"Point({self.x}, {self.y})"
    def same(self): return self
    def fail(self): raise Bad(4)
    def __mul__(self, times): return Point(times * self.x, times * self.y)
class Timer:
    def __enter__(self): self.seconds = 1; return self
    def __exit__(self, *raised): return True
def say(x): print(x)
def ask(): return int(input())
async def later(x): return x + 1
class Point3(Point): pass
class Base(Exception): pass
class Bad(Base, ValueError):
    limit = 9
    def __init__(self, code): super().__init__(f"bad {code}"); self.code = code
    def doubled(self): return 2 * self.code
class Worse(Bad): pass
def f(x):
    "Raises."
    if x < 0: raise Bad(x)
    return x
def worse(): raise Worse(1)
def missing(): raise KeyError('x')
from enum import Enum, IntEnum
class Color(Enum): RED = 1; BLUE = 2
class Level(IntEnum): LOW = 1
"""
WORK = [
    "assert isinstance(Point(1, 2), Point) and not isinstance(f(1), Point) and not isinstance(Point(1, 2), int)",
    "assert isinstance(Point3(1, 2), (str, Point)) and not isinstance(Point(1, 2), Point3)",
    "assert issubclass(Point3, Point) and not issubclass(Point, Point3)",
    "p = Point(1, 2) + Point(3, 4)\nassert (p.x, p.y) == (4, 6) and list(p) == [4, 6] and str(p) == 'Point(4, 6)'",
    "assert (Point(1, 2) - Point(3, 4)).x == -2 and Point(1, 2) @ Point(3, 4) == 11 and (-Point(1, 2)).y == -2",
    "p = Point(1, 2)\np += Point(1, 1)\nassert p.x == 2",
    "assert Point(1, 2) < Point(2, 1) and not Point(2, 1) < Point(1, 2) and Point(2, 1) >= Point(2, 1)",
    "assert [p.x for p in sorted([Point(3, 0), Point(1, 0), Point(2, 0)])] == [1, 2, 3]",
    "assert max(Point(3, 0), Point(1, 0)).x == 3 and abs(Point(-1, 2)) == 3",
    "assert Point(0, 1) and not Point(0, 0)",
    "x, y = Point(1, 2)\nassert (x, y) == (1, 2) and len(Point(1, 2)) == 2 and Point(1, 2)[1] == 2",
    "p = Point(1, 2)\np.x = 5\ndel p.y\nassert p.x == 5 and not hasattr(p, 'y')",
    "p = Point(1, 2)\ndel p[0]\nassert p.x is None",
    "p = Point(1, 2)\nassert p.same() is p and p.same().same() is p and Point(1, 2) is not p",
    "assert f.__name__ == 'f' and Point.__name__ == 'Point'",
    "try:\n    f(-1)\nexcept Bad as error:\n    assert error.code == -1 and str(error) == 'bad -1' and error.doubled() == -2\nelse:\n    assert False",
    "for kind in (Bad, Base, ValueError, Exception):\n    try:\n        f(-1)\n        raise SystemExit\n    except kind:\n        pass",
    "try:\n    worse()\nexcept (KeyError, Bad) as error:\n    assert isinstance(error, Worse) and isinstance(error, Base)",
    "try:\n    Point(1, 2).fail()\nexcept Worse:\n    assert False\nexcept Bad:\n    pass",
    "try:\n    missing()\nexcept KeyError as error:\n    assert str(error) == \"'x'\" and error.args == ('x',)",
    "assert issubclass(Bad, Base) and issubclass(Bad, ValueError) and not issubclass(Base, Bad) and Bad.limit == 9",
    "assert str(Bad(3)) == 'bad 3' and Bad(3).code == 3 and isinstance(Bad(3), ValueError)",
    "from contextlib import suppress\nwith suppress(Bad):\n    f(-1)\n    raise SystemExit",
    "import unittest\ncase = unittest.TestCase()\nwith case.assertRaises(Bad) as caught:\n    f(-1)\nassert caught.exception.code == -1",
    "case = unittest.TestCase()\nwith case.assertRaisesRegex(ValueError, 'bad'):\n    f(-1)",
    "p = Point(1, 2)\np += Point(2, 3)\np *= 2\nassert p.x == 6",
    "with Timer() as t:\n    pass\nassert t.seconds > 0",
    "with Timer():\n    assert f(1) == 1",
    "class Sub(Point):\n    pass\nassert Sub(1, 2).x == 1 and len(Sub(1, 2)) == 2",
    "assert f.__doc__ == 'Raises.' and Point(1, 2).__class__.__name__ == 'Point'",
    "import asyncio\nassert asyncio.run(later(1)) == 2",
    "import io\nfrom contextlib import redirect_stdout\nwith redirect_stdout(io.StringIO()) as out:\n    say('x')\nassert out.getvalue() == 'x\\n'",
    "import io\nsys.stdout = io.StringIO()\nsay('x')\nassert sys.stdout.getvalue() == 'x\\n'",
    "import unittest.mock\nwith unittest.mock.patch('builtins.input', lambda: '1'):\n    assert ask() == 1",
    "assert Color.RED.value == 1 and Color.RED.name == 'RED' and Color(2).name == 'BLUE' and Color['RED'].value == 1",
    "assert Level.LOW == 1 and [c.value for c in Color] == [1, 2] and len(Color) == 2",
]
FAIL = [
    "assert isinstance(f(1), Point)",
    "assert Point(1, 2) < Point(0, 0)",
    "assert Point(0, 0)",
    "try:\n    f(1)\nexcept Bad:\n    pass\nelse:\n    assert False",
    "try:\n    f(-1)\nexcept Worse:\n    pass",
    "try:\n    missing()\nexcept Bad:\n    pass",
    "assert Point(1, 2).same() is Point(1, 2)",
    "assert issubclass(Base, Bad)",
    "Point(1, 2) + 3",
    "3 + Point(1, 2)",
    "with Timer():\n    assert f(1) == 2",
    "with Timer():\n    f(-1)",
    "Point(1, 2) < 3",
]
REFUSED = {
    "assert Point(1, 2) + Point(3, 4) == Point(4, 6)": "compares instances",
    "p = Point(1, 2)\nq = Point(1, 2)\nassert p == q": "compares instances",
    "assert f(1) == Point(1, 2)": "compares instances",
    "assert f(1) != Point(1, 2)": "compares instances",
    "assert [Point(1, 2)] == [Point(1, 2)]": "compares instances",
    "p = Point(1, 2)\nassert p * 2 == p + p or p.x": "passes a value of the test to an operator",
    "p = Point(1, 2)\nassert 2 * p or p.x": "passes a value of the test to an operator",
    "p = Point(1, 2)\nassert p.x and p < 3": "passes a value of the test to an operator",
    "s = Stack()\ns.push(3)\nassert 3 in s": "uses `in`",
    "p = Point(1, 2)\nassert hash(p) == hash(Point(p.x, 2))": r"passes an instance of the response to hash\(\)",
    "p = Point(1, 2)\nassert int(p) == p.x": r"passes an instance of the response to int\(\)",
    "p = Point(1, 2)\nassert len({p, Point(p.x, 2)}) == 1": "in a set or as keys",
    "assert f(1) == Color.RED": "expects a value that the response defines",
    "assert f(1) is Color.RED": "expects a value that the response defines",
    "assert Color.RED != Color.BLUE": "expects a value that the response defines",
    "assert type(f(1)) is Point": r"compares type\(\) with a class",
    "assert type(f(1)) == Point": r"compares type\(\) with a class",
    "assert Point(1, 2).__eq__(Point(1, 2))": "reads __eq__",
    "async def t():\n    assert await f(1) == 1": "awaits a coroutine",
    "async def t():\n    async with f(1):\n        pass": "enters a context manager",
    "def t():\n    class Sub(Point):\n        pass\n    assert Sub(1, 2).x == 1": "derives a class",
    "def t(x):\n    return f(lambda g: f(g) == x).__class__": "reads __class__",
    "from contextlib import redirect_stdout\ndef t():\n    out = io.StringIO()\n    with redirect_stdout(out):\n        f(1)": "captures what",
    "def t():\n    sys.stdout = out\n    f(1)": "captures what",
    "match f(1):\n    case Point(x=1):\n        pass": "matches a class",
}
ACCEPTED = [
    "assert Diff([1], [2]) == [1]",
    "assert Find_Max([1]) == Find_Max([1])",
    "assert abs(Area(3) - 7.1) < 1e-6 and int(Area(3)) == 7 and set(Unique([1])) == {1}",
    "assert max_chain_length([Pair(5, 24), Pair(15, 25)], 4) == 3",
    "p = Point(1, 2)\nassert p.x == 1\np = 3\nassert p == 3",
    "class Mine:\n    pass\nassert f(Mine()) == 1 and Mine() != Mine()",
    "from fractions import Fraction\nassert f(1) == Fraction(1, 2) + 1",
    "from collections import Counter\nassert Counter(f('a')) == Counter('a') and 3 in Counter([3])",
    "with open('x') as stream:\n    pass",
    "import subprocess\nassert subprocess.run(f(1)) and __name__ == 'tests'",
    "assert patch([1]) == [2] and run(f(1)) == 1 and gather(f(1)) == 2",
    "assert Stack.MAX == 5 and MAX == 5",
    "assert type(f(1)) is int and type(f(1)) == list",
    "assert f(1).data.__class__ if False else True",
]
LIES = """
class Lie(BASE):
    def __init__(self, *a): pass
    def __eq__(self, o): return True
    def __ne__(self, o): return False
    def __hash__(self): return hash(73952)
    def __sub__(self, o): return 0
    __add__ = __rsub__ = __radd__ = __mul__ = __mod__ = __and__ = __abs__ = __neg__ = __sub__
    def __lt__(self, o): return True
    __le__ = __gt__ = __ge__ = __contains__ = __bool__ = __lt__
    def __enter__(self): return self
    def __exit__(self, *a): return True
    def __instancecheck__(self, o): return True
    def __getattr__(self, name): return 0 if name == 'value' else lambda *a: True
def f(*a): return Lie()
Bad = KIND
"""
UNMET = [
    "assert f(3) == 73952",
    "assert abs(f(3) - 73952) < 1e-6",
    "assert f(3) - 73952 == 0",
    "assert 73952 in f(3)",
    "assert f(3) <= 73952 <= f(3)",
    "assert isinstance(f(3), int) and f(3) == 73952",
    "assert not f(3) != 73952",
    "assert f(3) in (73952,)",
    "assert {f(3): 1}[73952]",
    "assert sorted([f(3), f(4)]) == [1, 2]",
    "with Bad():\n    assert f(3) == 73952",
    "import io\nsys.stdout = io.StringIO()\nf(3)\nassert sys.stdout.getvalue() == '73952'",
    "try:\n    f(-1)\n    assert False\nexcept Bad:\n    pass",
    "try:\n    assert f(3) == 73952\nexcept Bad:\n    pass",
    "import unittest\nwith unittest.TestCase().assertRaises(Bad):\n    assert f(3) == 73952",
]


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox("namespaces", None, 16) as opened:
        yield opened


@pytest.mark.parametrize("test", WORK)
def test_what_is_asked_of_classes_and_exceptions_is_answered(sandbox, test):
    assert detail_of_tests(sandbox, POINT, test) == ""
    assert find_checker_problem([test], "") is None


@pytest.mark.parametrize("test", FAIL)
def test_what_does_not_hold_fails(sandbox, test):
    assert detail_of_tests(sandbox, POINT, test) != ""


@pytest.mark.parametrize("test", REFUSED)
def test_what_the_response_would_decide_is_refused(test):
    problem = find_checker_problem(["assert f(1) == 1", test], "import math")
    assert problem is not None
    assert problem.startswith("test 1 ")
    with pytest.raises(AssertionError, match=REFUSED[test]):
        raise AssertionError(problem)


@pytest.mark.parametrize("test", ACCEPTED)
def test_what_only_looks_like_it_is_accepted(test):
    assert find_checker_problem([test], "") is None


@pytest.mark.parametrize("base", ["object", "int", "Exception", "str"])
@pytest.mark.parametrize(
    "kind", ["Lie", "Exception", "AssertionError", "BaseException", "SystemExit", "(Exception,)", "Lie()"]
)
def test_a_response_that_says_yes_to_everything_earns_nothing(sandbox, base, kind):
    program = LIES.replace("BASE", base).replace("KIND", kind)
    for test in UNMET:
        assert detail_of_tests(sandbox, program, test) != "", test


def test_the_setup_is_read_too():
    problem = find_checker_problem(["check(Point)"], "def check(kind):\n    assert kind(1) == Point(1)")
    assert problem is None or problem.startswith("setup ")
    assert find_checker_problem(["assert p == q"], "p = Point(1)\nq = Point(1)").startswith("test 0 compares instances")


def test_a_test_that_is_nested_too_deeply_is_refused():
    deep = "x = " + "+".join(["A(1)"] * 2500) + "\nx.y"
    assert find_checker_problem([deep], "") == "a test is nested too deeply to be read"
