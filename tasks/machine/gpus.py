"""Checks that torch, vLLM and Triton can use the GPUs of this machine, and reports what to install if they cannot.

    nvidia-smi (NVML) ──► GPUs and driver ──────────────┐
    torch, in a new process ──► GPUs that it can use ───┼─► check_gpus, check_types
    PATH, Python's headers ─────────────────────────────┘

Without these checks, a run would fail after its first stages, with a message of one of the libraries, or use no GPU.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tasks.failures import MistakeError

DRIVERS = {"12": 525, "13": 580}
"""Minimum major version of NVIDIA's driver by the major version of CUDA that torch is built for (CUDA's release notes).
"""

DRIVER = Path("/proc/driver/nvidia/version")
"""File with the version of NVIDIA's kernel module."""

VISIBLE = "CUDA_VISIBLE_DEVICES"
"""Environment variable with the GPUs that a process may use."""
NONE_VISIBLE = frozenset({"", "-1", "NoDevFiles"})
"""Values of this variable that hide all GPUs."""

OLDEST = (7, 5)
"""Lowest compute capability (Turing) that PyPI's torch for CUDA 13 and vLLM are built for."""

BFLOAT16 = (8, 0)
"""Lowest compute capability (Ampere) with instructions for bfloat16, without which vLLM refuses it."""

PROBE = """
import json

import torch

try:
    torch.cuda.init()
except RuntimeError as error:
    print(json.dumps([[], str(error).partition("\\n")[0]]))
else:
    cards = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    print(json.dumps([[(card.name, (card.major, card.minor)) for card in cards], ""]))
"""
"""Program that prints the GPUs that torch can use, and why it can use none.

It runs in a new process, since a process that has used a GPU cannot fork the processes of engines.
"""


class GpuError(MistakeError):
    """The GPUs of this machine cannot be used as they are. The message says what to install or to set."""


class Card(NamedTuple):
    """A GPU that torch can use: its name, and its compute capability, such as (9, 0)."""

    name: str
    capability: tuple[int, int]

    def __str__(self) -> str:
        return f"{self.name}, compute capability {self.capability[0]}.{self.capability[1]}"


class Usable(NamedTuple):
    """The GPUs that torch can use, and torch's reason if it can use none."""

    cards: tuple[Card, ...]
    reason: str = ""


def read_driver_version() -> str:
    """Return the version of NVIDIA's driver from its kernel module or `nvidia-smi`, or an empty string if none."""
    if DRIVER.is_file() and (version := re.search(r"Kernel Module\s.*?(\d+\.\d[\d.]*)", DRIVER.read_text())):
        return version[1]
    return next(iter(_ask_driver("driver_version")), "")


def list_gpu_names() -> list[str]:
    """Return the names of this machine's GPUs that the driver reports, or an empty list without `nvidia-smi`."""
    return _ask_driver("name")


def _ask_driver(property_name: str) -> list[str]:
    """Return a property of each GPU that the driver reports (NVML)."""
    if (program := shutil.which("nvidia-smi")) is None:
        return []
    query = [program, f"--query-gpu={property_name}", "--format=csv,noheader"]
    done = subprocess.run(query, check=False, capture_output=True, text=True, timeout=60)  # noqa: S603 - words of ours
    return [line.strip() for line in done.stdout.splitlines()] if done.returncode == 0 else []


@functools.cache
def find_usable_gpus() -> Usable:
    """Return the GPUs that torch can use, in a few seconds, or at once if torch is missing or built for CPUs."""
    if importlib.util.find_spec("torch") is None:
        return Usable(())
    import torch

    if torch.version.cuda is None:
        return Usable(())
    return probe_gpus()


def probe_gpus() -> Usable:
    """Return the GPUs that torch can use, from a new process.

    Raises:
        GpuError: the process fails, as torch cannot be imported.
    """
    probe = [sys.executable, "-c", PROBE]
    done = subprocess.run(probe, check=False, capture_output=True, text=True, timeout=300)  # noqa: S603 - ours
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise GpuError(f"torch cannot look for GPUs: {last}")
    cards, reason = json.loads(done.stdout.splitlines()[-1])
    return Usable(tuple(Card(name, tuple(capability)) for name, capability in cards), reason)


