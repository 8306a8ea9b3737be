"""Tests that are split along values: a right program passes whatever it is made of, and nothing that decides crosses."""

# ruff: noqa: E501 - a row is one line, however long its test

import ast

import pytest

from tasks.verifiers.code.prepared import prepare
from tasks.verifiers.code.sandbox import Sandbox
from tests.verifiers.code.judging_code import detail_of_tests, score_on, verdicts_on

NODES = """
class Node:
    def __init__(self, value, after=None):
        self.value, self.after = value, after
def made(values):
    first = None
    for value in reversed(values): first = Node(value, first)
    return first
def listed(node):
    found = []
    while node: found.append(node.value); node = node.after
    return found
def same(one, other): return listed(one) == listed(other)
"""
TREE = "class Tree:\n    def __init__(self, value, left=None, right=None):\n        self.value, self.left, self.right = value, left, right"
REVERSE = "def f(node):\n    before = None\n    while node: node.after, before, node = before, node, node.after\n    return before"
OWN_NODES = "class Node:\n    def __init__(self, value, after=None): self.value, self.after = value, after\ndef f(node):\n    before = None\n    while node: before, node = Node(node.value, before), node.after\n    return before"
DEPTH = "def f(tree): return 0 if tree is None else 1 + max(f(tree.left), f(tree.right))"
ECHO, DEEP, SHALLOW = (
    "def f(x): return x",
    "import copy\ndef f(x): return copy.deepcopy(x)",
    "def f(x): return x.copy()",
)
EYE = "import numpy as np\ndef f(n): return np.eye(n)"
STACK = "class Stack:\n    def __init__(self): self.items = []\n    def push(self, x): self.items.append(x)\n    def pop(self): return self.items.pop()\n    def __len__(self): return len(self.items)"
COUNT = "count = 0\ndef inc(n=1):\n    global count\n    count += n"

