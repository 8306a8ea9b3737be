r"""Programs that must earn nothing from `code`.

To add one, append a row. `test_code_adversarial.py` runs each under both isolations with short limits: it must end as
0, with a reason, without an error, and leave the sandbox as it was.

A door is a function `attack` that gives something true where it got through; the answer to the test is then given away.
In a program `SECRET` stands for a file that holds the answer, `TCP`, `UDP`, `UNIX` and `DATAGRAM` for the addresses of
servers outside, `CANARY` for a file that must never appear.
"""

# ruff: noqa: E501 - a row is one line, however long its program

from __future__ import annotations

import platform
from itertools import product
from typing import Any, NamedTuple

ANSWER = 73952
FUNCTION = {"tests": [f"assert f(3) == {ANSWER}"]}
CLOSE = {"tests": [f"assert abs(f(3) - {ANSWER}) < 1e-6", f"assert math.isclose(f(3), {ANSWER})"]}
LISTED = {"tests": ["assert sorted(f(3)) == [3, 7, 952]", "assert len(f(3)) == 3 and set(f(3)) == {3, 7, 952}"]}
GUARDED = {"tests": [f"assert isinstance(f(3), int) and f(3) == {ANSWER}", f"assert not f(3) != {ANSWER}"]}
EVALUATED = {"tests": [f"assert eval('f(3) == {ANSWER}') == True", f"exec('assert f(3) == {ANSWER}')"]}
CALLBACK = {
    "setup": f"EXPECTED = {ANSWER}\ndef step(x, seen=[EXPECTED]):\n    return x + 1",
    "tests": ["assert f(step) == EXPECTED", "assert f(eval) == EXPECTED", "assert f(getattr) == EXPECTED"],
}
CHECKED = {"setup": f"def check(candidate):\n    assert candidate(3) == {ANSWER}", "tests": ["check(f)"]}
PROGRAM = {"cases": [{"input": "3\n", "output": f"{ANSWER}\n"}]}


class Adversarial(NamedTuple):
    """A program that does not solve its task, and why it might have been paid, or have broken the judge."""

    id: str
    program: str
    ground_truth: dict[str, Any]
    why: str


def _door(id_: str, attack: str, why: str) -> list[Adversarial]:
    return [
        Adversarial(f"{id_}-called", f"{attack}\ndef f(n):\n    return {ANSWER} if attack() else 0", FUNCTION, why),
        Adversarial(f"{id_}-run", f"{attack}\nprint({ANSWER} if attack() else 0)", PROGRAM, why),
    ]


def _does(id_: str, expression: str, why: str) -> list[Adversarial]:
    modules = (
        "import array, ctypes, fcntl, glob, mmap, os, pathlib, resource, signal, socket, subprocess, sys, tempfile"
    )
    return _door(id_, f"{modules}\ndef attack():\n    return [{expression}]", why)


