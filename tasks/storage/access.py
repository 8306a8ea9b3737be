"""Checks before training that a run can be stored on blob storage, instead of failing at the first checkpoint."""

from __future__ import annotations

import errno
import uuid
from typing import TYPE_CHECKING

from tasks.failures import MistakeError, list_class_names, one_line

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

REFUSALS = frozenset({errno.EINVAL, errno.EPERM, errno.ENAMETOOLONG})
"""Error numbers that s3fs reports for a wrong address or wrong credentials. Retries do not help."""

STATUSES = frozenset({400, 401, 403, 404})
"""HTTP statuses that mean that a server permanently refuses the address or the credentials."""

OTHERS = frozenset(
    {
        "botocore.exceptions.NoCredentialsError",
        "botocore.exceptions.ParamValidationError",
        "botocore.exceptions.PartialCredentialsError",
        "google.auth.exceptions.DefaultCredentialsError",
    }
)
"""Full names of the libraries' errors for wrong credentials, as text, so that the libraries are not imported."""


class AccessError(MistakeError):
    """The storage refuses access, because its address or the credentials are wrong. Retries do not help."""


def check_access(filesystem: AbstractFileSystem, address: str) -> None:
    """Write a small file below `address`, find it in the listing, read it and delete it.

    A bucket that does not exist is listed as an empty one. Only writing distinguishes a mistyped address from a run
    that has not started.

    Raises:
        AccessError: the storage refuses one of the four steps. The message has the address, the step and the storage's
            answer.
        OSError: the file is not listed, or has other content.
        Exception: an error of the file system if the storage does not answer.
    """
    path, content = f"{address}/probe.{uuid.uuid4().hex[:8]}", b"rlvr"
    doing = "written to"
    try:
        filesystem.pipe_file(path, content)
        doing = "listed"
        filesystem.invalidate_cache()
        listed = filesystem.find(filesystem._strip_protocol(address))
        doing = "read"
        read = filesystem.cat_file(path)
        doing = "deleted from"
        filesystem.rm_file(path)
    except Exception as error:  # fsspec's file systems have no common error type
        if not is_refusal(error):
            raise
        raise AccessError(
            f"the run cannot be stored at {address}, which cannot be {doing}: {answer(error)}. RLVR_RUNS is the "
            "location of runs; without it, they are in the bucket of the raw outputs"
        ) from error
    if read != content or filesystem._strip_protocol(path) not in listed:
        raise OSError(errno.EIO, f"{address} does not return what has just been written there")


def is_refusal(error: Exception) -> bool:
    """Return whether a storage error means that the address or the credentials are wrong."""
    if isinstance(error, FileNotFoundError | PermissionError | ValueError):  # ValueError: an invalid address
        return True
    kinds = list_class_names(error)
    status = getattr(error, "status_code", getattr(error, "code", None))  # of Azure or gcsfs
    forbidden = isinstance(error, OSError) and str(error).startswith("Forbidden")  # gcsfs, without a number
    return bool(kinds & OTHERS) or status in STATUSES or getattr(error, "errno", None) in REFUSALS or forbidden


def answer(error: Exception) -> str:
    """Return the storage's message in one line, after its error code if there is one."""
    code = getattr(error.__cause__, "response", {}).get("Error", {}).get("Code")
    message = one_line(error)
    return f"{code}: {message}" if code else message
