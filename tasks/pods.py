"""What the pods of a stage ask a cluster for, as users write it, and as Flyte takes it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from pydantic import Field

from tasks.config import Config


class PodConfig(Config):
    """A pod on a cluster; what is requested is the limit, too. On a machine without pods it has no part in anything."""

    cpu: int = Field(2, gt=0)
    """cores."""
    memory_gib: int = Field(8, gt=0)
    """Memory in GiB."""
    gpus: int | None = Field(None, ge=0)
    """GPUs. None: those that the stage's engine spans where the recipe's `cluster` has GPUs, otherwise none."""
    accelerator: str | None = None
    """The GPU's name as the cluster's nodes are labelled, such as `nvidia-h100`. None: any."""
    disk_gib: int | None = Field(None, gt=0)
    """Ephemeral storage in GiB. None: the cluster's default."""
    shared_memory_gib: int | None = Field(None, gt=0)
    """Size of `/dev/shm`, through which the processes of an engine or a learner exchange tensors. None: the cluster's
    default, often 64 MiB."""
    timeout_minutes: int | None = Field(None, gt=0)
    """An attempt that takes longer is ended and counts as failed. None: no limit."""
    interruptible: bool = False
    """Whether it may run on machines that can be taken away, which Flyte then retries elsewhere."""

    def with_gpus(self, gpus: int) -> PodConfig:
        """The same with so many GPUs, unless it says itself how many."""
        return self if self.gpus is not None else self.model_copy(update={"gpus": gpus})


def resources(pod: PodConfig) -> Any:
    """What the pod asks for, as flytekit's `Resources`."""
    from flytekit import Resources

    return Resources(
        cpu=str(pod.cpu),
        mem=f"{pod.memory_gib}Gi",
        gpu=str(pod.gpus) if pod.gpus else None,
        ephemeral_storage=f"{pod.disk_gib}Gi" if pod.disk_gib else None,
    )


def overrides(pod: PodConfig) -> dict[str, Any]:
    """Arguments of flytekit's `with_overrides` that give a node this pod."""
    from flytekit.extras.accelerators import GPUAccelerator

    asked = resources(pod)
    return {
        "requests": asked,
        "limits": asked,
        "accelerator": GPUAccelerator(pod.accelerator) if pod.accelerator else None,
        "shared_memory": f"{pod.shared_memory_gib}Gi" if pod.shared_memory_gib else None,
        "timeout": timedelta(minutes=pod.timeout_minutes) if pod.timeout_minutes else None,
        "interruptible": pod.interruptible,
    }