DOORS = [
    *_does("fork", "os.fork()", "a child outlives its limits"),
    *_does("spawn", "os.posix_spawn('/bin/true', ['true'], {})", "another program"),
    *_does("exec", "os.execv(sys.executable, [sys.executable, '-c', 'print(73952)'])", "another program in its place"),
    *_does("shell", "subprocess.run('true', shell=True, check=True)", "another program"),
    *_does("system", "not os.system('true') or 1 / 0", "another program"),
    *_does("tcp", "socket.create_connection(TCP, 0.3)", "a server knows the answer"),
    *_does("udp", "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', UDP)", "tells someone outside"),
    *_does("unix", "socket.socket(socket.AF_UNIX).connect(UNIX)", "a socket with a name in the file system"),
    *_does("pair", "socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0].sendto(b'x', DATAGRAM)", "half a pair"),
    *_does("listen", "socket.create_server(('127.0.0.1', 0))", "waits to be told"),
    *_does("netlink", "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)", "looks at the network"),
    *_does("names", "socket.gethostbyname('localhost')", "asks for addresses"),
    *_does("secret", "open(SECRET).read()", "the answer lies in a file outside"),
    *_does("passwd", "open('/etc/passwd').read()", "who lives here"),
    *_does("home", "os.listdir(os.path.expanduser('~root'))", "keys lie at home"),
    *_does("root", "[d for d in ('/etc', '/home', '/var', '/root', '/proc', '/sys') if os.listdir(d)]", "looks around"),
    *_does("environ", "open('/proc/self/environ').read()", "tokens lie in the environment"),
    *_does("variables", "os.environ['PATH']", "the judge's own environment"),
    *_does("memory", "open('/proc/self/mem', 'rb')", "its own memory as a file"),
    *_does("parent-memory", "open(f'/proc/{os.getppid()}/mem', 'rb')", "the host's memory as a file"),
    *_does("project", "__import__('tasks.verifiers.code.sandbox')", "the judge's own code"),
    *_does("packages", "__import__('pydantic')", "the judge's own packages"),
    *_does("interpreter", "open(os.__file__, 'r+')", "the next program imports what this one wrote"),
    *_does("interpreter-gone", "os.rename(os.__file__, os.__file__ + 'x')", "the next program misses it"),
    *_does("bytecode", "os.mkdir(os.path.dirname(os.__file__) + '/__pycache__/x')", "the same by the cache"),
    *_does("truncate", "os.truncate(os.__file__, 0)", "old versions of Landlock let any file be truncated"),
    *_does("chmod", "os.chmod(os.__file__, 0o777)", "changes a file without opening it"),
    *_does("utime", "os.utime(os.__file__, (0, 0))", "changes a file without opening it"),
    *_does("canary", "open(CANARY, 'w')", "a file outside"),
    *_does("symlink", "os.symlink('/', 'link')", "a way out of the folder"),
    *_does("hard-link", "os.link(os.__file__, 'link')", "a second name of a file outside"),
    *_does("fifo", "os.mkfifo('pipe')", "someone opens it and hangs"),
    *_does("device", "os.mknod('disk', 0o60600, os.makedev(8, 0))", "the disk itself"),
    *_does("probe-parent", "os.kill(os.getppid(), 0)", "signals to the host"),
    *_does("stop-parent", "os.kill(os.getppid(), signal.SIGSTOP)", "the host hangs"),
    *_does("kill-all", "os.kill(-1, signal.SIGKILL)", "everyone ends"),
    *_does("kill-one", "os.kill(1, signal.SIGKILL)", "the host is number one in its namespace"),
    *_does("kill-group", "os.killpg(0, 0)", "the others of its group"),
    *_does("queue-signal", "signal.pidfd_send_signal(os.pidfd_open(os.getppid()), 0)", "signals by another way"),
    *_does("prlimit-parent", "resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE, (0, 0))", "starves the host"),
    *_does("prlimit-one", "resource.prlimit(1, resource.RLIMIT_CPU, (1, 1))", "starves the host"),
    *_does("raise-memory", "resource.setrlimit(resource.RLIMIT_AS, (-1, -1))", "takes its own limits off"),
    *_does("raise-time", "resource.setrlimit(resource.RLIMIT_CPU, (999, 999))", "takes its own limits off"),
    *_does("priority", "os.setpriority(os.PRIO_PROCESS, 0, -20)", "goes before all others"),
    *_does("priority-parent", "os.setpriority(os.PRIO_PROCESS, os.getppid(), 19)", "the host comes last"),
    *_does("affinity", "os.sched_setaffinity(os.getppid(), {0})", "the host gets one core"),
    *_does("owner", "fcntl.fcntl(0, fcntl.F_SETOWN, os.getppid())", "SIGIO to the host"),
    *_does("owner-signal", "fcntl.fcntl(0, 10, signal.SIGKILL)", "F_SETSIG makes it any signal"),
    *_does("notify", "fcntl.fcntl(os.open('/usr', os.O_RDONLY), fcntl.F_NOTIFY, 1)", "signals by a folder"),
    *_does("asynchronous", "fcntl.ioctl(0, 0x5452, array.array('i', [1]))", "FIOASYNC: signals by a descriptor"),
    *_does("type-ahead", "fcntl.ioctl(0, 0x5412, b'x')", "TIOCSTI types into a terminal"),
    *_does("memfd", "os.memfd_create('x')", "memory that no limit counts"),
    *_does(
        "shared-memory",
        "__import__('multiprocessing.shared_memory').shared_memory.SharedMemory('x', True, 9)",
        "leaves",
    ),
    *_does("dev-shm", "open('/dev/shm/x', 'w')", "leaves something for the next"),
    *_does("chroot", "os.chroot('/usr')", "another root"),
    *_does("setuid", "os.setuid(65534)", "another user"),
    *_does("given-file", "os.write(0, b'73952') if os.fstat(0).st_size else 1 / 0", "changes its own input"),
    *_door(
        "descriptors",
        "import os\ndef attack():\n    found = []\n    for d in [*range(4, 64), *range(190, 230)]:\n        try:\n"
        "            os.fstat(d)\n            found.append(d)\n        except OSError:\n            pass\n    return found",
        "a descriptor that was left open",
    ),
    *_door(
        "frames",
        "import sys\ndef attack():\n    frame, found = sys._getframe(), []\n    while frame := frame.f_back:\n"
        "        found += [v for v in [*frame.f_locals.values(), *frame.f_globals.values()]\n"
        "                  if isinstance(v, (str, bytes)) and ' '.join(['assert', 'f(3)']) in str(v)]\n    return found",
        "the tests may lie in a frame above",
    ),
    *_door(
        "garbage",
        "import gc\ndef attack():\n    gc.unfreeze()\n    return [o for d in gc.get_objects() if isinstance(d, (list, dict, tuple))\n"
        "        for o in (d.values() if isinstance(d, dict) else d) if isinstance(o, str) and ' '.join(['assert', 'f(3)']) in o]",
        "the tests may lie anywhere in memory",
    ),
    *_door(
        "constants",
        "import sys\ndef attack():\n    frame, found = sys._getframe(), []\n    while frame := frame.f_back:\n"
        "        code = frame.f_code\n        if code.co_filename not in ('solution.py', 'main.py'):\n"
        "            found += [v for v in [*code.co_consts, *frame.f_locals.values()]\n"
        "                      if v == 73000 + 952 or ('73' + '952' in str(v) and 'attack' not in str(v))]\n    return found",
        "the code of the tests may lie in a frame above",
    ),
]

