"""Programs that the sandbox of `code` must not be in the way of. To add one, append a row."""

# ruff: noqa: E501 - a row is one line, however long its program

from __future__ import annotations

from typing import Any, NamedTuple


class Works(NamedTuple):
    """A program that must pass all its tests; `writes` where it needs a writable folder."""

    id: str
    program: str
    ground_truth: dict[str, Any]
    writes: bool = False


def _round_trips() -> list[Works]:
    values = {
        "integers": "[0, -1, 2**63 - 1, -2**63, 2**63, 10**100, -10**100]",
        "floats": "[0.1, -0.0, 1e308, float('inf'), 5e-324]",
        "texts": "['', 'a\\n\\0', '\\u20ac', '\\U0001f600', '\\ud800']",
        "constants": "[True, False, None]",
        "tuples": "((), (1,), (1, (2, [3])))",
        "sets": "[set(), {1, 2}, frozenset({(1, 2)})]",
        "dicts": "{1: 'a', 'b': [1], (1, 2): {'t': 'dict', 'v': []}, None: {}, True: 2.5}",
        "bytes": "[b'', b'\\xff\\x00', bytearray(b'ab')]",
        "complex": "[1j, complex(1, -2)]",
        "decimals": "[Decimal('1.10'), Decimal('Infinity'), Decimal('-0')]",
        "fractions": "[Fraction(1, 3), Fraction(10**50, 7)]",
        "deques": "deque([1, [2]])",
        "ranges": "[range(3), range(9, 0, -2)]",
        "types": "[int, str, list, dict, len, sorted]",
        "moments": "[date(2024, 2, 29), datetime(2024, 2, 29, 1, 2, 3, 4), time(1, 2), timedelta(days=-1, microseconds=5)]",
    }
    setup = (
        "from collections import deque\nfrom datetime import date, datetime, time, timedelta\n"
        "from decimal import Decimal\nfrom fractions import Fraction"
    )
    return [
        Works(
            f"round-trip-{name}",
            f"{setup}\nvalue = {value}\ndef f(x):\n    assert x == value and type(x) is type(value)\n    return x",
            {"setup": setup, "tests": [f"assert f({value}) == {value}", f"assert type(f({value})) is type({value})"]},
        )
        for name, value in values.items()
    ]


