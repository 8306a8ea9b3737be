"""Counts the CPU cores and GPUs of this process and of the Ray cluster, which a stage uses while it runs."""

from __future__ import annotations

import asyncio
import importlib.util
import os
from pathlib import Path
from typing import NamedTuple

from tasks.machine.groups import RESOURCES

QUOTA = Path("/sys/fs/cgroup/cpu.max")
"""File with a container's CPU limit: `QUOTA PERIOD` (microseconds of CPU time in every period) or `max PERIOD`."""


class Machine(NamedTuple):
    """Number of CPU cores and of GPUs that a stage can use. Cores may be fractional."""

    cores: float
    gpus: float = 0.0


def process_cores() -> Machine:
    """Return the CPU cores that this process may use in its container, and 0 GPUs. Does not import torch."""
    cores = float(len(os.sched_getaffinity(0)))
    if QUOTA.is_file():
        quota, period = QUOTA.read_text().split()
        cores = cores if quota == "max" else min(cores, int(quota) / int(period))
    return Machine(cores)


def count_pod_gpus() -> int:
    """Return the number of GPUs of this process's machine or container, even if torch is built for CPUs."""
    return len([device for device in Path("/dev").glob("nvidia*") if device.name[6:].isdigit()]) or int(has_gpu())


def has_gpu() -> bool:
    """Return whether torch sees an accelerator. False if torch is not installed, as in the base install."""
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return torch.accelerator.is_available()


def process_resources() -> Machine:
    """Return the CPU cores and the GPUs that this process may use. Imports torch."""
    import torch

    return Machine(process_cores().cores, float(torch.cuda.device_count()))


def count_ray_gpus() -> float:
    """Return the number of GPUs of the Ray cluster, even if torch is built for CPUs."""
    import ray

    return float(ray.cluster_resources().get("GPU", 0.0))


def read_ray_resources() -> Machine:
    """Return the CPU cores and GPUs of all nodes of the Ray cluster together. 0 GPUs if torch cannot use them.

    Ray counts the GPUs that the driver reports. On a workstation with torch's CPU build, training cannot use them.
    """
    import ray
    import torch

    resources = ray.cluster_resources()
    return Machine(resources.get("CPU", 0.0), resources.get("GPU", 0.0) if torch.backends.cuda.is_built() else 0.0)


async def describe_free_resources() -> str:
    """Return the free and the total CPUs and GPUs of the Ray cluster, as text for a log message.

    If its machines are in groups, the text has the number of machines in each, because a process waits for a machine
    of its own group. Ray is called in threads, because an answer takes a minute if its head node is unreachable.
    """
    import ray

    free, total = await asyncio.gather(
        asyncio.to_thread(ray.available_resources), asyncio.to_thread(ray.cluster_resources)
    )
    text = " and ".join(f"{free.get(kind, 0):g} of {total.get(kind, 0):g} {kind}s are free" for kind in ("CPU", "GPU"))
    groups = {group: total.get(kind, 0) for group, kind in RESOURCES.items()}
    if any(groups.values()):
        text += "; machines by group: " + ", ".join(f"{group} {number:g}" for group, number in groups.items())
    return text
