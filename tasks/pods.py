"""The resources that a stage's pods request on a cluster: as options, and as flytekit takes them."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self

from pydantic import Field, model_validator

from tasks.config import Config
from tasks.config_fields import Arguments
from tasks.pod_templates import check_template_option, mounts_shared_memory, pod_spec

if TYPE_CHECKING:
    from flytekit import PodTemplate


CORES_A_GPU, GIB_A_GPU = 8, 64
"""Cores and memory of a pod by default, for each of its GPUs."""

ACCELERATOR = r"^[^=\s]+(=[^=\s]+)?$"
"""Form of a pod's accelerator: NAME or LABEL=NAME."""


class PodConfig(Config):
    """The resources of a pod on a cluster, both request and limit. Local runs ignore them."""

    cpu: int | None = Field(None, gt=0)
    """CPU cores. null: 8 for each GPU of the pod, 2 without GPUs."""
    memory_gib: int | None = Field(None, gt=0)
    """Memory in GiB. null: 64 for each GPU of the pod, 8 without GPUs."""
    gpus: int | None = Field(None, ge=0)
    """Number of GPUs. null: those that the stage's engine spans where the recipe's `cluster` has GPUs, otherwise 0."""
    accelerator: str | None = Field(None, pattern=ACCELERATOR)
    """GPU that the pod needs: its name as the nodes are labelled, such as `nvidia-h100`, for the label that Flyte's
    configuration knows; or LABEL=NAME, such as `cloud.google.com/gke-accelerator=nvidia-h100-80gb`. The machines of a
    Ray cluster need the second, as Flyte gives its label to a task's own pod alone. null: any."""
    disk_gib: int | None = Field(None, gt=0)
    """Ephemeral storage in GiB, of which volumes are no part. null: on pods that load the model, what they store of
    models, checkpoints and policies, and 20 more, or 5 in a recipe without GPUs, if the size of the model is known;
    otherwise the cluster's default. `plan` prints it. Less than a run needs is refused."""
    shared_memory_gib: int | None = Field(None, gt=0)
    """Size of `/dev/shm`, through which processes exchange tensors and weights; what it contains counts as the pod's
    memory. null: on pods with engines or ranks 1 GiB and 1 more for each GPU, or what the weights need; otherwise the
    cluster's default, often 64 MiB."""
    timeout_minutes: int | None = Field(None, gt=0)
    """Minutes after which an attempt is ended and counts as failed. null: no limit."""
    interruptible: bool = False
    """Allow machines that the cloud may take away; Flyte then retries the stage elsewhere."""
    template: str | Arguments | None = None
    """Kubernetes pod template of the pod: the name of one in the cluster, or a pod spec with Kubernetes' own names
    (`volumes`, `nodeSelector`, `tolerations`, `serviceAccountName`), beside which `metadata` has `labels` and
    `annotations`. The stage runs in its container `primary`, which takes `env`, `volumeMounts` and further `resources`,
    such as RDMA devices (`docs/clusters.md`). null: the cluster's default."""

    @model_validator(mode="after")
    def _template_is_known_to_kubernetes(self) -> Self:
        check_template_option(self.template)
        has_volume = isinstance(self.template, dict) and mounts_shared_memory(self.template)
        if has_volume and self.shared_memory_gib is not None:
            raise ValueError("template mounts a volume on /dev/shm, and shared_memory_gib another: leave one out")
        return self

    @property
    def node_label(self) -> tuple[str, str] | None:
        """The label that a machine must have, and its value, where `accelerator` gives both."""
        label, given, value = (self.accelerator or "").partition("=")
        return (label, value) if given else None

    def sized(self, gpus: int, **defaults: int | None) -> PodConfig:
        """Return the pod with the amounts that its options leave open, for a stage with engines or ranks.

        Args:
            gpus: number of GPUs where the option gives none.
            defaults: other defaults than those of the options, by name, if a stage knows better.
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
            amounts.pop("shared_memory_gib", None)  # the template's own volume would be in its way
        return self.model_copy(update={name: amount for name, amount in amounts.items() if getattr(self, name) is None})


def resources(pod: PodConfig) -> Any:
    """Return the pod's request as flytekit's `Resources`; what its options leave open is that of a pod without GPUs."""
    from flytekit import Resources

    pod = pod.sized(0)

    return Resources(
        cpu=str(pod.cpu),
        mem=f"{pod.memory_gib}Gi",
        gpu=str(pod.gpus) if pod.gpus else None,
        ephemeral_storage=f"{pod.disk_gib}Gi" if pod.disk_gib else None,
    )


def pod_template(pod: PodConfig, *, shared_memory: bool = False) -> PodTemplate | None:
    """Return what `pod` asks of Kubernetes beside amounts, as an inline template of flytekit's; None: nothing.

    Its pod spec is a mapping (`tasks.flyte.patches` writes it into Flyte's message). With `shared_memory` the volume on
    `/dev/shm` is part of it, where Flyte itself adds none.
    """
    from flytekit import PodTemplate

    template = pod.template if isinstance(pod.template, dict) else {}
    size = pod.shared_memory_gib if shared_memory else None
    if not template and pod.node_label is None and size is None:
        return None
    metadata = template.get("metadata", {})
    return PodTemplate(
        pod_spec=pod_spec(template, node_label=pod.node_label, shared_memory_gib=size),
        labels=metadata.get("labels"),
        annotations=metadata.get("annotations"),
    )


def overrides(pod: PodConfig, *, inline: bool = True) -> dict[str, Any]:
    """Return the arguments of flytekit's `with_overrides` that give a node this pod.

    Without `inline` those are left out that a Ray cluster has in its own message (`RayJobConfig`).
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