WORKS = [
    *_round_trips(),
    Works("sum", "def f(a, b=1, *c, d=0): return a + b + sum(c) + d", {"tests": ["assert f(1) == 2", "assert f(1, 2, 3, d=4) == 10"]}),
    Works("unused-import", "def f(x): return math.floor(x)", {"setup": "import math", "tests": ["assert f(1.5) == 1"]}),
    Works("forgotten-import", "def f(x): return x", {"tests": ["assert f(math.pi) == math.pi", "assert f(re.sub('a', 'b', 'a')) == 'b'"]}),
    Works("builtin-name", "def sum(a, b): return a * b\ndef sorted(x): return 'mine'", {"tests": ["assert sum(10, 15) == 150", "assert sorted([2, 1]) == 'mine'"]}),
    Works("module-name", "def bisect(a, x): return -1\ndef string(): return 'mine'", {"tests": ["assert bisect([1], 2) == -1", "assert string() == 'mine'"]}),
    Works("in-place", "def f(a, d, s, i):\n    a.append(9); a[0].pop(); d['x'] = 1; s.clear(); a.sort(key=str)", {"tests": ["a, d, s = [[1, 2], 3], {}, {1}\nassert f(a, d, s, 0) is None\nassert (a, d, s) == ([3, 9, [1]], {'x': 1}, set())"]}),
    Works("callback", "def f(g, xs): return [g(x) for x in sorted(xs, key=g)]", {"tests": ["assert f(lambda x: -x, [1, 2]) == [-2, -1]", "assert f(len, ['aa', 'b']) == [1, 2]", "assert f(math.sqrt, [4]) == [2]"]}),
    Works("callback-raises", "def f(g):\n    try: g()\n    except ValueError as e: return str(e)", {"setup": "def bad(): raise ValueError('no')", "tests": ["assert f(bad) == 'no'"]}),
    Works("type-argument", "def f(xs, kind): return [x for x in xs if isinstance(x, kind)]", {"tests": ["assert f([1, 'a', 2.5], int) == [1]"]}),
    Works("raises", "def f(x):\n    if x < 0: raise ValueError('negative')\n    return [][x]", {"setup": "def raised(k, *a):\n    try: f(*a)\n    except k as e: return True", "tests": ["assert raised(ValueError, -1)", "assert raised(IndexError, 0)", "try:\n    f(-1)\nexcept ValueError as e:\n    assert str(e) == 'negative'\nelse:\n    assert False"]}),
    Works("own-exception", "class Bad(KeyError): pass\ndef f(): raise Bad('x')", {"tests": ["try:\n    f()\nexcept LookupError:\n    pass\nelse:\n    assert False"]}),
    Works("class", "class Stack:\n    kind = 'lifo'\n    def __init__(self, *a): self.items = list(a)\n    def push(self, x): self.items.append(x); return self\n    def __len__(self): return len(self.items)\n    def __getitem__(self, i): return self.items[i]\n    def __str__(self): return f'<{self.items}>'", {"tests": ["s = Stack(1)\ns.push(2).push(3)\nassert s.items == [1, 2, 3] and len(s) == 3 and s[-1] == 3 and str(s) == '<[1, 2, 3]>' and list(s) == [1, 2, 3]", "assert Stack.kind == 'lifo'", "s = Stack()\ns.items = [5]\nassert s[0] == 5"]}),
    Works("generator", "def f(n):\n    for i in range(n): yield i * i", {"tests": ["assert list(f(4)) == [0, 1, 4, 9]", "g = f(2)\nassert next(g) == 0 and next(g) == 1 and next(g, None) is None", "from itertools import islice\nassert list(islice(f(10**9), 2)) == [0, 1]"]}),
    Works("views", "def f(d): return d.keys(), map(str, d.values()), zip(d, d)", {"tests": ["k, m, z = f({1: 2})\nassert sorted(k) == [1] and list(m) == ['2'] and dict(z) == {1: 1}"]}),
    Works("closure", "def f(n): return lambda x: x + n", {"tests": ["assert f(1)(2) == 3"]}),
    Works("state", "calls = []\ndef f(): calls.append(1); return len(calls)", {"tests": ["assert f() == 1", "assert f() == 2", "assert calls == [1, 1]"]}),
    Works("recursion", "import sys\nsys.setrecursionlimit(20000)\ndef f(n): return 0 if n == 0 else 1 + f(n - 1)", {"tests": ["assert f(9000) == 9000"]}),
    Works("big-integers", "def f(n): return n ** n", {"tests": ["assert f(500) == 500 ** 500", "assert len(str(f(500))) == 1350"]}),
    Works("dataclass", "from dataclasses import dataclass\nfrom enum import Enum\n@dataclass\nclass P:\n    x: int\n    y: int = 2\nclass C(Enum):\n    A = 1", {"tests": ["assert P(1).x == 1 and P(1).y == 2", "assert C.A.value == 1"]}),
    Works("prints", "print('hello')\ndef f():\n    print('there', file=__import__('sys').stderr); return 1", {"tests": ["assert f() == 1"]}),
    Works("main-guard", "def f(): return 1\nif __name__ == '__main__':\n    print(f(int(input())))", {"tests": ["assert f() == 1"]}),
    Works("human-eval", "def f(x): return x + 1", {"setup": "METADATA = {}\ndef check(candidate):\n    assert candidate(1) == 2\n    assert True", "tests": ["check(f)"]}),
    Works("input", "a = int(input())\nb = int(input('ignored? '))\nprint(a + b)".replace("'ignored? '", ""), {"cases": [{"input": "1\n2\n", "output": "3\n"}, {"input": "1\n2", "output": "3"}]}),
    Works("stdin", "import sys\nprint(sum(map(int, sys.stdin.read().split())))", {"cases": [{"input": "1 2\n3\n", "output": "6"}]}),
    Works("buffer", "import sys\nfor line in sys.stdin.buffer: sys.stdout.buffer.write(line.upper())", {"cases": [{"input": "a\u00e9\n", "output": "A\u00e9\n"}]}),
    Works("descriptors", "import os\nos.write(1, os.read(0, 99))", {"cases": [{"input": "x\n", "output": "x\n"}]}),
    Works("stdin-file", "import sys\nprint(open(0).read().strip())", {"cases": [{"input": "x\n", "output": "x\n"}]}),
    Works("exit", "import sys\nprint(1)\nsys.exit()", {"cases": [{"input": "", "output": "1\n"}]}),
    Works("hard-exit", "import os\nprint(1, flush=True)\nos._exit(0)", {"cases": [{"input": "", "output": "1\n"}]}),
    Works("exit-builtin", "print(1); exit()", {"cases": [{"input": "", "output": "1\n"}]}),
    Works("exit-handler", "import atexit\natexit.register(print, 1)", {"cases": [{"input": "", "output": "1\n"}]}),
    Works("main", "def main():\n    print(input())\nif __name__ == '__main__':\n    main()", {"cases": [{"input": "x", "output": "x"}]}),
    Works("numbers", "print(1.0, 1e3)\nprint(0.50)\n\n", {"cases": [{"input": "", "output": "1.00 1000.0\n0.5\n"}]}),
    Works("deep-thread", "import sys, threading\nsys.setrecursionlimit(10 ** 6)\nthreading.stack_size(1 << 27)\ndef g(n): return 0 if n == 0 else 1 + g(n - 1)\ndef main(): print(g(50_000))\nt = threading.Thread(target=main)\nt.start()\nt.join()", {"cases": [{"input": "", "output": "50000\n"}]}),
    Works("thread-unjoined", "import threading, time\nthreading.Thread(target=lambda: (time.sleep(0.05), print(1))).start()", {"cases": [{"input": "", "output": "1\n"}]}),
    Works("threads", "from concurrent.futures import ThreadPoolExecutor\nwith ThreadPoolExecutor(8) as p: print(sum(p.map(abs, range(-50, 50))))", {"cases": [{"input": "", "output": "2500\n"}]}),
    Works("asyncio", "import asyncio\nasync def main():\n    await asyncio.sleep(0.01); print(1)\nasyncio.run(main())", {"cases": [{"input": "", "output": "1\n"}]}),
    Works("library", "import heapq, bisect, random, re, json, string, statistics, functools, operator, hashlib, secrets, uuid, zlib, csv, io\nprint(heapq.nsmallest(1, [2, 1])[0], len(hashlib.sha256(b'').hexdigest()), uuid.uuid4().version)", {"cases": [{"input": "", "output": "1 64 4\n"}]}),
    Works("signals", "import signal\nsignal.signal(signal.SIGALRM, lambda *a: print(1))\nsignal.setitimer(signal.ITIMER_REAL, 0.02)\nsignal.pause()", {"cases": [{"input": "", "output": "1\n"}]}),
    Works("memory", "x = bytearray(200 << 20)\nprint(len(x) >> 20)", {"cases": [{"input": "", "output": "200\n"}]}),
    Works("tempfile", "import tempfile, os\nwith tempfile.TemporaryDirectory() as d:\n    p = os.path.join(d, 'x')\n    open(p, 'w').write('1')\n    os.rename(p, p + 'y')\n    print(open(p + 'y').read())", {"cases": [{"input": "", "output": "1\n"}]}, writes=True),
    Works("file", "open('x', 'w').write('1')\ndef f(): return open('x').read()", {"tests": ["assert f() == '1'"]}, writes=True),
]  # fmt: skip
