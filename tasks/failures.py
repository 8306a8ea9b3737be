"""Which failures are the infrastructure's, and which are the user's.

A retry of the same work may get past the former. A user's mistake, and a defect of this project, come back with every
attempt.
"""

from __future__ import annotations

import errno

PASSING = frozenset(
    {
        errno.EAGAIN,
        errno.EBUSY,
        errno.EDQUOT,
        errno.EHOSTUNREACH,
        errno.EIO,
        errno.ENETDOWN,
        errno.ENETUNREACH,
        errno.ENOBUFS,
        errno.ENOMEM,
        errno.ENOSPC,
        getattr(errno, "EREMOTEIO", errno.EIO),  # Linux's
        errno.ESTALE,
    }
)
"""Errors of the system that another machine, or a later moment, may not have: disk, memory, network, remote storage.

What a busy S3 answers, 500 and 503, s3fs gives as `EREMOTEIO` and `EBUSY`.
"""


OTHERS = frozenset(
    {
        "aiohttp.client_exceptions.ClientConnectionError",
        "botocore.exceptions.ConnectionError",
        "botocore.exceptions.HTTPClientError",
        "flytekit.exceptions.system.FlyteDownloadDataException",
        "flytekit.exceptions.system.FlyteUploadDataException",
        "ray.exceptions.RayError",
        "requests.exceptions.ConnectionError",
        "torch.distributed.DistError",
    }
)
"""Errors of libraries, which are not loaded for their sake."""
TASK_ERROR = "ray.exceptions.RayTaskError"
"""The one error of Ray that is not Ray's: what an actor's own code raised, in `cause`."""


class MistakeError(ValueError):
    """Something that the user gave cannot be used: its sentence is all that there is to say, without a traceback."""


class InfrastructureError(RuntimeError):
    """Something that the work runs on failed: an engine, an actor, a learner rank."""


def one_line(error: BaseException | str, limit: int = 300) -> str:
    """Return the message of `error` in one line of at most `limit` characters."""
    return " ".join(str(error).split())[:limit]


def names_of_kinds(error: BaseException) -> frozenset[str]:
    """Return the full names of the classes of `error`, so that a library need not be loaded to know its errors."""
    return frozenset(f"{kind.__module__}.{kind.__qualname__}" for kind in type(error).__mro__)


def mistake_in(error: BaseException) -> MistakeError | None:
    """`error`, or what it was raised from, where that is a mistake of the user."""
    inner: BaseException | None = error
    while inner is not None and not isinstance(inner, MistakeError):
        inner = inner.__cause__
    return inner


def cause_in_infrastructure(error: BaseException) -> BaseException | None:
    """`error`, one of its group, or what it was raised from, whichever is first the infrastructure's; None: none is."""
    kinds = names_of_kinds(error)
    if TASK_ERROR not in kinds and kinds & OTHERS:
        return error
    if isinstance(error, InfrastructureError | ConnectionError | TimeoutError | MemoryError):
        return error
    if isinstance(error, OSError) and error.errno in PASSING:
        return error
    for inner in (*getattr(error, "exceptions", ()), getattr(error, "cause", None), error.__cause__):
        if isinstance(inner, BaseException) and (found := cause_in_infrastructure(inner)):
            return found
    return None
