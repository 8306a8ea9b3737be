"""The folder `outputs/<run>` of a local run's results, and the link `outputs/latest` to the newest one."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

LATEST = "latest"


@contextmanager
def new_run(outputs: Path, began: datetime, suffix: str) -> Iterator[tuple[Path, Path]]:
    """Publish the folder of a run, named by its start and a suffix: complete, or not at all.

    Args:
        outputs: the folder of all runs.
        began: the run's start.
        suffix: what distinguishes runs that began in the same second, such as digits of the report's digest.

    Yields:
        The folder to fill, and where it will be once the block has ended; `latest` is then a link to it. A block that
        fails leaves neither, and the link as it was.

    Raises:
        FileExistsError: what is called `latest` there is no link.
    """
    outputs.mkdir(parents=True, exist_ok=True)
    latest = outputs / LATEST
    if latest.exists() and not latest.is_symlink():
        raise FileExistsError(f"{latest} is to be a link to the newest run, and is none: move it away")
    final = outputs / f"{began:%Y%m%d-%H%M%S}-{suffix}"
    # Not `durable.whole`: a block that fails leaves nothing behind, and two processes may publish the same run at once.
    partial = outputs / f".{final.name}-{os.getpid()}"
    partial.mkdir()
    try:
        yield partial, final
        if final.exists():  # this very run, published once more
            shutil.rmtree(final)
        partial.rename(final)
    except BaseException:
        shutil.rmtree(partial)
        raise
    link = outputs / f".{LATEST}-{os.getpid()}"
    link.unlink(missing_ok=True)
    link.symlink_to(final.name)
    link.replace(latest)
