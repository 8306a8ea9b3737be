"""Locks up the calling process permanently: resource limits, no capabilities, Landlock, and a system call filter.

This needs no privilege, and works if user namespaces do not. Allowed after `confine`: computing, threads, reading the
files in `readable`, writing below `writable`, and using open descriptors. Not allowed: new processes, other programs,
sockets to anywhere, signals to others, inspecting other processes.

All steps fail closed: if the kernel refuses one, `OSError` is raised, and the caller must not continue.
"""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import stat
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial

_libc = ctypes.CDLL(None, use_errno=True)

EPERM, ENOSYS = 1, 38
"""Linux error numbers for a forbidden and for a missing system call."""

# Name, number on x86_64, number on aarch64 ("-": does not exist). From the kernel's headers (unistd_64.h and
# asm-generic/unistd.h), whose numbers never change.
_ALLOWED = """
read 0 63, write 1 64, readv 19 65, writev 20 66, pread64 17 67, pwrite64 18 68, open 2 -, openat 257 56,
close 3 57, close_range 436 436, stat 4 -, fstat 5 80, lstat 6 -, newfstatat 262 79, statx 332 291, access 21 -,
faccessat 269 48, faccessat2 439 439, lseek 8 62, mmap 9 222, mprotect 10 226, munmap 11 215, mremap 25 216,
madvise 28 233, brk 12 214, rt_sigaction 13 134, rt_sigprocmask 14 135, rt_sigreturn 15 139,
rt_sigpending 127 136, rt_sigtimedwait 128 137, sigaltstack 131 132, pipe 22 -, pipe2 293 59, poll 7 -,
ppoll 271 73, select 23 -, pselect6 270 72, epoll_create1 291 20, epoll_ctl 233 21, epoll_wait 232 -,
epoll_pwait 281 22, epoll_pwait2 441 441, eventfd2 290 19, sendto 44 206, recvfrom 45 207,
shutdown 48 210, getsockopt 55 209, sched_yield 24 124,
sched_getaffinity 204 123, nanosleep 35 101, clock_nanosleep 230 115, clock_gettime 228 113,
clock_getres 229 114, gettimeofday 96 169, time 201 -, getpid 39 172, getppid 110 173, gettid 186 178,
getuid 102 174, geteuid 107 175, getgid 104 176, getegid 108 177, getresuid 118 148, getresgid 120 150,
getgroups 115 158, getpgrp 111 -, getpgid 121 155, getsid 124 156, uname 63 160, getcwd 79 17, chdir 80 49,
fchdir 81 50, getdents64 217 61, readlink 89 -, readlinkat 267 78, mkdir 83 -, mkdirat 258 34, rmdir 84 -,
unlink 87 -, unlinkat 263 35, rename 82 -, renameat 264 38, renameat2 316 276, ftruncate 77 46, truncate 76 45,
fsync 74 82, fdatasync 75 83, fallocate 285 47, dup 32 23, dup2 33 -, dup3 292 24, flock 73 32, umask 95 166,
sysinfo 99 179, getrusage 98 165, times 100 153, getrandom 318 278, futex 202 98, set_robust_list 273 99,
get_robust_list 274 100, rseq 334 293, set_tid_address 218 96, arch_prctl 158 -, exit 60 93, exit_group 231 94,
wait4 61 260, waitid 247 95, restart_syscall 219 128, getrlimit 97 163, alarm 37 -, setitimer 38 103,
getitimer 36 102, pause 34 -, membarrier 324 283, getcpu 309 168
"""
_ARCHITECTURES = {"x86_64": (1, 0xC000003E), "aarch64": (2, 0xC00000B7)}
"""Column of `_ALLOWED`, and the kernel's AUDIT_ARCH, by machine."""

_NUMBERS = {
    "clone": (56, 220),
    "clone3": (435, 435),
    "kill": (62, 129),
    "tkill": (200, 130),
    "tgkill": (234, 131),
    "fcntl": (72, 25),
    "ioctl": (16, 29),
    "prlimit64": (302, 261),
    "socketpair": (53, 199),
}
"""Numbers of the system calls that are allowed only with some arguments, on x86_64 and aarch64."""

LOCKED = b"L"
"""Message of a fork after it is locked up. An earlier one brings the descriptor of its requests for threads."""
MAX_REASON = 300
"""Maximum length of the reason why a fork could not be locked up, in bytes."""

