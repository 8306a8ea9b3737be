"""What the processes of a run hold: memory, open files, threads, shared memory, and files for a while."""

import contextlib
import os
import re
from collections import defaultdict
from pathlib import Path

import psutil

SHARED = Path("/dev/shm")  # noqa: S108 where Linux has it
ROLES = (
    ("EngineCore", "vLLM's engine core"),
    ("ray::ActorProcess", "engine's actor"),
    ("ray::LearnerRank", "learner rank"),
    ("ray::RewardProcess", "judge"),
    ("ray::RelayProcess", "relay"),
    ("tasks.environments", "environment"),
    ("tasks.verifiers.code", "code sandbox"),
    ("tasks.verifiers", "verifier worker"),
    ("gcs_server", "ray's gcs"),
    ("resource_tracker", "resource tracker"),
    ("agent.py", "ray's agents"),
    ("/ray/", "ray's others"),
    ("raylet", "raylet"),
    ("ray::", "ray's spare workers"),
)
"""Part of a command line, and who has it; the first that fits."""


def role(process: psutil.Process) -> str:
    """What a process is in a run; empty where it has ended meanwhile."""
    try:
        command = " ".join(process.cmdline())
    except psutil.Error:
        return ""
    if os.path.basename(command.split(" ", 1)[0]) == "raylet":
        return "raylet"
    return next((name for part, name in ROLES if part in command), os.path.basename(command.split(" ", 1)[0]))


def shared_files(pid: int) -> set[str]:
    """Files of shared memory that a process has open or mapped, those without a name left out."""
    maps = re.findall(rf"^[^/\n]* ({SHARED}/[^\n]+)$", Path(f"/proc/{pid}/maps").read_text(), re.MULTILINE)
    opened = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile
            opened.append(os.readlink(link))
    return {name for name in (*maps, *opened) if name.startswith(f"{SHARED}/") and not name.endswith(" (deleted)")}


def memory(pid: int) -> float:
    """MB of a process; what it shares is divided among those who do (PSS)."""
    kilobytes = re.search(r"^Pss: +(\d+)", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
    return int(kilobytes[1]) * 1024 / 1e6 if kilobytes else 0.0


def held_by_tree(root: psutil.Process, temporary: Path) -> dict:
    """What a process and all below it hold, by role; and the files below `temporary`.

    Returns:
        `roles`: for each role its `processes`, `mb`, `handles` and `threads`; `shared`: names of files in shared
        memory, and `shared_mb`; `temporary_files` and `temporary_mb`.
    """
    roles = defaultdict(lambda: dict.fromkeys(("processes", "mb", "handles", "threads"), 0))
    shared: set[str] = set()
    for process in (root, *root.children(recursive=True)):
        with contextlib.suppress(psutil.Error, FileNotFoundError, ProcessLookupError):  # it has just ended
            held = {
                "processes": 1,
                "mb": memory(process.pid),
                "handles": process.num_fds(),
                "threads": process.num_threads(),
            }
            shared |= shared_files(process.pid)
            name = "driver" if process is root else role(process)
            for kind, amount in held.items():
                roles[name][kind] += amount
    files = [path for path in temporary.rglob("*") if path.is_file()]
    return {
        "roles": dict(roles),
        "shared": sorted(shared),
        "shared_mb": size(Path(name) for name in shared),
        "temporary_files": len(files),
        "temporary_mb": size(files),
    }


def size(paths) -> float:
    """MB on disk of files, those left out that have gone."""
    total = 0
    for path in paths:
        with contextlib.suppress(OSError):
            total += path.stat().st_blocks * 512
    return total / 1e6
