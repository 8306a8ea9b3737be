"""The resources that a stage's pods request on a cluster: as options, and as flytekit takes them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from pydantic import Field

from tasks.config import Config


class PodConfig(Config):
    """The resources of a pod on a cluster, both request and limit. Local runs ignore them."""

    cpu: int = Field(2, gt=0)
    """CPU cores."""
    memory_gib: int = Field(8, gt=0)
    """Memory in GiB."""
    gpus: int | None = Field(None, ge=0)
    """Number of GPUs. null: those that the stage's engine spans where the recipe's `cluster` has GPUs, otherwise 0."""
    accelerator: str | None = None
    """Name of the GPU as the cluster labels its nodes, such as `nvidia-h100`. null: any."""
    disk_gib: int | None = Field(None, gt=0)
    """Ephemeral storage in GiB. null: the cluster's default."""
    shared_memory_gib: int | None = Field(None, gt=0)
    """Size of `/dev/shm`, through which the processes of an engine or a learner exchange tensors. null: the cluster's
    default, often 64 MiB."""
    timeout_minutes: int | None = Field(None, gt=0)
    """Minutes after which an attempt is ended and counts as failed. null: no limit."""
    interruptible: bool = False
    """Allow machines that the cloud may take away; Flyte then retries the stage elsewhere."""

    def with_gpus(self, gpus: int) -> PodConfig:
        """Return the pod with `gpus` GPUs, or unchanged where its own option sets their number."""
        return self if self.gpus is not None else self.model_copy(update={"gpus": gpus})


def resources(pod: PodConfig) -> Any:
    """Return the pod's request as flytekit's `Resources`."""
    from flytekit import Resources

    return Resources(
        cpu=str(pod.cpu),
        mem=f"{pod.memory_gib}Gi",
        gpu=str(pod.gpus) if pod.gpus else None,
        ephemeral_storage=f"{pod.disk_gib}Gi" if pod.disk_gib else None,
    )


def overrides(pod: PodConfig) -> dict[str, Any]:
    """Return the arguments of flytekit's `with_overrides` that give a node this pod."""
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