RIGHT = [
    # What the setup makes, and what the response makes of it.
    (REVERSE, "assert listed(f(made([1, 2, 3]))) == [3, 2, 1]", NODES),
    (
        REVERSE,
        "first = made([1, 2])\nback = f(first)\nassert listed(back) == [2, 1] and back.after.value == 1 and first.after is None",
        NODES,
    ),
    (OWN_NODES, "assert same(f(made([1, 2, 3])), made([3, 2, 1])) and not same(f(made([1, 2])), made([1, 2]))", NODES),
    (REVERSE, "for values in ([1, 2], [], [3]):\n    assert listed(f(made(values))) == values[::-1]", NODES),
    (
        REVERSE,
        "def test_it():\n    back = f(made(list(range(5_000))))\n    assert listed(back)[:2] == [4999, 4998]",
        NODES,
    ),
    (DEPTH, "assert f(Tree(1, Tree(2, Tree(3)))) == 3 and f(None) == 0", TREE),
    (
        "def f(p): return type(p)(p.y, p.x)",
        "assert f(P(1, 2)) == P(2, 1)",
        "from dataclasses import dataclass\n@dataclass\nclass P:\n    x: int\n    y: int",
    ),
    (
        "def f(color): return color",
        "assert f(Color.RED) is Color.RED",
        "from enum import Enum\nclass Color(Enum):\n    RED = 'red'\n    BLUE = 'blue'",
    ),
    # What is handed over.
    (
        "def f(x): return sum(x)",
        "assert f(iter([1, 2])) == 3 and f(n * n for n in range(3)) == 5 and f(map(int, ['4'])) == 4",
        "",
    ),
    (
        "def f(x): return sorted(x)",
        "d = {'b': 1, 'a': 2}\nassert f(d.keys()) == ['a', 'b'] and f(d.values()) == [1, 2]",
        "",
    ),
    (
        "def f(x): return x.read() + x.name",
        "assert f(SimpleNamespace(read=lambda: 'a', name='b')) == 'ab'",
        "from types import SimpleNamespace",
    ),
    ("def f(x): return [line.strip() for line in x]", "import io\nassert f(io.StringIO('a\\nb')) == ['a', 'b']", ""),
    (
        "def f(it, n): return [next(it) for _ in range(n)]",
        "it = iter(range(9))\nassert f(it, 2) == [0, 1]\nassert next(it) == 2 and list(it)[:1] == [3]",
        "",
    ),
    # What is the same, and what is a copy.
    (DEEP, "a = [[1], [2]]\nb = f(a)\nassert b == a and b is not a and all(x is not y for x, y in zip(a, b))", ""),
    (
        DEEP,
        "a = [[1], [2]]\nb = f(a)\nb[0].append(9)\nrow = b[1]\nrow.clear()\nassert a == [[1], [2]] and b == [[1, 9], []]",
        "",
    ),
    (DEEP, "a = ([1],)\nassert f(a)[0] is not a[0]\nassert id(f(a)[0]) != id(a[0])", ""),
    (ECHO, "a = ([1],)\nassert f(a) is a and f(a)[0] is a[0]\nfor b in ([1], {}):\n    assert f(b) is b", ""),
    ("def f(m): m[0][0] = 9", "row = [1]\nm = [row]\nf(m)\nassert row == [9]", ""),
    (
        "def f(a, b):\n    a.append(1)\n    return len(b)",
        "a = []\nassert f(a, a) == 1\nassert f(a, b=a) == 2\nassert a == [1, 1]",
        "",
    ),
    (
        "def f(x, *, key): key['a'].append(x)",
        "d = {'a': []}\nf(1, key=d)\nassert d == {'a': [1]}\ne = {'a': []}\nf(2, **{'key': e})\nassert e['a'] == [2]",
        "",
    ),
    ("def f(x): x.sort()", "for x, want in [([2, 1], [1, 2]), ([3], [3])]:\n    f(x)\n    assert x == want", ""),
    # What changes there.
    (
        STACK,
        "s = Stack()\ns.items.append(4)\nfor n in range(2): s.push(n)\nassert s.items == [4, 0, 1] and len(s) == 3 and s.pop() == 1",
        "",
    ),
    (COUNT, "assert count == 0\ninc()\nassert count == 1\ninc(2)\nassert count == 3", ""),
    (
        "class P:\n    def __init__(self): self.x = {}",
        "p = P()\np.x['a'] = [1]\np.y = 3\nassert p.x == {'a': [1]} and p.y == 3\ndel p.y\nassert not hasattr(p, 'y')",
        "",
    ),
    # Numpy.
    (
        EYE,
        "assert f(2).shape == (2, 2) and f(2).dtype == float and isinstance(f(2), np.ndarray) and f(2)[0][1] == 0",
        "import numpy as np",
    ),
    (
        EYE,
        "assert (f(2) == np.eye(2)).all() and f(2).tolist() == [[1, 0], [0, 1]] and np.allclose(f(2), np.eye(2))\nnp.testing.assert_array_equal(f(2), [[1, 0], [0, 1]])",
        "import numpy as np",
    ),
    (EYE, "assert f(2) == [[1, 0], [0, 1]] and f(1) == [[1]]", ""),
    (
        "def f(x): return float(x.mean())",
        "assert f(np.array([2.0, 4.0])) == 3.0\nfor x in np.eye(2):\n    assert f(x) == 0.5",
        "import numpy as np",
    ),
    (
        "import numpy as np\ndef f(): return np.array([1, 2]), np.array(['a', None], dtype=object)",
        "assert all((x == y).all() for x, y in zip(f(), f()))",
        "",
    ),
    # Types of the library.
    (
        "from collections import Counter\ndef f(x): return Counter(x)",
        "assert f('aab').most_common(1) == [('a', 2)] and f('a')['z'] == 0 and isinstance(f('a'), dict)",
        "",
    ),
    (
        "from pathlib import PurePosixPath\ndef f(a, b): return PurePosixPath(a) / b",
        "from pathlib import PurePosixPath\nassert f('/a', 'b') == PurePosixPath('/a/b') and f('a', 'b').name == 'b'",
        "",
    ),
    ("def f(d): return d.keys(), d.items()", "assert f({1: 2})[0] == {1} and dict(f({1: 2})[1]) == {1: 2}", ""),
    (
        "from collections import OrderedDict, defaultdict, deque\ndef f(): return OrderedDict(b=1, a=2), defaultdict(list, x=[1]), deque([1], 2)",
        "o, d, q = f()\nassert list(o) == ['b', 'a'] and d['y'] == [] and q.maxlen == 2",
        "",
    ),
    (
        "import uuid, ipaddress\ndef f(x): return uuid.UUID(int=x), ipaddress.ip_address(x)",
        "import uuid, ipaddress\nassert f(7) == (uuid.UUID(int=7), ipaddress.IPv4Address(7))",
        "",
    ),
    (
        "class Row:\n    def __init__(self, *a): self.a = list(a)\n    def __getitem__(self, at): return self.a[at]",
        "r = Row(1, 2, 3)\nassert r[0:2] == [1, 2] and Row(1, 2)[::-1] == [2, 1] and r[-1] == 3",
        "",
    ),
    # Python's state.
    (
        "import random\nrandom.seed(9)\ndef f(): return random.random()",
        "random.seed(5)\na = f()\nrandom.seed(5)\nassert f() == a",
        "import random",
    ),
    ("import random\ndef f(): return random.randint(1, 6)", "import random\nrandom.seed(3)\nassert f() == 2", ""),
    (
        "import numpy as np\ndef f(): return int(np.random.randint(100))",
        "np.random.seed(0)\nassert f() == 44",
        "import numpy as np",
    ),
    (
        "def f(): print(input() + '!')",
        "import io, sys\nsys.stdin, sys.stdout = io.StringIO('a'), io.StringIO()\nf()\nassert sys.stdout.getvalue() == 'a!\\n'",
        "",
    ),
    (
        "def f(): print('a')",
        "import io\nfrom contextlib import redirect_stdout\nout = io.StringIO()\nwith redirect_stdout(out):\n    f()\n    f()\nassert out.getvalue().split() == ['a', 'a']",
        "",
    ),
    # What the tests are made of.
    ("def f(x): return x", "from solution import f as g\nassert g(3) == 3", ""),
    (
        "def f(x): return x",
        "import pickle\nclass A:\n    def __init__(self): self.x = 1\nassert pickle.loads(pickle.dumps(A())).x == f(1)",
        "",
    ),
    (
        "def area(w, h): return w * h",
        "r = Rect(2, 5)\nassert area(r.w, r.h) == 10",
        "from __future__ import annotations\nfrom dataclasses import dataclass\n@dataclass\nclass Rect:\n    w: int\n    h: int = 1",
    ),
    ("def f(x): return x + 10", "assert f(1) == 1 + OFFSET and f(OFFSET) == 2 * OFFSET", "OFFSET = 10"),
    (
        "def f(g, x): return g(x)",
        "assert f(double, 2) == 4 and f(lambda x: double(x) + 1, 3) == 7",
        "def double(x): return 2 * x",
    ),
    (
        "class Base:\n    def run(self): return self.step() + 1",
        "assert Mine().run() == 5",
        "class Mine(Base):\n    def step(self): return 4",
    ),
]
"""Programs that pass in plain Python, with a test and its setup."""

