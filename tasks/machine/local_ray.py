"""Checks Ray's requirements and starts Ray on this machine.

By default Ray joins any cluster that runs on the machine or that `RAY_ADDRESS` names. A run would then be computed by
another user's cluster, or wait for a cluster that is gone. This module always starts a new cluster or joins a given
one.
"""

from __future__ import annotations

import logging
import signal
import socket
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tasks.failures import InfrastructureError, MistakeError
from tasks.machine.gpus import check_gpus
from tasks.machine.quiet import silence_retries

logger = logging.getLogger(__name__)

LONGEST_SOCKET = 107
"""Maximum number of bytes in the path of a Unix socket on Linux."""

RAYS_PART = "/ray/session_2026-01-01_00-00-00_000000_0000000/sockets/plasma_store"
"""The longest path of a Ray socket below the folder of temporary files."""

TOO_SLOW = "timed out during startup"
"""A part of the error that Ray raises if its processes have not started after 30 seconds, which is not an option."""

CONNECT_SECONDS = 10
"""Connection timeout of a cluster in seconds."""


class MachineError(MistakeError):
    """The machine or the environment lacks something that engines and Ray need. The message names it."""


class RayStartError(InfrastructureError):
    """Ray did not start in time on this machine, twice."""


def check_machine() -> None:
    """Check the requirements of Ray and the engines.

    Raises:
        MachineError: the home folder cannot be written, or the path of the folder of temporary files is too long or not
            ASCII.
        GpuError: the machine's GPUs cannot be used as they are.
    """
    home = Path.home()
    if not can_be_written(home):
        why = "cannot be written" if home.exists() else "does not exist"
        raise MachineError(
            f"the home folder {home} {why}, and Ray, vLLM and Hugging Face keep files there: set HOME to a "
            "writable folder"
        )
    temporary = tempfile.gettempdir()
    if not temporary.isascii():
        raise MachineError(
            f"TMPDIR ({temporary}) has characters beyond ASCII, which Ray does not accept: set it to another folder"
        )
    too_long = len(temporary) + len(RAYS_PART) - LONGEST_SOCKET
    if too_long > 0:
        raise MachineError(
            f"TMPDIR ({temporary}) is {too_long} characters too long for Ray's sockets: set it to a folder with a "
            "shorter path"
        )
    check_gpus()


def can_be_written(folder: Path) -> bool:
    """Return whether a file can be created in a folder, by creating a temporary one.

    Permissions are not enough to tell, for example in `/proc`.
    """
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def start_ray(address: str = "local", **options: Any) -> None:
    """Start Ray on this machine, or join the cluster at `address`, and make SIGTERM end the process as Ctrl-C does.

    Args:
        address: `local`, or the address of a running cluster as in `ray.init`.
        options: further options of `ray.init`.

    Raises:
        MachineError, GpuError: as `check_machine` raises them, or nothing answers at `address`.
        RayStartError: Ray did not start in time, twice.
        ConnectionError: the server at `address` is not a Ray cluster.
    """
    if address == "local":
        check_machine()
        options = {"num_gpus": _count_usable_gpus()} | options
    else:
        _check_answers(address)
    silence_retries()
    try:
        _init(address, options)
    except RayStartError as error:
        logger.warning("%s; trying again", error)
        _init(address, options)
    # Ray sets its own handler, which aborts the process and prints a stack trace.
    signal.signal(signal.SIGTERM, _interrupt)


def _init(address: str, options: Mapping[str, Any]) -> None:
    import ray

    try:
        ray.init(address=address, include_dashboard=False, **options)
    except Exception as error:  # Ray raises a plain Exception
        if TOO_SLOW not in str(error):
            raise
        raise RayStartError(
            "Ray did not start on this machine within its 30 seconds: other processes take its cores or its memory; "
            "end them, and start the same command again"
        ) from None


def _count_usable_gpus() -> int:
    """Return the number of GPUs that torch can use. Ray would count all GPUs that the driver reports."""
    import torch

    return torch.cuda.device_count()


def _check_answers(address: str) -> None:
    """Raise `MachineError` if nothing answers at a cluster's `HOST:PORT`, because Ray would retry for many minutes."""
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
    """Interrupt the main thread like Ctrl-C, even if a shell started the process with Ctrl-C ignored."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        raise KeyboardInterrupt
    signal.raise_signal(signal.SIGINT)