def check_gpus() -> None:
    """Check that torch can use the GPUs of this machine, if it is built for GPUs and the machine has any.

    Raises:
        GpuError: the driver is too old, torch can use none of the GPUs, one is too old, or Triton could not compile.
    """
    gpus = find_usable_gpus()
    if gpus.reason and os.environ.get(VISIBLE) not in NONE_VISIBLE and (names := list_gpu_names()):
        raise _make_error(names[0], gpus.reason)
    for index, card in enumerate(gpus.cards):
        if card.capability < OLDEST:
            raise GpuError(
                f"GPU {index} ({card}) is too old: torch and vLLM need {OLDEST[0]}.{OLDEST[1]} or later (Turing); "
                f"leave it out of {VISIBLE}, or use another machine"
            )
    if gpus.cards:
        check_compiler()


def _make_error(gpu: str, reason: str) -> GpuError:
    """Return the error for a machine with a GPU that torch cannot use, for which torch gives a reason."""
    import torch

    driver, cuda = read_driver_version(), torch.version.cuda or ""
    oldest = DRIVERS.get(cuda.partition(".")[0], 0)
    if driver and int(driver.partition(".")[0]) < oldest:
        return GpuError(
            f"NVIDIA's driver {driver} is too old for torch {torch.__version__}, which is built for CUDA {cuda} and "
            f"cannot use this machine's GPU ({gpu}): install NVIDIA's driver {oldest} or later"
        )
    return GpuError(
        f"torch {torch.__version__} cannot use this machine's GPU ({gpu}, driver {driver}): {reason}; to run without "
        "a GPU, install the extra `cpu` instead of `gpu`"
    )


def check_compiler() -> None:
    """Check that Triton can compile the launchers of its kernels: with a C compiler, and Python's headers.

    Raises:
        GpuError: one of them is missing.
    """
    compilers = [os.environ["CC"]] if os.environ.get("CC") else ["gcc", "clang"]
    if not any(map(shutil.which, compilers)):
        raise GpuError(
            f"there is no C compiler ({' or '.join(compilers)}), and Triton compiles with one when an engine first "
            "uses the GPU: install gcc"
        )
    headers = [Path(folder) / "Python.h" for folder in _list_header_folders()]
    if not any(header.is_file() for header in headers):
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        raise GpuError(
            f"{headers[0]} is missing, and Triton compiles with it when an engine first uses the GPU: install Python's "
            f"headers (python{version}-dev on Debian and Ubuntu, python{version}-devel on Fedora)"
        )


def _list_header_folders() -> list[str]:
    """Return the folders that are searched for Python's headers: Python's own, as Triton computes it, and gcc's.

    The default scheme of Python on Debian and Ubuntu names a folder below `/usr/local`, which does not have them.
    """
    scheme = sysconfig.get_default_scheme()
    own = sysconfig.get_path("include", "posix_prefix" if scheme == "posix_local" else scheme)
    paths = (os.environ.get(name, "").split(os.pathsep) for name in ("CPATH", "C_INCLUDE_PATH"))
    return [own, *(path for folders in paths for path in folders if path)]


def check_types(learner: Mapping[str, str], engines: Mapping[str, str]) -> None:
    """Check that all GPUs that torch can use have bfloat16 if an option asks for it.

    Args:
        learner, engines: values of the options `dtype` of learner and engines, by their names in a message. `auto` is
            bfloat16 on a GPU.

    Raises:
        GpuError: a GPU does not have it. The message names the types that the option can have instead.
    """
    lacking = next((card for card in find_usable_gpus().cards if card.capability < BFLOAT16), None)
    if lacking is None:
        return
    for options, others in ((learner, "float32"), (engines, "float16 or float32")):
        for name, value in options.items():
            if value in ("auto", "bfloat16"):
                needs = "bfloat16" if value == "bfloat16" else "auto, which is bfloat16 on a GPU"
                raise GpuError(f"{name} = {needs}: this machine's {lacking}, does not have it; set it to {others}")