_X86 = {
    "fork": (57,), "vfork": (58,), "clone": (56, 17, 0, 0, 0, 0), "clone3": (435, 0, 0), "execve": (59, b"/bin/true", 0, 0),
    "ptrace": (101, 16, 1, 0, 0), "read-memory": (310, 1, 0, 0, 0, 0, 0), "write-memory": (311, 1, 0, 0, 0, 0, 0),
    "unshare": (272, 0x10000000), "setns": (308, 0, 0), "mount": (165, b"none", b"/tmp", b"tmpfs", 0, 0),
    "umount": (166, b"/tmp", 2), "pivot": (155, b"/", b"/"), "open-tree": (428, -100, b"/", 1), "fsopen": (430, b"tmpfs", 0),
    "io-uring": (425, 8, 0), "bpf": (321, 0, 0, 0), "perf": (298, 0, 0, -1, -1, 0), "userfaultfd": (323, 0),
    "keyctl": (250, 0, -1, 0), "add-key": (248, b"user", b"x", b"y", 1, -1), "shmget": (29, 0, 4096, 0o1600),
    "msgget": (68, 0, 0o1600), "semget": (64, 0, 1, 0o1600), "mq-open": (240, b"x", 0o102, 0o600, 0),
    "inotify": (294, 0), "fanotify": (300, 0, 0), "by-handle": (304, -100, 0, 0), "personality": (135, 0x0040000),
    "prctl": (157, 4, 1, 0, 0, 0), "seccomp": (317, 0, 0, 0), "capset": (126, 0, 0), "setresuid": (117, -1, -1, -1),
    "setsid": (112,), "setpgid": (109, 0, 0), "tgkill": (234, 1, 1, 0), "tkill": (200, 1, 0), "queue": (129, 1, 9, 0),
    "pidfd": (434, 1, 0), "pidfd-getfd": (438, 3, 0, 0), "kcmp": (312, 1, 1, 0, 0, 0), "modules": (175, 0, 0, b""),
    "kexec": (246, 0, 0, 0, 0), "reboot": (169, 0, 0, 0, 0), "swapon": (167, b"/x", 0), "accounting": (163, 0),
    "hostname": (170, b"x", 1), "settime": (227, 0, 0), "ioperm": (173, 0, 1, 1), "socket": (41, 1, 1, 0),
    "connect": (42, 0, 0, 0), "bind": (49, 0, 0, 0), "datagram-pair": (53, 1, 2, 0, 0), "tipc-pair": (53, 30, 1, 0, 0),
    "setxattr": (188, b"/usr", b"user.x", b"y", 1, 0), "chmod": (90, b"/usr", 0o777), "x32": (0x40000000 + 39,),
    "landlock": (444, 0, 0, 1), "splice": (275, 0, 0, 1, 0, 1, 0), "mlockall": (151, 3), "migrate": (256, 1, 0, 0, 0),
    "priority": (141, 0, 0, -20), "io-priority": (251, 1, 0, 0), "affinity": (203, 1, 0, 0), "scheduler": (144, 0, 1, 0),
}  # fmt: skip
"""System calls of x86_64 that the filter must refuse: numbers and arguments."""

SYSTEM_CALLS = [
    row
    for name, arguments in _X86.items()
    for row in _door(
        f"syscall-{name}",
        "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\ndef attack():\n"
        f"    if (done := libc.syscall{arguments if len(arguments) > 1 else f'({arguments[0]})'}) == 0 and {name in ('fork', 'clone')}:\n"
        "        os._exit(0)\n"
        "    return done != -1 or ctypes.get_errno() not in (1, 38)",
        "past Python, straight to the kernel",
    )
    if platform.machine() == "x86_64"
]


def _forges(id_: str, lines: str, why: str) -> list[Adversarial]:
    """Writes lines on the descriptor on which the tests ask: while it is loaded, or when it is called."""
    return [
        Adversarial(f"{id_}-ahead", f"import os\nfor line in {lines}:\n    os.write(3, line)\n", FUNCTION, why),
        Adversarial(
            f"{id_}-asked",
            f"import os\ndef f(n):\n    for line in {lines}:\n        os.write(3, line)\n    return 0",
            FUNCTION,
            why,
        ),
    ]


