"""Classes of failures: the infrastructure's, which a retry may get past, and the user's mistakes.

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
"""System error numbers that another machine or a later attempt may not meet: disk, memory, network, remote storage.

What a busy S3 answers, 500 and 503, s3fs gives as `EREMOTEIO` and `EBUSY`.
"""


OTHERS = frozenset(
    {
        "aiohttp.client_exceptions.ClientConnectionError",
        "botocore.exceptions.ConnectionError",
        "botocore.exceptions.HTTPClientError",
        "flytekit.exceptions.system.FlyteDownloadDataException",
        "flytekit.exceptions.system.FlyteUploadDataException",
        "httpx.TransportError",
        "ray.exceptions.RayError",
        "requests.exceptions.ConnectionError",
        "requests.exceptions.Timeout",
        "torch.distributed.DistError",
    }
)
"""Full names of libraries' errors that are the infrastructure's; names, so that the libraries need not be loaded."""
TASK_ERROR = "ray.exceptions.RayTaskError"
"""Full name of the Ray error that wraps an exception of an actor's own code, and is therefore not Ray's failure."""


class MistakeError(ValueError):
    """A mistake of the user: the message is a complete sentence, and is printed without a traceback."""


class InfrastructureError(RuntimeError):
    """A failure of what the work runs on: an engine, an actor, a learner rank. Flyte retries it."""


def one_line(error: BaseException | str, limit: int = 300) -> str:
    """Return the message of `error` in one line of at most `limit` characters."""
    return " ".join(str(error).split())[:limit]


def names_of_kinds(error: BaseException) -> frozenset[str]:
    """Return the full names of the classes of `error`, so that a library need not be loaded to know its errors."""
    return frozenset(f"{kind.__module__}.{kind.__qualname__}" for kind in type(error).__mro__)


def mistake_in(error: BaseException) -> MistakeError | None:
    """Return the user's mistake in the chain of causes of `error`, itself included; None where there is none."""
    inner: BaseException | None = error
    while inner is not None and not isinstance(inner, MistakeError):
        inner = inner.__cause__
    return inner


def cause_in_infrastructure(error: BaseException) -> BaseException | None:
    """Return the first failure of the infrastructure among `error`, its group and its causes; None: there is none."""
    kinds = names_of_kinds(error)
    if TASK_ERROR not in kinds and kinds & OTHERS:
        return error
    if isinstance(error, InfrastructureError | ConnectionError | TimeoutError | MemoryError):
        return error
    if isinstance(error, OSError) and error.errno in PASSING:
        return error
    for inner in (*getattr(error, "exceptions", ()), getattr(error, "cause", None), error.__cause__):
        if isinstance(inner, BaseException) and (cause := cause_in_infrastructure(inner)):
            return cause
    return None