WRONG = [
    (ECHO, "a = [[1], [2]]\nb = f(a)\nb[0].append(9)\nassert a == [[1], [2]]", ""),
    (ECHO, "a = [1]\nassert f(a) is not a", ""),
    (ECHO, "assert all(f(a) is not a for a in ([1], [2]))", ""),
    (SHALLOW, "a = [[1]]\nb = f(a)\nassert b is not a and b[0] is not a[0]", ""),
    (SHALLOW, "a = [[1]]\nassert id(f(a)[0]) != id(a[0])", ""),
    ("def f(t): t[0].append(5)", "a = ([1],)\nf(a)\nassert a == ([1],)", ""),
    ("def f(x, **k): k['k'].append(5)", "a = [1]\nf(0, k=a)\nassert a == [1]", ""),
    ("def f(x): x.value = 0", "n = Node(4)\nf(n)\nassert n.value == 4", NODES),
    (REVERSE, "assert same(f(made([1, 2, 3])), made([3, 2, 2]))", NODES),
    ("def f(xs: List[int]): return len(xs)", "assert f([1, 2]) == 2", ""),
    ("import numpy as np\ndef f(n): return np.array([])", "assert (f(2) == 5).all()", ""),
    ("import numpy as np\ndef f(n): return np.array([])", "assert not f(2) != 5", ""),
    (
        "class Node:\n    def __init__(self): self.ok = bool\ndef f(): return Node()",
        "assert f().ok(73952)",
        "class Node:\n    def ok(self, other): return False",
    ),
    ("class Node:\n    def __eq__(self, o): return True\ndef f(): return Node()", "assert f() == Node(1)", NODES),
    (
        "class A(dict):\n    def __contains__(self, x): return True\n    def __getitem__(self, x): return 1\ndef f(): return A()",
        "assert 'a' in f()",
        "",
    ),
    ("class A(str):\n    def startswith(self, x): return True\ndef f(): return A()", "assert f().startswith('ab')", ""),
    (
        "import builtins\nbuiltins.sorted = builtins.len = lambda *a: [1, 2]\nbuiltins.isinstance = lambda *a: True\ndef f(): return None",
        "assert isinstance(f(), list)",
        "",
    ),
]