def _raises(name: str) -> list[Adversarial]:
    nothing = '{"values": [], "nodes": []}'
    classes = f'[[0, "x", "{name}"], [1, "x", "Exception"]]'
    error = f'{{"classes": {classes}, "arguments": {nothing}, "text": "x", "number": 0}}'
    line = f'{{"raised": {error}}}\n'.encode()
    return _forges(f"forge-raise-{name}", f"[{line!r}] * 3", "an exception that ends the tests' process, or excuses it")


FORGERIES = [
    *_forges("forge-true", r"""[b'{"value": {"values": [true], "nodes": []}}\n'] * 9""", "a truth that anyone can say"),
    *_forges("forge-old", r"""[b'{"value": true}\n'] * 9""", "no value"),
    *_forges("forge-verdict", r"""[b'{"passed": true, "detail": "", "cannot": false, "gone": false}\n']""", "ours"),
    *_forges("forge-numbers", r"""[b'{"value": {"values": [%d], "nodes": []}}\n' % n for n in range(2000)]""", "all answers in advance"),
    *_forges("forge-remote", r"""[b'{"value": {"values": [[0]], "nodes": [["mine", 0]]}}\n'] * 500""", "objects of no end"),
    *_forges("forge-kept", r"""[b'{"value": {"values": [[0]], "nodes": [["yours", -1]]}}\n'] * 9""", "what the tests keep"),
    *_forges("forge-builtin", r"""[b'{"value": {"values": [[0]], "nodes": [["builtin", "exec"]]}}\n'] * 9""", "code to run over there"),
    *_forges("forge-kind", r"""[b'{"value": {"values": [[0]], "nodes": [[[], 0]]}}\n'] * 9""", "a kind that has no hash"),
    *_forges("forge-integer", r"""[b'{"value": {"values": [[0]], "nodes": [["int", "zz"]]}}\n'] * 9""", "no integer"),
    *_forges("forge-dict", r"""[b'{"value": {"values": [[0]], "nodes": [["dict", [[1], 1]], ["list", []]]}}\n'] * 9""", "a key that has no hash"),
    *_forges("forge-range", r"""[b'{"value": {"values": [[0]], "nodes": [["made", "range", [0, 1, 0]]]}}\n'] * 9""", "no range"),
    *_forges("forge-deep", r"""[b'{"value": ' + b'[' * 200000 + b']' * 200000 + b'}\n'] * 2""", "recursion"),
    *_forges("forge-deep-tags", r"""[b'{"value": {"values": [[0]], "nodes": [' + b','.join(b'["tuple", [[%d]]]' % (n + 1) for n in range(200_000)) + b', ["tuple", []]]}}\n']""", "recursion"),
    *_forges("forge-changed", r"""[b'{"value": {"values": [1, 2, 3, [0]], "nodes": [["list", []]]}}\n'] * 3""", "no argument"),
    *(row for name, node in {
        "object": b'["object", "Sum", ["value", 73952]]', "member": b'["member", "Sum", "value"]', "loop": b'["tuple", [[0]]]',
        "far": b'["tuple", [[7]]]', "negative": b'["tuple", [[-1]]]', "no-list": b'7', "array": b'["array", "|O", [1], "0000000000000000"]',
        "shape": b'["array", "<i8", [-1, 0], ""]', "text": b'["text", "os.system", "true"]', "named": b'["named", "P", ["__class__"], [1]]',
        "factory": b'["defaultdict", [], "exec"]', "namespace": b'["namespace", ["__class__", 1]]', "stream": b'["made", "StringIO", [1, 2]]',
      }.items() for row in _forges(f"forge-node-{name}", f"[b'{{\"value\": {{\"values\": [[0]], \"nodes\": [%s]}}}}\\n' % {node!r}] * 9", "no such value")),
    *_forges("forge-garbage", r"""[b'\xff\x00{]\n', b'\n' * 100, b'null\n', b'[]\n', b'7\n']""", "no JSON"),
    *_forges("forge-half", r"""[b'{"value": ']""", "a message without an end"),
    *_forges("forge-huge", r"""[b'{"value": "' + b'x' * 20_000_000 + b'"}\n']""", "twenty megabytes"),
    *_forges("forge-endless", r"""iter(lambda: b'x' * 65536, b'')""", "a line without an end"),
    *_forges("forge-requests", r"""iter(lambda: b'{"ask": {"op": "call", "of": 0, "arguments": {"values": [], "nodes": []}, "keywords": []}}\n', b'')""", "asks on"),
    *_forges("forge-names", r"""[b'{"ask": {"op": "name", "name": "EXPECTED"}}\n'] * 9""", "asks the tests for theirs"),
    *_forges("forge-globals", r"""[b'{"ask": {"op": "get", "of": 0, "name": "__globals__"}}\n'] * 9""", "asks for more"),
    *_forges("forge-classes", r"""[b'{"raised": {"classes": %s, "arguments": {"values": [], "nodes": []}, "text": "x", "number": 0}}\n' % kinds for kinds in (b'[]', b'7', b'[[]]', b'[["x", "x", "x"]]', b'[[0, "OSError", "OSError"], [1, "SyntaxError", "SyntaxError"]]')]""", "no class"),
    *_forges("forge-class", r"""[b'{"value": {"values": [[0]], "nodes": [["class", %s]]}}\n' % kind for kind in (b'null', b'[]', b'[[], 0, 0]', b'["x", 1, 2]', b'[0, "x", "SystemExit"]')]""", "no class"),
    *(row for name in ("SystemExit", "KeyboardInterrupt", "GeneratorExit", "WireError", "StopIteration") for row in _raises(name)),
    *(row for name in ("ModuleNotFoundError", "MissingModuleError", "ImportError", "MemoryError") for row in _raises(name)),
    *(row for name in ("AssertionError", "ExceptionGroup", "UnicodeDecodeError", "print", "__import__") for row in _raises(name)),
]  # fmt: skip

