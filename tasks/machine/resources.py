"""What a stage holds while it runs, which is what it costs: cores and GPUs."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import NamedTuple

QUOTA = Path("/sys/fs/cgroup/cpu.max")
"""Microseconds of CPU time in each period of so many, or `max`: the limit of a container."""


class Machine(NamedTuple):
    """Cores and GPUs that a stage could use."""

    cores: float
    gpus: float = 0.0


def without_gpus() -> Machine:
    """The cores of this process."""
    cores = float(len(os.sched_getaffinity(0)))
    if QUOTA.is_file():
        quota, period = QUOTA.read_text().split()
        cores = cores if quota == "max" else min(cores, int(quota) / int(period))
    return Machine(cores)


def has_gpu() -> bool:
    """Return whether torch sees an accelerator."""
    import torch

    return torch.accelerator.is_available()


def here() -> Machine:
    """The cores and GPUs of this process."""
    import torch

    return Machine(without_gpus().cores, float(torch.cuda.device_count()))


def of_ray() -> Machine:
    """Those of the Ray cluster, all nodes together."""
    import ray

    resources = ray.cluster_resources()
    return Machine(resources.get("CPU", 0.0), resources.get("GPU", 0.0))


async def free_resources() -> str:
    """What of the Ray cluster nobody has taken, for a sentence about who waits for it.

    Asked beside the event loop: where Ray's head is away an answer takes a minute.
    """
    import ray

    free, there = await asyncio.gather(
        asyncio.to_thread(ray.available_resources), asyncio.to_thread(ray.cluster_resources)
    )
    return " and ".join(f"{free.get(kind, 0):g} of {there.get(kind, 0):g} {kind}s are free" for kind in ("CPU", "GPU"))
