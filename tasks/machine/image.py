"""The container image that a stage runs in: its name, and whether its packages are for CUDA or for CPUs."""

from __future__ import annotations

import os
import platform

from tasks.failures import MistakeError

NAME = "FLYTE_INTERNAL_IMAGE"
"""Environment variable: the name of a container's image. `images/Dockerfile` sets it, as Flyte's own images do."""

ACCELERATOR = "RLVR_ACCELERATOR"
"""Environment variable: the set of images that a container's is one of, `cuda` or `none`. `images/Dockerfile` sets it.
An image without the variable may be of any kind."""

IN_A_POD = "FLYTE_INTERNAL_EXECUTION_ID"
"""Environment variable that Flyte gives to every pod."""

BUILD_FOR = {
    "cuda": "make images, and make register, without ACCELERATOR=none",
    "none": "make images ACCELERATOR=none, and make register ACCELERATOR=none",
}
"""Commands that build and register the images of a set."""


class ImageError(MistakeError):
    """The image of a stage has no packages for the machine that the stage runs on."""


def image() -> str:
    """Return the name of the container image that this process runs in, or a description of another environment."""
    if name := os.environ.get(NAME):
        return name
    where = f"an image that does not say its name in {NAME}" if IN_A_POD in os.environ else "this environment"
    return f"{where}, Python {platform.python_version()}"


def accelerator() -> str | None:
    """Return the set of images that this pod's is one of, `cuda` or `none`; None: it does not say, or this is no pod.

    Raises:
        ImageError: the variable has another value.
    """
    given = os.environ.get(ACCELERATOR)
    if not given or IN_A_POD not in os.environ:
        return None
    if given not in BUILD_FOR:
        raise ImageError(f"{ACCELERATOR} of image {image()} is {given!r}, and must be cuda or none, or be left out")
    return given


def check_engine_image(gpus: float) -> None:
    """Check that the packages of this pod's image can run an engine here.

    Args:
        gpus: those of the machines on which the engine is to run, whether or not this image has packages for them.

    Raises:
        ImageError: it is of the other set.
    """
    kind = accelerator()
    if kind == "cuda" and not gpus:
        raise ImageError(
            f"image {image()} has engines for GPUs ({ACCELERATOR}=cuda), and this pod has none: give it one, or build "
            f"and register images without CUDA: {BUILD_FOR['none']}"
        )
    if kind == "none" and gpus:
        raise ImageError(
            f"image {image()} has engines for CPUs ({ACCELERATOR}=none), and this pod has {gpus:g} GPUs: build and "
            f"register images with CUDA: {BUILD_FOR['cuda']}"
        )