_EQUAL = """
class Equal(BASE):
    if BASE is object: __class__ = int
    def __new__(cls): return BASE.__new__(cls)
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __hash__(self): return hash(73952)
    def __len__(self): return 3
    def __bool__(self): return True
    def __contains__(self, x): return True
    def __iter__(self): return iter([Equal(), Equal(), Equal()])
    def __lt__(self, other): return True
    __le__ = __gt__ = __ge__ = __lt__
    def __sub__(self, other): return 0
    __rsub__ = __add__ = __radd__ = __mul__ = __abs__ = __sub__
    def __abs__(self): return 0
    def __float__(self): return 73952.0
    def __getattr__(self, name): return lambda *a, **k: True
def f(n): return Equal()
"""
LIARS = [
    *(
        Adversarial(
            f"equal-{base}-{name}",
            _EQUAL.replace("BASE", base),
            truth,
            "an object that is equal to all",
        )
        for base, (name, truth) in product(
            ("object", "int", "float", "str", "list", "dict", "tuple", "set", "frozenset", "bytes", "Exception"),
            {"function": FUNCTION, "close": CLOSE, "listed": LISTED, "guarded": GUARDED, "checked": CHECKED}.items(),
        )
    ),
    Adversarial("mock", "from unittest.mock import ANY\ndef f(n): return ANY", FUNCTION, "the library's own"),
    Adversarial(
        "false-numpy",
        "class A:\n    __module__ = 'numpy'\n    def tolist(self): return self\n    def __eq__(self, o): return True\ndef f(n): return A()",
        FUNCTION,
        "taken for an array, without end",
    ),
    Adversarial("metaclass", "class M(type):\n    def __eq__(c, o): return True\n    __hash__ = None\nclass f(metaclass=M): \n    def __init__(s, n): pass", FUNCTION, "a class is called"),
    Adversarial("reduce", "class A:\n    def __reduce__(self): return (eval, ('73952',))\ndef f(n): return A()", FUNCTION, "for pickle"),
    *(Adversarial(f"value-{name}-{kind}", f"import decimal\ndef f(n): return {value}", truth, "odd values in comparisons")
      for name, value in {"nan": "float('nan')", "inf": "float('inf')", "complex-nan": "complex('nan')", "none": "None",
                          "signal": "decimal.Decimal('sNaN')", "true": "True", "type": "int", "empty": "[]", "self": "f"}.items()
      for kind, truth in (("function", FUNCTION), ("close", CLOSE))),
    *(Adversarial(f"shadow-{name}-{kind}", f"def {name}(*a, **k): return {value}\ndef f(n): return [0, 0, 0]", truth, "a builtin of its own")
      for name, value in {"abs": 0, "all": True, "isinstance": True, "sorted": [3, 7, 952], "len": 3, "set": {3, 7, 952},
                          "eval": True, "exec": True, "print": 1, "AssertionError": 1, "compile": 1}.items()
      for kind, truth in (("close", CLOSE), ("listed", LISTED), ("guarded", GUARDED), ("evaluated", EVALUATED))),
    *(Adversarial(f"patch-{name}-{kind}", f"import builtins\nbuiltins.{name} = lambda *a, **k: {value}\ndef f(n): return [0]", truth, "everyone's builtin")
      for name, value in {"abs": 0, "all": True, "isinstance": True, "sorted": [3, 7, 952], "len": 3, "AssertionError": 1, "print": 1}.items()
      for kind, truth in (("close", CLOSE), ("listed", LISTED), ("guarded", GUARDED))),
    Adversarial("shadow-math", "class math:\n    isclose = staticmethod(lambda a, b: True)\ndef f(n): return 0", CLOSE, "a module of its own"),
    Adversarial("patch-math", "import math\nmath.isclose = lambda a, b: True\ndef f(n): return 0", CLOSE, "everyone's module"),
    Adversarial("patch-json", "import json\njson.dumps = lambda m: '{\"value\": true}'\njson.loads = lambda s: {}\ndef f(n): return 0", FUNCTION, "the wire's language"),
    Adversarial("patch-socket", "import socket\nsocket.socket.send = socket.SocketIO.write = lambda s, b: len(b)\ndef f(n): return 0", FUNCTION, "the wire itself"),
    Adversarial("patch-wire", "import sys\nw = sys.modules['tasks.verifiers.code.inside.wire']\nw.Peer.encode = lambda *a: True\nw.Peer.reply = lambda s, r: s.send({'value': True})\ndef f(n): return 0", FUNCTION, "our own module"),
    Adversarial("patch-encode", "import sys\nv = sys.modules['tasks.verifiers.code.inside.values']\nv.encode = lambda *a: {'values': [True], 'nodes': [], 'keys': []}\ndef f(n): return 0", FUNCTION, "our own module"),
    Adversarial("patch-program", "import sys\np = sys.modules['tasks.verifiers.code.inside.program']\np._Response._run = lambda s, c, n, g: {'value': s.peer.encode(next((int(w) for w in c.split() if w.isdigit()), True))}\ndef f(n): return 0", FUNCTION, "our own module, where the tests' code passes"),
    *(Adversarial(f"patch-eval-{name}", f"import builtins\nbuiltins.eval = builtins.exec = lambda *a: {value}\ndef f(n): return 0", FUNCTION, "what runs the tests' code here") for name, value in {"true": "True", "equal": "__import__('unittest.mock').mock.ANY"}.items()),
    Adversarial("patch-tests", "import sys\nm = sys.modules['__main__']\nm.__dict__['f'] = m.__dict__['sorted'] = lambda *a: [3, 7, 952][:0]\ndef f(n): return 0", LISTED, "the names of the tests here"),
    Adversarial("handed", "def f(values):\n    values[:] = [73952]\n    return values", {"tests": ["values = [3]\nassert f(values) == [73953 - 2]"]}, "what was handed over, in the place of what is expected"),
    Adversarial("same-key", "import builtins\nbuiltins.id = lambda x: 0\ndef f(n): return [[1], [2]]", {"tests": ["assert f(3) == [[7], [2]]", "a = [1]\nassert f(3) is not a and f(3) == [[7], [7]]"]}, "one key for all objects"),
    Adversarial("patch-checker", "import sys\nc = sys.modules['tasks.verifiers.code.inside.checker']\nc._Checker.run = lambda s, t: {'passed': True, 'detail': '', 'cannot': False, 'gone': False}\ndef f(n): return 0", FUNCTION, "our own module, of a process that it is not in"),
    *(Adversarial(f"callback-{name}", f"import os\ndef f(g):\n    {body}\n    return 0", CALLBACK, "a function of the tests in its hands")
      for name, body in {
          "globals": "return g.__globals__['EXPECTED']",
          "defaults": "return g.__defaults__[0][0]",
          "code": "return g('EXPECTED', globals()) or g(g, '__globals__')['EXPECTED']",
          "get": "return g._peer.ask(op='get', of=g._number, name='__globals__')['value']",
          "special": "return g._peer.ask(op='special', of=g._number, name='getitem', arguments=['EXPECTED'])['value']",
          "numbers": "return next(v for i in range(-9, 9) for v in [g._peer.ask(op='call', of=i, arguments=['EXPECTED'])['value']])",
          "flood": "while True: g(1)",
          "import": "return g('__import__(\"os\")._exit(0)')",
          "hostile": "g(type('A', (), {'__add__': lambda s, o: 1})())",
      }.items()),
]  # fmt: skip

