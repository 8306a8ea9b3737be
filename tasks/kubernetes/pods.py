"""Defines the options for the resources that a stage's pods request, and converts them for flytekit."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self

from pydantic import Field, model_validator

from tasks.config.fields import Arguments
from tasks.config.loading import Config
from tasks.kubernetes.pod_templates import check_template_option, extract_pod_spec, mounts_shared_memory

if TYPE_CHECKING:
    from flytekit import PodTemplate


CORES_A_GPU, GIB_A_GPU = 8, 64
"""Default cores and memory of a pod per GPU."""

ACCELERATOR = r"^[^=\s]+(=[^=\s]+)?$"
"""Format of a pod's accelerator: NAME or LABEL=NAME."""


class PodConfig(Config):
    """The resources of a pod on a cluster, both request and limit. Local runs ignore them."""

    cpu: int | None = Field(None, gt=0)
    """Optional. Number of CPU cores. By default, 8 per GPU of the pod, or 2 without GPUs."""
    memory_gib: int | None = Field(None, gt=0)
    """Optional. Memory in GiB. By default, 64 per GPU of the pod, or 8 without GPUs."""
    gpus: int | None = Field(None, ge=0)
    """Optional. Number of GPUs. By default, the number that the stage's engine spans if the recipe's `cluster` has
    GPUs, otherwise 0."""
    accelerator: str | None = Field(None, pattern=ACCELERATOR)
    """Optional. GPU type that the pod needs. It is either the value of the node label in Flyte's configuration, such as
    `nvidia-h100`, or LABEL=NAME, such as `cloud.google.com/gke-accelerator=nvidia-h100-80gb`. The machines of a Ray
    cluster need the second form, because Flyte adds its label only to a task's own pod. By default, any GPU."""
    disk_gib: int | None = Field(None, gt=0)
    """Optional. Ephemeral storage in GiB, excluding volumes. By default, for pods that load the model, the size of the
    models, checkpoints and policies that they store plus 20 GiB, or plus 5 GiB in a recipe without GPUs, if the size of
    the model is known; otherwise the cluster's default. `plan` prints it. A value that is too small for a run is
    refused."""
    shared_memory_gib: int | None = Field(None, gt=0)
    """Optional. Size of `/dev/shm` in GiB, which processes use to exchange tensors and weights. Its content counts
    towards the pod's memory. By default, for pods with engines or ranks, 1 GiB plus 1 GiB per GPU, or the size that the
    weights need; otherwise the cluster's default, often 64 MiB."""
    timeout_minutes: int | None = Field(None, gt=0)
    """Optional. Time limit of an attempt in minutes, after which the attempt fails. By default, there is no limit."""
    interruptible: bool = False
    """Allow preemptible (spot) machines. If a machine is preempted, Flyte retries the stage on another one."""
    template: str | Arguments | None = None
    """Optional. Kubernetes pod template: the name of a template in the cluster, or a pod spec with Kubernetes' own
    names (`volumes`, `nodeSelector`, `tolerations`, `serviceAccountName`) plus `metadata` with `labels` and
    `annotations`. The stage runs in its container `primary`, which may have `env`, `volumeMounts` and additional
    `resources`, such as RDMA devices (`docs/clusters.md`). By default, the cluster's default template."""

    @model_validator(mode="after")
    def _check_template(self) -> Self:
        check_template_option(self.template)
        has_volume = isinstance(self.template, dict) and mounts_shared_memory(self.template)
        if has_volume and self.shared_memory_gib is not None:
            raise ValueError("template mounts a volume on /dev/shm, and shared_memory_gib another: leave one out")
        return self

    @property
    def node_label(self) -> tuple[str, str] | None:
        """Return the label that a machine must have, and its value, if `accelerator` contains both."""
        label, given, value = (self.accelerator or "").partition("=")
        return (label, value) if given else None

    def fill_defaults(self, gpus: int, **defaults: int | None) -> PodConfig:
        """Return the pod with defaults filled in for a stage with engines or ranks.

        Args:
            gpus: number of GPUs if the option is not set.
            defaults: stage-specific defaults that override the general ones, by name.
        """
        gpus = gpus if self.gpus is None else self.gpus
        amounts = {
            "gpus": gpus,
            "cpu": CORES_A_GPU * gpus or 2,
            "memory_gib": GIB_A_GPU * gpus or 8,
            "shared_memory_gib": 1 + gpus,
            **defaults,
        }
        if isinstance(self.template, str) or (self.template and mounts_shared_memory(self.template)):
            amounts.pop("shared_memory_gib", None)  # it would conflict with the template's volume
        return self.model_copy(update={name: amount for name, amount in amounts.items() if getattr(self, name) is None})


def resources(pod: PodConfig) -> Any:
    """Return the pod's request as flytekit's `Resources`. Unset options default to a pod without GPUs."""
    from flytekit import Resources

    pod = pod.fill_defaults(0)

    return Resources(
        cpu=str(pod.cpu),
        mem=f"{pod.memory_gib}Gi",
        gpu=str(pod.gpus) if pod.gpus else None,
        ephemeral_storage=f"{pod.disk_gib}Gi" if pod.disk_gib else None,
    )


def pod_template(pod: PodConfig, *, shared_memory: bool = False) -> PodTemplate | None:
    """Return the settings of `pod` other than amounts as flytekit's inline pod template, or None if there are none.

    Its pod spec is a mapping (`tasks.flyte.patches` writes it into Flyte's message). With `shared_memory`, it includes
    the volume on `/dev/shm`, for pods to which Flyte does not add one.
    """
    from flytekit import PodTemplate

    template = pod.template if isinstance(pod.template, dict) else {}
    size = pod.shared_memory_gib if shared_memory else None
    if not template and pod.node_label is None and size is None:
        return None
    metadata = template.get("metadata", {})
    return PodTemplate(
        pod_spec=extract_pod_spec(template, node_label=pod.node_label, shared_memory_gib=size),
        labels=metadata.get("labels"),
        annotations=metadata.get("annotations"),
    )


def overrides(pod: PodConfig, *, inline: bool = True) -> dict[str, Any]:
    """Return the arguments of flytekit's `with_overrides` that set a node's pod.

    Without `inline`, settings that a Ray cluster has in its own message (`RayJobConfig`) are left out.
    """
    from flytekit.extras.accelerators import GPUAccelerator

    asked = resources(pod)
    is_named = pod.accelerator is not None and pod.node_label is None
    has_shared_memory = inline and pod.shared_memory_gib is not None
    return {
        "requests": asked,
        "limits": asked,
        "accelerator": GPUAccelerator(pod.accelerator) if is_named else None,
        "shared_memory": f"{pod.shared_memory_gib}Gi" if has_shared_memory else None,
        "timeout": timedelta(minutes=pod.timeout_minutes) if pod.timeout_minutes else None,
        "interruptible": pod.interruptible,
        "pod_template": pod_template(pod) if inline else None,
        "pod_template_name": pod.template if isinstance(pod.template, str) else None,
    }
