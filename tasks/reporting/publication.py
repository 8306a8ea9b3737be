"""Publishes the results of a local run in `outputs/<run>`, and links `outputs/latest` to the newest run."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

LATEST = "latest"


@contextmanager
def publish_run(outputs: Path, began: datetime, suffix: str) -> Iterator[tuple[Path, Path]]:
    """Publish the folder of a run atomically. Its name is the start time of the run and a suffix.

    Args:
        outputs: the folder of all runs.
        began: start time of the run.
        suffix: distinguishes runs that started in the same second, such as digits of the report's digest.

    Yields:
        The folder to fill, and its final path once the block has ended. `latest` then links to it. If the block fails,
        the folder is removed and the link is unchanged.

    Raises:
        FileExistsError: `latest` exists in the folder and is not a link.
    """
    outputs.mkdir(parents=True, exist_ok=True)
    latest = outputs / LATEST
    if latest.exists() and not latest.is_symlink():
        raise FileExistsError(f"{latest} must be a link to the newest run, but is not a link: move it away")
    final = outputs / f"{began:%Y%m%d-%H%M%S}-{suffix}"
    # Not `durable.whole`: a block that fails leaves nothing behind, and two processes may publish the same run at once.
    partial = outputs / f".{final.name}-{os.getpid()}"
    partial.mkdir()
    try:
        yield partial, final
        if final.exists():  # the same run, published again
            shutil.rmtree(final)
        partial.rename(final)
    except BaseException:
        shutil.rmtree(partial)
        raise
    link = outputs / f".{LATEST}-{os.getpid()}"
    link.unlink(missing_ok=True)
    link.symlink_to(final.name)
    link.replace(latest)