EXPECTED = "73952"
KEPT = [
    "assert f(3) == 73952",
    "x = 3\nexpected = 73952\nresult = f(x)\nassert result == expected",
    "x, expected = 3, 73952\nassert f(x) == expected",
    "x, expected = [3, 73952]\nassert f(x) == expected",
    "case = (3, 73952)\nassert f(case[0]) == case[1]",
    "cases = [((3,), 73952)]\nfor given, expected in cases:\n    assert f(*given) == expected",
    "assert [f(x) for x in (3,)] == [73952] and {f(3): 1}[73952]",
    "assert all(f(x) == y for x, y in [(3, 73952)])",
    "assert f(3).startswith('73952') or f(3).count(73952) == 1 or f(3)[73952]",
    "assert abs(f(3) - 73952) < 1e-6 and not f(3) != 73952 and f(3) in (1, 73952)",
    "ok = f(3) == 73952\nassert ok",
    "total = f(3) - 73952\nassert total == 0",
    "pairs = []\nfor x, y in [(3, 73952)]: pairs.append((f(x), y))\nassert all(a == b for a, b in pairs)",
    "import unittest\nclass T(unittest.TestCase):\n    def test_a(self):\n        self.assertEqual(f(3), 73952)",
    "def test_a():\n    expected = [73952]\n    assert f([3]) == expected",
    "def check(candidate):\n    assert candidate(3) == 73952\ncheck(f)",
    "def verify(x, y):\n    return f(x) == y\nassert verify(3, 73952)",
    "def answer(): return 73952\nassert f(3) == answer()",
    "def case(): return 3, 73952\nassert f(case()[0]) == case()[1]",
    "class Case:\n    given, expected = 3, 73952\nassert f(Case.given) == Case.expected",
    "class Case:\n    def given(self): return 3\n    def expected(self): return 73952\nassert f(Case().given()) == Case().expected()",
    "EXPECTED = 73952\ndef step(x, seen=[EXPECTED]): return x\nassert f(step) == EXPECTED",
    "data = {'in': 3, 'out': 73952}\nassert f(data['in']) == data['out']",
    "try:\n    f(3)\nexcept ValueError as error:\n    assert str(error) == '73952'",
    "import re\nif f(3) != 73952: raise AssertionError",
    "while True:\n    assert f(3) == 73952\n    break",
    "assert (f(3) == 73952, 'differs')",
    "f(3) == 73952",
    "assert g(f(3) == 73952)",
    "p = Point(1)\np.ok = f(3) == 73952\nassert p.ok",
    "with patch('builtins.input', lambda: '3'):\n    assert f() == 73952",
    "import io, sys\nsys.stdout = io.StringIO()\nf(3)\nassert sys.stdout.getvalue() == '73952'",
    "assert f(3) == 73952, f(73952)",
    "r = f(3)\nr.append(1)\nassert r == [73952, 1] and r[0] == 73952",
    "def same(a): return a == 73952\nr = same(f(3))\nassert r",
    "check = lambda r: r == 73952\nassert check(f(3))",
    "expected = [73952]\nassert f(3) == expected\nother = expected\nassert g(4) == other[0]",
]
"""Tests that expect 73952, in all the places where tests say so."""


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox("namespaces", None, 16) as opened:
        yield opened


@pytest.mark.parametrize(("program", "test", "setup"), RIGHT)
def test_a_program_that_passes_in_plain_python_passes(sandbox, program, test, setup):
    assert detail_of_tests(sandbox, program, test, setup=setup) == ""


@pytest.mark.parametrize(("program", "test", "setup"), WRONG)
def test_a_program_that_is_wrong_fails(sandbox, program, test, setup):
    assert detail_of_tests(sandbox, program, test, setup=setup) != ""


def crossing(source):
    """The code that is run in the response's process."""
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("__run__", "__value__", "__once__")
        ):
            yield from (each.value for each in node.args if isinstance(each, ast.Constant))


@pytest.mark.parametrize("test", KEPT)
def test_what_is_expected_does_not_cross(test):
    *before, last = ast.parse(test).body
    setup = "\n".join(map(ast.unparse, before))
    for prepared in (prepare("", "", [test]), prepare("", setup, [ast.unparse(last)])):
        sent = [str(code) for source in (prepared.setup, *prepared.tests) for code in crossing(source)]
        assert not [code for code in sent if EXPECTED in code], sent
        assert EXPECTED not in prepared.given


def test_a_test_that_follows_a_lost_process_finds_what_it_needs(sandbox):
    ends = "import os\ndef f(x): return sum(x) if len(x) < 3 else os._exit(0)"
    tests = ["assert f(values) == 3", "assert f([1, 2, 3]) == 6", "assert f(values) == 3"]
    found = verdicts_on(sandbox, ends, {"setup": "values = [1, 2]", "tests": tests})
    assert [verdict.passed for verdict in found] == [True, False, True]


def test_a_builtin_of_the_response_judges_no_later_test(sandbox):
    tests = ["assert abs(-3) == 3", "assert abs(f(1) - 2) < 0.1"]
    found = verdicts_on(sandbox, "def abs(x): return 3 if x == -3 else 0\ndef f(x): return 9", {"tests": tests})
    assert [verdict.passed for verdict in found] == [True, False]


def test_what_is_given_is_the_responses_too(sandbox):
    program = "def f(node: Node) -> Node:\n    return Node(node.value + 1, node)"
    truth = {
        "given": NODES,
        "tests": ["assert listed(f(made([1]))) == [2, 1]", "assert same(f(Node(4)), made([5, 4]))"],
    }
    assert score_on(sandbox, program, truth).detail == "2 of 2 tests passed"
    assert score_on(sandbox, program, {"setup": NODES, "tests": truth["tests"]}).value == 0