_CLONE_THREAD = 0x10000
_AF_UNIX, _SOCK_STREAM, _SOCK_TYPE_MASK = 1, 1, 0xF
_DENIED_FCNTL = (8, 10, 15, 1024, 1026)  # F_SETOWN, F_SETSIG, F_SETOWN_EX send signals; F_SETLEASE, F_NOTIFY
_ALLOWED_IOCTL = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
# TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 1, 4, 22, 24, 38
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
_SECCOMP_MODE_FILTER = 2
_SECCOMP = {"x86_64": 317, "aarch64": 277}
_SECCOMP_SET_MODE_FILTER, _SECCOMP_FILTER_FLAG_NEW_LISTENER = 1, 8
_ALLOW, _ASK = 0x7FFF0000, 0x7FC00000
_ITSELF = bytes([255] * 8)
"""Marks the instruction in the filter's code that compares with the process's own pid; no instruction equals it."""
_SIGKILL = 9

_LANDLOCK_CREATE_RULESET, _LANDLOCK_ADD_RULE, _LANDLOCK_RESTRICT_SELF = 444, 445, 446
_READ_FILE, _READ_DIR, _EXECUTE = 1 << 2, 1 << 3, 1 << 0
# WRITE_FILE, REMOVE_DIR, REMOVE_FILE, MAKE_DIR, MAKE_REG: no links, no devices, no pipes
_WRITE = 1 << 1 | 1 << 4 | 1 << 5 | 1 << 7 | 1 << 8
_TRUNCATE = 1 << 14
_OF_FILES = _READ_FILE | _EXECUTE
OLDEST_LANDLOCK = 3
"""Oldest ABI version of Landlock that is used, from Linux 6.2; older versions allow truncating any file."""

_FS_RIGHTS = {4: 15}
"""Number of Landlock's file system rights up to this ABI version; later versions, from Linux 6.10 on, have 16."""


@dataclass(frozen=True)
class Limits:
    """Resource limits of one process.

    Attributes:
        cpu_seconds: RLIMIT_CPU, in seconds; the kernel kills a process that uses more.
        memory_bytes: RLIMIT_AS, in bytes.
        file_bytes: RLIMIT_FSIZE, in bytes.
        open_files: RLIMIT_NOFILE.
        threads: maximum number of threads at a request for one more; enforced outside, by
            `Process.answer_request`.
    """

    cpu_seconds: int
    memory_bytes: int
    file_bytes: int = 16 << 20
    open_files: int = 64
    threads: int = 64


def confine(
    limits: Limits,
    readable: Sequence[str],
    writable: str | None,
    *,
    landlock: bool,
    hand_over: Callable[[int], None] | None = None,
) -> None:
    """Lock up the calling process. This cannot be undone.

    Args:
        limits: resource limits.
        readable: files, and folders whose files may be read. If `landlock` is off, all visible files may be read.
        writable: the folder below which files may be written, or None for none. Without Landlock, no other visible file
            may be writable.
        landlock: True to restrict files with Landlock.
        hand_over: called with the descriptor of this process's requests for threads, to send it to the process that
            answers them; it is closed afterwards. Optional. If None, threads are not limited.

    Raises:
        OSError: the kernel refused a step.
    """
    _call_prctl(_PR_SET_PDEATHSIG, _SIGKILL)
    # Other processes of the user can then neither trace it nor read its memory in /proc.
    _call_prctl(_PR_SET_DUMPABLE, 0)
    _set_limits(limits)
    _drop_capabilities()
    # Without privileges, the kernel accepts Landlock rules and filters only after this.
    _call_prctl(_PR_SET_NO_NEW_PRIVS, 1)
    if landlock:
        _restrict_files(readable, writable)
    if hand_over is not None:
        asking = _watch_threads()
        hand_over(asking)
        os.close(asking)  # with it, this process could permit its own threads
    # Last, because it forbids what the steps above need: prctl, seccomp, Landlock, and `sendmsg` of `hand_over`.
    _filter_system_calls()


def read_landlock_version() -> int:
    """Return the ABI version of Landlock in this kernel, or 0 if it has none."""
    return max(0, _libc.syscall(_LANDLOCK_CREATE_RULESET, None, ctypes.c_size_t(0), 1))


def is_supported_architecture() -> bool:
    """Return True if the system call filter supports this machine's processor."""
    return platform.machine() in _ARCHITECTURES