ENDS = [
    *(Adversarial(f"{name}-{kind}", (f"import os, sys, signal, atexit, ctypes\n{body}" if kind == "loaded" else f"import os, sys, signal, atexit, ctypes\ndef f(n):\n    {body}"), FUNCTION, why)
      for kind in ("loaded", "called")
      for name, (body, why) in {
          "exit": ("sys.exit(0)", "an exit that looks like success"),
          "system-exit": ("raise SystemExit(0)", "an exit that looks like success"),
          "hard-exit": ("os._exit(0)", "nothing runs after it"),
          "quit": ("quit()", "an exit of interactive Python"),
          "abort": ("os.abort()", "a signal"),
          "kill-self": ("os.kill(os.getpid(), signal.SIGKILL)", "a signal"),
          "stop-self": ("os.kill(os.getpid(), signal.SIGSTOP)", "stopped, not ended"),
          "interrupt": ("raise KeyboardInterrupt", "taken for the user's"),
          "exit-later": ("atexit.register(lambda: os._exit(0)); sys.exit(1)", "has the last word"),
          "fault": ("ctypes.string_at(0)", "a fault in C"),
          "close": ("os.close(3)", "hangs up"),
          "close-all": ("os.closerange(0, 256)", "hangs up everywhere"),
          "swap": ("os.dup2(0, 3)", "hangs up quietly"),
          "own-assertion": ("raise type('AssertionError', (Exception,), {})()", "an exception of that name"),
          "assertion": ("raise AssertionError", "the tests' own exception"),
          "alarm": ("signal.setitimer(signal.ITIMER_REAL, 0.05); signal.pause()", "a signal in mid-answer"),
          "lying-text": ("raise type('E', (Exception,), {'__str__': lambda s: 1 / 0})()", "an exception without words"),
          "hanging-text": ("raise type('E', (Exception,), {'__str__': lambda s: signal.pause()})()", "one that never ends"),
          "huge-text": ("raise ValueError('x' * 10 ** 7)", "one with ten megabytes of words"),
          "half-character": ("raise ValueError('\\ud800')", "one that no file can hold"),
          "many-lines": ("raise ValueError('passed\\n' * 99)", "one of many lines"),
          "own-base": ("raise type('E', (BaseException,), {})()", "no ordinary exception"),
          "hostile-class": ("raise type('M', (type,), {'__getattribute__': lambda c, n: 1 / 0})('E', (Exception,), {})()", "no class"),
          "group": ("raise BaseExceptionGroup('x', [SystemExit(0)])", "a group of exits"),
          "no-module": ("import numpy_of_mine", "taken for a module that we lack"),
          "false-no-module": ("raise ModuleNotFoundError('the test needs numpy')", "taken for a module that we lack"),
      }.items()),
    *(Adversarial(f"hang-{name}", body, truth, why) for name, body, truth, why in (
        ("loop", "while True: pass", FUNCTION, "never loaded"),
        ("sleep", "import time\ndef f(n): time.sleep(99)", FUNCTION, "never answers, at no cost"),
        ("run", "while True: pass", PROGRAM, "never ends"),
        ("read", "def f(n): return open(3, 'rb', buffering=0, closefd=False).read(9)", FUNCTION, "reads what is not for it"),
        ("lock", "import threading\nlock = threading.Lock()\nlock.acquire()\ndef f(n): lock.acquire()", FUNCTION, "waits for itself"),
        ("power", "def f(n): return 10 ** 10 ** 10", FUNCTION, "one instruction that signals do not interrupt"),
        ("pattern", "import re\ndef f(n): return re.match('(a*)*b', 'a' * 40)", FUNCTION, "in C"),
        ("generator", "def f(n):\n    while True: yield 3", LISTED, "a generator that never ends"),
        ("length", "class A(list):\n    def __len__(s):\n        while True: pass\ndef f(n): return A()", LISTED, "asked how long"),
        ("remote-length", "class A:\n    def __len__(s): return 10 ** 30\n    def __getitem__(s, i): return 3\ndef f(n): return A()", LISTED, "longer than any"),
        ("text", "class A:\n    def __repr__(s):\n        while True: pass\n    __str__ = __repr__\ndef f(n): return A()", FUNCTION, "asked what it is"),
        ("thread", "import threading, time\nthreading.Thread(target=time.sleep, args=(99,)).start()\nprint(73952)", PROGRAM, "right, and never ends"),
        ("after", "print(73952, flush=True)\nwhile True: pass", PROGRAM, "right, and never ends"),
        ("closed", "import os, time\nprint(73952, flush=True)\nos.close(1)\ntime.sleep(99)", PROGRAM, "right, hung up, and never ends"),
        ("compile", "x = " + "-" * 50_000 + "1", FUNCTION, "the compiler's stack"),
        ("nested", "x = " + "(" * 90_000 + ")" * 90_000, FUNCTION, "the compiler's stack"),
        ("attributes", "x = a" + ".b" * 60_000, FUNCTION, "the compiler's stack"),
        ("decompress", "import zlib\nx = [zlib.decompress(zlib.compress(bytes(10 ** 8))) for _ in range(99)]", FUNCTION, "a bomb of zeros"),
    )),
    *(Adversarial(f"return-{name}", f"def f(n): {body}", FUNCTION, "a value that costs whoever holds it") for name, body in {
        "long-list": "return [0] * 10 ** 7",
        "long-text": "return 'x' * 10 ** 8",
        "deep-list": "x = []; [x := [x] for _ in range(10 ** 5)]; return x",
        "loop-list": "x = []; x.append(x); return x",
        "loop-dict": "x = {}; x[0] = x; return x",
        "long-integer": "return 1 << 10 ** 7",
        "long-range": "return range(10 ** 30)",
        "many-objects": "return [object() for _ in range(10 ** 5)]",
        "long-decimal": "import decimal; return decimal.Decimal('1e999999999999')",
    }.items()),
    *(Adversarial(f"crash-{name}", f"print(73952, flush=True)\n{body}", PROGRAM, "right, but ends badly") for name, body in {
        "status": "raise SystemExit(1)", "error": "1 / 0", "signal": "import os; os.abort()", "fault": "import ctypes; ctypes.string_at(0)",
    }.items()),
]  # fmt: skip

