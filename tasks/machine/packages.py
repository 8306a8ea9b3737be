"""Locates the packages of this project, and names the command that installs what its stages need."""

from importlib import metadata
from pathlib import Path

PACKAGES = ("data_specs", "images", "tasks", "workflows")
"""Names of the packages."""

HOME = Path(__file__).parents[2]
"""The folder that contains them: a checkout, or the `site-packages` of an environment."""


def installed_version(distribution: str) -> str | None:
    """Return the version of an installed distribution, or None if it is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def install_command() -> str:
    """Return the command, for a message, that installs what a run needs: `make environment` in a checkout,
    otherwise the installation of the wheel for CPUs.
    """
    if (HOME / "Makefile").is_file():
        return f"make -C {HOME} environment"
    own = installed_version("rlvr-flyte")
    if own is None:  # the packages were copied, as into an image
        return "install the extra `cpu` or `gpu` of rlvr-flyte"
    wheel = f"rlvr_flyte-{own}-py3-none-any.whl"
    pins = HOME / "images"
    return (
        f"uv pip install --torch-backend=cpu -c {pins / 'lock-cpu.txt'} --overrides {pins / 'overrides-cpu.txt'} "
        f"'./{wheel}[cpu]', from the folder of the wheel"
    )