def prepare() -> None:
    """Build the system call filter once; called before processes are forked, because each would build its own."""
    _filter(platform.machine())


def _set_limits(limits: Limits) -> None:
    for kind, value in (
        (resource.RLIMIT_CPU, limits.cpu_seconds),
        (resource.RLIMIT_AS, limits.memory_bytes),
        (resource.RLIMIT_FSIZE, limits.file_bytes),
        (resource.RLIMIT_NOFILE, limits.open_files),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
    ):
        resource.setrlimit(kind, (value, value))  # the hard limit too, so that the process cannot raise it


def _drop_capabilities() -> None:
    # The bounding set first: dropping from it needs a capability, which `capset` takes away. The loop ends at the first
    # number that the kernel does not know, or at once if the process has no right to drop any.
    number = 0
    while _libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0) == 0:
        number += 1
    _libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    header = struct.pack("Ii", 0x20080522, 0)  # _LINUX_CAPABILITY_VERSION_3, this process
    _check(_libc.capset(header, bytes(24)), "capset")


def _restrict_files(readable: Sequence[str], writable: str | None) -> None:
    version = read_landlock_version()
    if version < OLDEST_LANDLOCK:
        raise OSError(ENOSYS, f"this kernel has no Landlock of ABI version {OLDEST_LANDLOCK} or later")
    # All rights that this kernel knows: it denies what is handled and not granted below, and permits all else.
    handled = (1 << next((count for newest, count in _FS_RIGHTS.items() if version <= newest), 16)) - 1
    network = 3 if version >= 4 else 0  # Linux 6.7: binding and connecting TCP sockets
    scoped = 3 if version >= 6 else 0  # Linux 6.12: abstract sockets of, and signals to, others
    # The struct has grown with versions 4 and 6; each kernel gets the fields that it knows.
    attributes = struct.pack("QQQ", handled, network, scoped)[: 8 if version < 4 else 16 if version < 6 else 24]
    ruleset = _check(
        _libc.syscall(_LANDLOCK_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), 0), "landlock"
    )
    for path in readable:
        _allow(ruleset, path, (_READ_FILE | _READ_DIR | _EXECUTE) & handled)
    if writable is not None:
        _allow(ruleset, writable, (_READ_FILE | _READ_DIR | _WRITE | _TRUNCATE) & handled)
    _check(_libc.syscall(_LANDLOCK_RESTRICT_SELF, ruleset, 0), "landlock")
    os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        target = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return  # a missing rule only forbids more
    try:
        # The kernel rejects a rule that gives a file the rights of folders.
        if not stat.S_ISDIR(os.fstat(target).st_mode):
            rights &= _OF_FILES
        rule = struct.pack("=Qi", rights, target)
        _check(_libc.syscall(_LANDLOCK_ADD_RULE, ruleset, 1, rule, 0), f"landlock rule for {path}")
    finally:
        os.close(target)


def _watch_threads() -> int:
    """Return a descriptor on which this process will request permission for each thread that it starts, and wait.

    RLIMIT_NPROC is not a limit: root is exempt from it, and all processes of a user count together. The requests are
    answered by `tasks.verifiers.code.sandbox`.
    """
    machine = platform.machine()
    column, audit = _ARCHITECTURES[machine]
    # Other architectures and new processes are passed to the other filter, which refuses them: of the results of two
    # filters, the kernel uses the stricter one. A refusal is stricter than a request, and a request than permission.
    code = [_load(4), _jump_equal(audit, 0, 4), _load(0), _jump_equal(_NUMBERS["clone"][column - 1], 0, 2)]
    code += [_load(16), _jump_set(_CLONE_THREAD, 1, 0), _return(_ALLOW), _return(_ASK)]
    number, flag = _SECCOMP[machine], _SECCOMP_FILTER_FLAG_NEW_LISTENER
    with _pack_program(b"".join(code)) as header:
        asked = _libc.syscall(number, _SECCOMP_SET_MODE_FILTER, flag, header)
    return _check(asked, "threads cannot be bounded by seccomp's user notification (Linux 5.5)")


def _filter_system_calls() -> None:
    with _pack_program(_jump_equal(os.getpid(), 0, 1).join(_filter(platform.machine()))) as header:
        _call_prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, header)