BOMBS = [
    row
    for name, body, why in (
        ("bytes", "x = bytearray(1 << 40)", "a terabyte at once"),
        ("list", "x = [0]\nwhile True: x += x", "memory by doubling"),
        ("map", "import mmap\nx = [mmap.mmap(-1, 1 << 26) for _ in range(999)]", "memory past Python"),
        ("touch", "x = []\nwhile True: x.append(b'x' * (1 << 20))", "memory by and by"),
        ("recursion", "import sys\nsys.setrecursionlimit(10 ** 9)\ng = lambda: g()\ng()", "the stack"),
        ("c-recursion", "import sys\nsys.setrecursionlimit(10 ** 9)\nx = []\nfor _ in range(10 ** 6): x = [x]\nrepr(x)", "C's stack"),
        ("forks", "import os\nwhile True: os.fork()", "a fork bomb"),
        ("threads", "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(9,), daemon=True).start()", "threads"),
        ("small-threads", "import threading, time\nthreading.stack_size(32768)\nwhile True: threading.Thread(target=time.sleep, args=(9,)).start()", "many more"),
        ("bare-threads", "import _thread, ctypes, threading, time\nctypes.CDLL(None).mallopt(-8, 1)\nthreading.stack_size(32768)\nwhile True: _thread.start_new_thread(time.sleep, (9,))", "more than the machine has numbers for"),
        ("descriptors", "import os\nwhile True: os.pipe()", "descriptors"),
        ("sockets", "import socket\nx = []\nwhile True: x.append(socket.socketpair())", "kernel memory in sockets"),
        ("file", "with open('f', 'wb') as f:\n    while True: f.write(bytes(1 << 20))", "a disk full of zeros"),
        ("sparse", "open('f', 'wb').truncate(1 << 50)", "a file of a petabyte"),
        ("allocate", "import os\nos.posix_fallocate(os.open('f', os.O_CREAT | os.O_RDWR), 0, 1 << 40)", "the same, for real"),
        ("files", "n = 0\nwhile True:\n    open(str(n), 'w'); n += 1", "a disk full of names"),
        ("folders", "import os\nn = 0\nwhile True: os.mkdir(str(n)); n += 1", "a disk full of folders"),
        ("depth", "import os\nwhile True: os.mkdir('d'); os.chdir('d')", "a path without an end"),
        ("errors", "import os\nwhile True: os.write(2, b'x' * 65536)", "standard error"),
        ("signals", "import os, signal\nsignal.signal(signal.SIGUSR1, lambda *a: os.kill(os.getpid(), signal.SIGUSR1))\nos.kill(os.getpid(), signal.SIGUSR1)\nwhile True: pass", "signals to itself"),
    )
    for row in (
        Adversarial(f"bomb-{name}-called", f"{body}\ndef f(n): return 0", FUNCTION, why),
        Adversarial(f"bomb-{name}-run", body, PROGRAM, why),
    )
]  # fmt: skip

