"""Resolves outputs of earlier executions on a backend from the addresses that Flyte's console shows."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tasks.failures import MistakeError

if TYPE_CHECKING:
    from flytekit.remote import FlyteRemote

FORM = "flyte://v1/PROJECT/DOMAIN/EXECUTION/NODE/o/OUTPUT"
"""Format of an output's address in the console. An input has `i` instead of `o`. An attempt may follow the node."""

_ADDRESS = re.compile(r"flyte://v1(/[^/]+){4}(/\d+)?/[io]/[^/]+")


class AddressError(MistakeError):
    """Raised if the address of an output is malformed, unknown to the backend, or of the wrong kind for the option."""


def is_output(value: object) -> bool:
    """Return whether a value from the command line is the address of an output and not a path."""
    return isinstance(value, str) and value.startswith("flyte://v1/")


def resolve_output(address: str, remote: FlyteRemote, *, folder: bool) -> str:
    """Return the address on blob storage of the file or folder in an execution's output.

    Raises:
        AddressError: the address is malformed, the backend has no such output, or the output is neither a file nor, if
            `folder` is true, a folder.
    """
    from flytekit.exceptions.user import FlyteEntityNotExistException, FlyteInvalidInputException
    from flytekit.models.core.types import BlobType
    from flytekit.models.literals import Literal

    if not _ADDRESS.fullmatch(address):
        raise AddressError(f"{address}: an output's address is {FORM}, as the console shows it")
    try:
        answer = remote.client.get_data(address)
    except (FlyteEntityNotExistException, FlyteInvalidInputException) as error:
        backend = remote.config.platform.endpoint
        raise AddressError(f"{address}: {backend} has no such output{_format_details(error)}") from None
    scalar = Literal.from_flyte_idl(answer.literal).scalar
    blob = scalar.blob if scalar else None
    wanted = BlobType.BlobDimensionality.MULTIPART if folder else BlobType.BlobDimensionality.SINGLE
    if blob is None or blob.metadata.type.dimensionality != wanted:
        raise AddressError(f"{address} is not a {'folder' if folder else 'file'}, which is what this option takes")
    return str(blob.uri)


def _format_details(error: Exception) -> str:
    """Return a colon and the backend's details on an error, or an empty text."""
    details = getattr(error.__cause__, "details", None)
    return f": {details()}" if callable(details) and details() else ""
