"""Makes the environment of Inspect, which needs other versions than this project, from `images/lock-view.txt`.

    RLVR_VIEW, which images set                      used as it is
    ~/.cache/rlvr-flyte/view-<digest of the lock>    otherwise, made at the first view by uv

A folder in the user's cache serves all checkouts, and an installed wheel, and another lock has another folder.
"""

from __future__ import annotations

import hashlib
import importlib.resources
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tasks.view.responses import ViewError

VARIABLE = "RLVR_VIEW"
"""Name of the variable with the folder of an environment that contains Inspect."""
LOCK = "lock-view.txt"


def lock() -> str:
    """Return the text of the lock file of Inspect's environment."""
    return importlib.resources.files("images").joinpath(LOCK).read_text()


def environment_folder() -> Path:
    """Return the folder of Inspect's environment, which may not exist yet."""
    if named := os.environ.get(VARIABLE):
        return Path(named)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    return cache / "rlvr-flyte" / f"view-{hashlib.sha256(f'{python} {lock()}'.encode()).hexdigest()[:16]}"


def is_made(folder: Path) -> bool:
    """Return whether a folder contains Inspect's commands."""
    return (folder / "bin" / "inspect").is_file() and (folder / "bin" / "python").exists()


def ensure_environment(say: Callable[[str], None]) -> Path:
    """Return the folder of Inspect's environment, and make it if there is none.

    Args:
        say: is called with a message before packages are downloaded.

    Raises:
        ViewError: it cannot be made: uv is missing, or the network. Or the folder that `RLVR_VIEW` names has none.
    """
    folder = environment_folder()
    if is_made(folder):
        return folder
    if VARIABLE in os.environ:
        raise ViewError(f"{VARIABLE} = {folder} contains no bin/inspect: unset it, and `view` makes an environment")
    say(f"making the viewer's environment in {folder} (once, 400 MB) ...")
    make(folder)
    return folder


def make(folder: Path) -> None:
    """Make the environment in a folder, which appears when it is complete.

    Raises:
        ViewError: uv is missing, cannot reach a package index, or cannot write the folder.
    """
    uv = shutil.which("uv", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
    if uv is None:
        raise ViewError("the viewer's environment is made by uv, which is not installed: pip install uv")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".view-") as scratch:
            partial, pins = Path(scratch, "environment"), Path(scratch, LOCK)
            pins.write_text(lock())
            python = partial / "bin" / "python"
            _run([uv, "venv", "--quiet", "--relocatable", "--python", sys.executable, str(partial)])
            _run([uv, "pip", "sync", "--quiet", "--compile-bytecode", "--python", str(python), str(pins)])
            if not is_made(folder):  # another process may have made it meanwhile
                partial.rename(folder)
    except OSError as error:
        raise ViewError(f"the viewer's environment cannot be made in {folder}: {error.strerror or error}") from error


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - uv and our own lock
    if done.returncode:
        reason = " ".join(done.stderr.replace("├─▶", ":").replace("╰─▶", ":").split()) or "no reason given"
        raise ViewError(
            f"the viewer's environment cannot be made, for which a package index is needed once ({reason[:300]}): run "
            f"`view` on a machine with a network, or name an environment with inspect-ai in {VARIABLE}"
        )
