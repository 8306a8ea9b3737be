"""Starts Ray on this machine, once what it needs of the machine was looked at.

Ray joins whatever cluster runs on a machine, or that `RAY_ADDRESS` names, unless it is told otherwise: a run that
another user's cluster would compute, or that waits for one that is gone, is never what was asked for.
"""

from __future__ import annotations

import signal
import socket
import tempfile
from pathlib import Path
from typing import Any

from tasks.failures import MistakeError
from tasks.machine.quiet import silence_retries

LONGEST_SOCKET = 107
"""Bytes that the path of a Unix socket may have on Linux."""

RAYS_PART = "/ray/session_2026-01-01_00-00-00_000000_0000000/sockets/plasma_store"
"""The path of Ray's longest socket in the folder of temporary files."""


CONNECT_SECONDS = 10
"""Seconds within which a cluster has to take a connection."""


class MachineError(MistakeError):
    """The machine, or the environment of the process, lacks what engines and Ray need; the message names it."""


def check_machine() -> None:
    """Check what Ray and the engines need of the environment.

    Raises:
        MachineError: the home cannot be written, or the path of the folder of temporary files is too long or not ASCII.
    """
    home = Path.home()
    if not can_be_written(home):
        why = "cannot be written" if home.exists() else "does not exist"
        raise MachineError(
            f"the home folder {home} {why}, and Ray, vLLM and Hugging Face keep files there: set HOME to a folder that "
            "can be written"
        )
    temporary = tempfile.gettempdir()
    if not temporary.isascii():
        raise MachineError(
            f"TMPDIR ({temporary}) has letters beyond ASCII, which Ray refuses: set it to another folder"
        )
    too_long = len(temporary) + len(RAYS_PART) - LONGEST_SOCKET
    if too_long > 0:
        raise MachineError(
            f"TMPDIR ({temporary}) is {too_long} characters too long for Ray's sockets: set it to a folder with a "
            "shorter path"
        )


def can_be_written(folder: Path) -> bool:
    """Return whether a file can be made in a folder; the permissions alone do not decide that, as in `/proc`."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def start_ray(address: str = "local", **options: Any) -> None:
    """Start Ray on this machine, or join the cluster at `address`, and let SIGTERM end the process as Ctrl-C does.

    Args:
        address: `local`, or a running cluster's, as `ray.init` takes it.
        options: further options of `ray.init`.

    Raises:
        MachineError: see `check_machine`; nothing answers at `address`.
        ConnectionError: what answers at `address` is no cluster.
    """
    import ray

    if address == "local":
        check_machine()
        options = {"num_gpus": _usable_gpus()} | options
    else:
        _check_answers(address)
    silence_retries()
    ray.init(address=address, include_dashboard=False, **options)
    # Ray's own handler, which it sets meanwhile, aborts the process and prints a stack.
    signal.signal(signal.SIGTERM, _interrupt)


def _usable_gpus() -> int:
    """Return the number of GPUs that torch can use; Ray would count those that the driver has."""
    import torch

    return torch.cuda.device_count()


def _check_answers(address: str) -> None:
    """Raise `MachineError` where nothing answers at a cluster's `HOST:PORT`, which Ray would try for many minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise MachineError(
            f"no Ray cluster answers at {address}: {getattr(error, 'strerror', None) or error}"
        ) from error


def _interrupt(number: int, frame: object) -> None:
    """Interrupt the main thread as Ctrl-C would, also where a shell has started the process with Ctrl-C ignored."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        raise KeyboardInterrupt
    signal.raise_signal(signal.SIGINT)
