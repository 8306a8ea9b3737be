"""Classes of failures: the infrastructure's, which a retry may get past, and the user's mistakes.

A retry of the same work may get past the former. A user's mistake, and a defect of this project, come back with every
attempt.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator

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
WRAPPERS = frozenset({"flytekit.exceptions.user.FlyteUserRuntimeException", "ray.exceptions.RayTaskError"})
"""Full names of errors that stand for another, which a task or an actor of this project raised; they are never Ray's or
Flyte's own failures."""


LONGEST = 600
"""Characters of an error's message that a person is shown; all of it is in the file with the traceback."""


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
    """Return the user's mistake among `error`, its group and its causes; None where there is none."""
    return next((cause for cause in _with_causes(error) if isinstance(cause, MistakeError)), None)


def cause_in_infrastructure(error: BaseException) -> BaseException | None:
    """Return the first failure of the infrastructure among `error`, its group and its causes; None: there is none."""
    return next((cause for cause in _with_causes(error) if _is_of_infrastructure(cause)), None)


def sentence_on(error: BaseException) -> str:
    """Return the sentence that a person reads of `error`: a mistake's own, or one with the kind of the first cause."""
    if mistake := mistake_in(error):
        return str(mistake)
    cause = cause_in_infrastructure(error) or next(_with_causes(error))
    text = one_line(cause, LONGEST)
    return text if isinstance(cause, InfrastructureError) and text else f"{type(cause).__name__}: {text}"


def _is_of_infrastructure(error: BaseException) -> bool:
    kinds = names_of_kinds(error)
    return (
        bool(kinds & OTHERS and not kinds & WRAPPERS)
        or isinstance(error, InfrastructureError | ConnectionError | TimeoutError | MemoryError)
        or (isinstance(error, OSError) and error.errno in PASSING)
    )


def _with_causes(error: BaseException) -> Iterator[BaseException]:
    """Yield `error`, then what its group holds and its causes, those that Ray gives by an attribute included.

    A wrapper is left out: it is of its cause's class as well, and its text is a traceback.
    """
    given = (*getattr(error, "exceptions", ()), getattr(error, "cause", None), error.__cause__)
    inner = [cause for cause in given if isinstance(cause, BaseException)]
    if not inner or not names_of_kinds(error) & WRAPPERS:
        yield error
    for cause in inner:
        yield from _with_causes(cause)