@contextmanager
def _pack_program(code: bytes) -> Iterator[bytes]:
    """Yield a `struct sock_fprog` of these instructions, which stay in memory for the duration of the block."""
    buffer = ctypes.create_string_buffer(code, len(code))
    yield struct.pack("HxxxxxxQ", len(code) // 8, ctypes.addressof(buffer))


@cache
def _filter(machine: str) -> tuple[bytes, ...]:
    """Return the filter as classic BPF (`struct sock_filter`): first the listed calls, then those with conditions.

    It is returned in parts. Between them, an instruction that depends on the process must be inserted: it continues if
    the argument is the process's own pid, and otherwise skips one instruction.
    """
    column, audit = _ARCHITECTURES[machine]
    # `_NUMBERS` has no column for names, as `_ALLOWED` has.
    numbers = {name: pair[column - 1] for name, pair in _NUMBERS.items()}
    listed = [line.split() for line in _ALLOWED.replace("\n", " ").split(",")]
    allowed = [int(row[column]) for row in listed if row[column] != "-"]
    # 0x00050000 makes the call fail with the given error, and 0x80000000 kills the process.
    allow, deny, absent = _return(_ALLOW), _return(0x00050000 | EPERM), _return(0x00050000 | ENOSYS)
    code = [_load(4), _jump_equal(audit, 1, 0), _return(0x80000000), _load(0)]
    if machine == "x86_64":
        code += [_jump_at_least(0x40000000, 0, 1), deny]  # numbers of the x32 ABI
    for number in allowed:
        code += [_jump_equal(number, 0, 1), allow]
    code += [_jump_equal(numbers["clone3"], 0, 1), absent]  # its flags are in memory; the C library then uses clone
    code += [_jump_equal(numbers["clone"], 0, 4), _load(16), _jump_set(_CLONE_THREAD, 0, 1), allow, deny]
    # A process may signal itself, as `abort` does.
    for name in ("kill", "tkill", "tgkill"):
        code += [_jump_equal(numbers[name], 0, 4), _load(16), _ITSELF, allow, deny]
    # The C library reads and lowers limits with `prlimit64`, and 0 for the calling process.
    code += [_jump_equal(numbers["prlimit64"], 0, 5), _load(16), _jump_equal(0, 1, 0), _ITSELF]
    code += [allow, deny]
    # A datagram socket, even one of a pair, could send to any socket that has a name.
    code += [_jump_equal(numbers["socketpair"], 0, 7), _load(16), _jump_equal(_AF_UNIX, 0, 4), _load(24)]
    code += [_and(_SOCK_TYPE_MASK), _jump_equal(_SOCK_STREAM, 0, 1), allow, deny]
    commands = [_jump_equal(number, 0, 1) + deny for number in _DENIED_FCNTL]
    code += [_jump_equal(numbers["fcntl"], 0, 2 + 2 * len(commands)), _load(24), *commands, allow]
    requests = [_jump_equal(number, 0, 1) + allow for number in _ALLOWED_IOCTL]
    code += [_jump_equal(numbers["ioctl"], 0, 2 + 2 * len(requests)), _load(24), *requests, deny]
    return tuple(b"".join([*code, deny]).split(_ITSELF))


def _instruct(code: int, value: int, true: int = 0, false: int = 0) -> bytes:
    """Return an instruction of classic BPF: its code, a number, and the instructions to skip if true and if false."""
    return struct.pack("HBBI", code, true, false, value)


# The codes are from linux/bpf_common.h: BPF_LD, BPF_RET, BPF_AND, BPF_JEQ, BPF_JGE, and BPF_JSET.
# `_load` gets an offset in struct seccomp_data: number at 0, architecture at 4, the low halves of the arguments at 16,
# 24, ... The kernel ignores the high halves of the arguments that are compared here.
_load = partial(_instruct, 0x20)
_return = partial(_instruct, 0x06)
_and = partial(_instruct, 0x54)
_jump_equal = partial(_instruct, 0x15)
_jump_at_least = partial(_instruct, 0x35)
_jump_set = partial(_instruct, 0x45)


def _call_prctl(option: int, argument: int, pointer: bytes | None = None) -> None:
    # The kernel reads 64 bits; without `c_ulong`, ctypes would pass 32 and leave the others undefined.
    _check(_libc.prctl(option, ctypes.c_ulong(argument), pointer or 0, 0, 0), f"prctl {option}")


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result