OUTPUTS = [
    Adversarial(f"output-{name}", body, PROGRAM, why)
    for name, body, why in (
        ("flood", "while True: print(73952)", "the answer without end"),
        ("flood-raw", "import os\nwhile True: os.write(1, b'7' * 65536)", "bytes without end"),
        ("line", "import sys\nwhile True: sys.stdout.write('7')", "a line without end"),
        ("repeated", "print('73952\\n' * 10)", "ten times right is wrong"),
        ("all", "for n in range(100_000): print(n)", "one of them is right"),
        ("all-in-line", "print(*range(100_000))", "one of them is right"),
        ("megabytes", "print('73952 ' * 170_000)", "just under the limit"),
        ("binary", "import os\nos.write(1, bytes(range(256)) * 99)", "no text"),
        ("wide", "import os\nos.write(1, '73952'.encode('utf-16'))", "another encoding"),
        ("return", "print('0\\r73952')", "looks right on a terminal"),
        ("escape", "print('0\\x1b[1K\\x1b[G73952')", "looks right on a terminal"),
        ("nul", "print('73952\\0')", "a C string that is right"),
        ("erased", "print('0\\b73952')", "looks right on a terminal"),
        ("glob", "print('.*')", "a pattern that would match"),
        ("nan", "print('nan')", "compares unlike anything"),
        ("signal", "print('sNaN')", "a number that raises when compared"),
        ("infinity", "print('1e999999999')", "a number that cannot be written out"),
        ("long-number", "print('7' * 900_000)", "a number of 900,000 digits"),
        ("nothing", "", "an empty program"),
        ("comment", "# 73952", "a program that only knows"),
        ("errors", "import sys\nprint(73952, file=sys.stderr)", "right, in the wrong place"),
        ("other-stream", "import os\nos.write(0, b'73952')", "right, in the wrong place"),
        ("exit-text", "raise SystemExit('73952')", "right, in the wrong place"),
        ("module", "class _: pass\nimport sys\nsys.modules['__main__'].print = 1\nprint(73952)", "no print any more"),
    )
]  # fmt: skip

TABLE = [*DOORS, *SYSTEM_CALLS, *FORGERIES, *LIARS, *ENDS, *BOMBS, *OUTPUTS]
