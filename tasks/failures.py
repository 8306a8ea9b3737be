"""Classes of failures: the infrastructure's, which a retry may get past, and the user's mistakes.

A retry of the same work may get past the former. A user's mistake, and a defect of this project, come back with every
attempt.
"""

from __future__ import annotations

import errno
import re
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
RETRIED = "flytekit.exceptions.user.FlyteRecoverableException"
"""Full name of the error by which a stage asks Flyte for another attempt; its message says more than its cause's."""
FLYTES = "flytekit.exceptions.base.FlyteException"
"""Full name of the class of Flyte's errors, whose texts have their causes as well."""

LONGEST = 600
"""Characters of an error's message that a person is shown; all of it is in the file with the traceback."""

# A terminal's colours, and its other sequences.
_ESCAPE = re.compile(r"(?s)\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|.)")
_FRAME = re.compile(r'[\s|]*File "[^"]+", line \d+')
_CARETS = re.compile(r"[\s|]*[~^]+\s*")
# Python's, and Ray's in its place.
_HEADER = re.compile(r"Traceback \(most recent call last\):|ray::\S+\(\) \(pid=\d+[^\n]*\)(?=\n|$)")
# An error's, with its module.
_KIND = re.compile(r"(?<!\S)(?:\w+\.)+(\w+:)")


class MistakeError(ValueError):
    """A mistake of the user: the message is a complete sentence, and is printed without a traceback."""


class InfrastructureError(RuntimeError):
    """A failure of what the work runs on: an engine, an actor, a learner rank. Flyte retries it."""


def one_line(error: BaseException | str, limit: int = 300) -> str:
    """Return the message of `error` in one plain line of at most `limit` characters.

    It has no control characters and colours. Of tracebacks in the message the last error is left.
    """
    text = _ESCAPE.sub("", str(error))
    plain = "".join(letter for letter in _without_tracebacks(text) if letter.isprintable() or letter.isspace())
    return " ".join(plain.split())[:limit]


def _without_tracebacks(text: str) -> str:
    """Return what stands before the first frame and after the last one, without headers and the modules of errors."""
    lines = text.splitlines()
    frames = [number for number, line in enumerate(lines) if _FRAME.match(line)]
    if not frames and not _HEADER.search(text):  # Ray hides frames of its own, and may leave none
        return text
    before, after = (lines[: frames[0]], lines[frames[-1] + 1 :]) if frames else (lines, [])
    indent = _indent(lines[frames[-1]]) if frames else 0
    while after and 0 < indent <= _indent(after[0]):  # the frame's code
        del after[0]
    rest = "\n".join(line for line in [*before, *after] if not _CARETS.fullmatch(line))
    return _KIND.sub(r"\1", _HEADER.sub("", rest))


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" |"))


def names_of_kinds(error: BaseException) -> frozenset[str]:
    """Return the full names of the classes of `error`, so that a library need not be loaded to know its errors."""
    return frozenset(f"{kind.__module__}.{kind.__qualname__}" for kind in type(error).__mro__)


def mistake_in(error: BaseException) -> MistakeError | None:
    """Return the user's mistake among `error`, its group and its causes; None where there is none."""
    return next((cause for cause in with_causes(error) if isinstance(cause, MistakeError)), None)


def cause_in_infrastructure(error: BaseException) -> BaseException | None:
    """Return the first failure of the infrastructure among `error`, its group and its causes; None: there is none."""
    return next((cause for cause in with_causes(error) if _is_of_infrastructure(cause)), None)


def sentence_on(error: BaseException, limit: int = LONGEST) -> str:
    """Return the sentence that a person reads of `error`: a mistake's own, or one with the kind of the first cause.

    The latter has at most `limit` characters.
    """
    if mistake := mistake_in(error):
        return str(mistake)
    asked = next((cause for cause in with_causes(error) if RETRIED in names_of_kinds(cause)), None)
    cause = asked or cause_in_infrastructure(error) or next(with_causes(error))
    text = one_line(", ".join(map(str, cause.args)) if FLYTES in names_of_kinds(cause) else cause, limit)
    is_sentence = text and (asked or isinstance(cause, InfrastructureError))
    return text if is_sentence else f"{type(cause).__name__}: {text}"[:limit]


def _is_of_infrastructure(error: BaseException) -> bool:
    kinds = names_of_kinds(error)
    return (
        bool(kinds & OTHERS and not kinds & WRAPPERS)
        or isinstance(error, InfrastructureError | ConnectionError | TimeoutError | MemoryError)
        or (isinstance(error, OSError) and error.errno in PASSING)
    )


def with_causes(error: BaseException) -> Iterator[BaseException]:
    """Yield `error`, then what its group holds and its causes, those that Ray gives by an attribute included.

    A wrapper is left out: it is of its cause's class as well, and its text is a traceback.
    """
    given = (*getattr(error, "exceptions", ()), getattr(error, "cause", None), error.__cause__)
    inner = [cause for cause in given if isinstance(cause, BaseException)]
    if not inner or not names_of_kinds(error) & WRAPPERS:
        yield error
    for cause in inner:
        yield from with_causes(cause)
