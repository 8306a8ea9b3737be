"""Identifies the container image of a stage, and checks whether it is for CUDA or for CPUs."""

from __future__ import annotations

import os
import platform

from tasks.failures import MistakeError
from tasks.machine.resources import count_pod_gpus

NAME = "FLYTE_INTERNAL_IMAGE"
"""Environment variable with the name of a container's image, set by `images/Dockerfile` as in Flyte's images."""

ACCELERATOR = "RLVR_ACCELERATOR"
"""Environment variable with the kind of a container's image, `cuda` or `none`, set by `images/Dockerfile`. Images
without it are not checked."""

IN_A_POD = "FLYTE_INTERNAL_EXECUTION_ID"
"""Environment variable that Flyte sets in every pod."""

BUILD_FOR = {
    "cuda": "make images, and make register, without ACCELERATOR=none",
    "none": "make images ACCELERATOR=none, and make register ACCELERATOR=none",
}
"""Commands that build and register images, by kind."""


class ImageError(MistakeError):
    """Engines in a pod's image do not run on the machines that a run requests or has."""


def image() -> str:
    """Return the name of the container image that this process runs in, or a description of another environment."""
    if name := os.environ.get(NAME):
        return name
    where = f"an image without its name in {NAME}" if IN_A_POD in os.environ else "this environment"
    return f"{where}, Python {platform.python_version()}"


def read_accelerator() -> str | None:
    """Return the kind of this pod's image, `cuda` or `none`, or None if it does not say or this is not a pod.

    Raises:
        ImageError: the variable has another value.
    """
    given = os.environ.get(ACCELERATOR)
    if not given or IN_A_POD not in os.environ:
        return None
    if given not in BUILD_FOR:
        raise ImageError(f"{ACCELERATOR} of image {image()} is {given!r}, and must be cuda or none, or be left out")
    return given


def check_image(gpus: float, reason: str) -> None:
    """Check that engines in this pod's image run on machines with this number of GPUs.

    Images without a kind and local runs are not checked.

    Args:
        gpus: number of GPUs.
        reason: the part of the error message with this number, such as "this pod has 0 GPUs".

    Raises:
        ImageError: the image is for machines with GPUs and `gpus` is 0, or the reverse.
    """
    kind = read_accelerator()
    if kind is None or (gpus > 0) == (kind == "cuda"):
        return
    engines, other = ("GPUs", "none") if kind == "cuda" else ("CPUs", "cuda")
    raise ImageError(
        f"image {image()} has engines for {engines} ({ACCELERATOR}={kind}), and {reason}: {BUILD_FOR[other]}"
    )


def check_image_of_pod() -> None:
    """Check that engines in this pod's image run on this pod.

    Raises:
        ImageError: the image is for machines with GPUs and the pod has none, or the reverse.
    """
    gpus = count_pod_gpus()
    check_image(gpus, f"this pod has {gpus} GPUs")
