"""Whether a run can be kept at an address on blob storage: asked before any training, not at the first checkpoint."""

from __future__ import annotations

import errno
import uuid
from typing import TYPE_CHECKING

from tasks.failures import MistakeError, names_of_kinds

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

REFUSALS = frozenset({errno.EINVAL, errno.EPERM, errno.ENAMETOOLONG})
"""What s3fs makes of an answer that says what is wrong with the request itself."""

STATUSES = frozenset({400, 401, 403, 404})
"""What a server answers, by HTTP, to an address or to credentials that it will never take."""

OTHERS = frozenset(
    {
        "botocore.exceptions.NoCredentialsError",
        "botocore.exceptions.ParamValidationError",
        "botocore.exceptions.PartialCredentialsError",
        "google.auth.exceptions.DefaultCredentialsError",
    }
)
"""Errors of libraries, which are not loaded for their sake."""


class AccessError(MistakeError):
    """The storage answers, and no: its address or the credentials are wrong, and no retry gets past that."""


def check_access(filesystem: AbstractFileSystem, place: str) -> None:
    """Write a small file below `place`, find it in the listing, read it back and delete it.

    A bucket that does not exist lists as an empty one, so that only writing tells a mistyped address from a run that
    has not begun.

    Raises:
        AccessError: names the address, what was tried, and the storage's answer.
        Exception: the file system's own, where the storage does not answer.
    """
    path, content = f"{place}/probe.{uuid.uuid4().hex[:8]}", b"rlvr"
    doing = "written to"
    try:
        filesystem.pipe_file(path, content)
        doing = "listed"
        filesystem.invalidate_cache()
        listed = filesystem.find(filesystem._strip_protocol(place))
        doing = "read"
        read = filesystem.cat_file(path)
        doing = "deleted from"
        filesystem.rm_file(path)
    except Exception as error:  # fsspec's file systems share no kind of error
        if not _is_refusal(error):
            raise
        raise AccessError(
            f"the run cannot be kept at {place}, which cannot be {doing}: {_answer(error)}. RLVR_RUNS says where runs "
            "are kept; without it, that is the bucket of the raw outputs"
        ) from error
    if read != content or filesystem._strip_protocol(path) not in listed:
        raise OSError(errno.EIO, f"{place} does not show what was written there a moment ago")


def _is_refusal(error: Exception) -> bool:
    if isinstance(error, FileNotFoundError | PermissionError | ValueError):  # the last one: an address that is none
        return True
    kinds = names_of_kinds(error)
    status = getattr(error, "status_code", getattr(error, "code", None))  # azure's, or gcsfs's
    forbidden = isinstance(error, OSError) and str(error).startswith("Forbidden")  # gcsfs, without a number
    return bool(kinds & OTHERS) or status in STATUSES or getattr(error, "errno", None) in REFUSALS or forbidden


def _answer(error: Exception) -> str:
    """The storage's own words, with its short name of the error where there is one."""
    code = getattr(error.__cause__, "response", {}).get("Error", {}).get("Code")
    words = " ".join(str(error).split())
    return f"{code}: {words}" if code else words
