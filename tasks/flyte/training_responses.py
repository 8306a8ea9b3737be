"""Downloads the responses of a training run on blob storage by links that the backend signs: `fetch NAME responses`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from tasks.failures import one_line
from tasks.flyte.executions import Execution, ExecutionError, Output, download
from tasks.storage.locations import RESPONSE_LIST

if TYPE_CHECKING:
    from flytekit.remote import FlyteRemote

RESPONSES = "responses"
"""The name that `fetch` takes. Responses are not an output, and are only downloaded if they are named."""


def fetch_responses(
    remote: FlyteRemote, execution: Execution, folder: Path, steps: tuple[int, int] | None
) -> Iterator[Path]:
    """Download the files of responses to `folder`, and yield each. Files that are there are not downloaded again.

    Args:
        remote: the backend.
        execution: an execution with the output `summary`, which has the address.
        folder: the folder to write.
        steps: the first and the last step that are wanted. Optional. If None, all files are downloaded.

    Raises:
        ExecutionError: the run kept no responses on blob storage, has none of these steps, or its storage is not one
            for which the backend signs links.
    """
    address = _find_address(remote, execution)
    listed: dict[str, list[int]] = json.loads(
        _read_text(remote, f"{address.rpartition('/')[0]}/{RESPONSE_LIST}", address)
    )
    names = [name for name, (first, last) in sorted(listed.items()) if steps is None or _overlap(steps, (first, last))]
    if not names:
        known = f"{min(first for first, _ in listed.values())} to {max(last for _, last in listed.values())}"
        raise ExecutionError(f"--step: the run has no responses of these steps, but of {known if listed else 'none'}")
    for name in names:
        target = folder / name
        if not target.exists():
            _download(remote, f"{address}/{name}", target, address)
        yield target


def _find_address(remote: FlyteRemote, execution: Execution) -> str:
    """Return the address of the folder of responses, from the summary of the execution."""
    if "summary" not in execution.outputs:
        raise ExecutionError(f"{RESPONSES}: the execution has no output `summary`, which has their address")
    summary = json.loads(_read_text(remote, execution.outputs["summary"].address, ""))
    address = str(summary.get(RESPONSES) or "")
    if "://" not in address:
        where = f", but in {address} of its machine" if address else ": `keep_rollouts` was false, or other code ran"
        raise ExecutionError(f"{RESPONSES}: this run has none on blob storage{where}")
    return address


def _read_text(remote: FlyteRemote, location: str, address: str) -> str:
    with TemporaryDirectory() as scratch:
        target = Path(scratch, "file")
        _download(remote, location, target, address)
        return target.read_text()


def _download(remote: FlyteRemote, location: str, target: Path, address: str) -> None:
    from flytekit.exceptions.base import FlyteException

    try:
        download(remote, Output(target.name, location, False, target.name), target)
    except FlyteException as error:
        raise ExecutionError(
            f"{RESPONSES}: the backend signs no link for {location} ({one_line(error, 120)}): with credentials of the "
            f"storage, copy {address or location} into the folder {RESPONSES} of the run in outputs/"
        ) from None


def _overlap(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return one[0] <= other[1] and other[0] <= one[1]
