"""Distinguishes infrastructure failures from user errors.

A retry of the same work may succeed after an infrastructure failure. User errors, and bugs in this project, occur again
with every attempt.
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
        getattr(errno, "EREMOTEIO", errno.EIO),  # Linux only
        errno.ESTALE,
    }
)
"""System error numbers that may not occur on another machine or later: disk, memory, network, remote storage.

If S3 is busy and answers 500 or 503, s3fs raises `EREMOTEIO` or `EBUSY`.
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
"""Full names of library errors that are infrastructure failures. With names, the libraries need not be imported."""
WRAPPERS = frozenset({"flytekit.exceptions.user.FlyteUserRuntimeException", "ray.exceptions.RayTaskError"})
"""Full names of errors that wrap an error raised by a task or an actor of this project. They are never failures of Ray
or Flyte themselves."""
RETRIED = "flytekit.exceptions.user.FlyteRecoverableException"
"""Full name of the error with which a stage requests a retry from Flyte. Its message is more detailed than its cause's.
"""
FLYTES = "flytekit.exceptions.base.FlyteException"
"""Full name of the base class of Flyte's errors, whose messages include their causes."""

LONGEST = 600
"""Maximum number of characters of an error's message that are shown. The file with the traceback has the full message.
"""

# Colours and other escape sequences of a terminal.
_ESCAPE = re.compile(r"(?s)\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|.)")
_FRAME = re.compile(r'[\s|]*File "[^"]+", line \d+')
_CARETS = re.compile(r"[\s|]*[~^]+\s*")
# Python's header, and Ray's replacement of it.
_HEADER = re.compile(r"Traceback \(most recent call last\):|ray::\S+\(\) \(pid=\d+[^\n]*\)(?=\n|$)")
# The class of an error, with its module.
_KIND = re.compile(r"(?<!\S)(?:\w+\.)+(\w+:)")


class MistakeError(ValueError):
    """A user error. The message is a complete sentence, and is printed without a traceback."""


class InfrastructureError(RuntimeError):
    """A failure of the infrastructure, such as an engine, an actor or a learner rank. Flyte retries the task."""


def one_line(error: BaseException | str, limit: int = 300) -> str:
    """Return the message of `error` as one plain line of at most `limit` characters.

    Control characters and colours are removed. A traceback in the message is reduced to its last error.
    """
    text = _ESCAPE.sub("", str(error))
    plain = "".join(letter for letter in _remove_tracebacks(text) if letter.isprintable() or letter.isspace())
    return " ".join(plain.split())[:limit]


def _remove_tracebacks(text: str) -> str:
    """Return the text before the first frame and after the last frame, without headers and the modules of errors."""
    lines = text.splitlines()
    frames = [number for number, line in enumerate(lines) if _FRAME.match(line)]
    if not frames and not _HEADER.search(text):  # Ray hides its own frames, so there may be none left
        return text
    before, after = (lines[: frames[0]], lines[frames[-1] + 1 :]) if frames else (lines, [])
    indent = _count_indent(lines[frames[-1]]) if frames else 0
    while after and 0 < indent <= _count_indent(after[0]):  # the frame's code
        del after[0]
    rest = "\n".join(line for line in [*before, *after] if not _CARETS.fullmatch(line))
    return _KIND.sub(r"\1", _HEADER.sub("", rest))


def _count_indent(line: str) -> int:
    return len(line) - len(line.lstrip(" |"))


def list_class_names(error: BaseException) -> frozenset[str]:
    """Return the full names of the classes of `error`, to recognize a library's errors without importing it."""
    return frozenset(f"{kind.__module__}.{kind.__qualname__}" for kind in type(error).__mro__)


def find_mistake(error: BaseException) -> MistakeError | None:
    """Return the user error among `error`, its group and its causes, or None if there is none."""
    return next((cause for cause in list_causes(error) if isinstance(cause, MistakeError)), None)


def find_infrastructure_cause(error: BaseException) -> BaseException | None:
    """Return the first infrastructure failure among `error`, its group and its causes, or None if there is none."""
    return next((cause for cause in list_causes(error) if _is_of_infrastructure(cause)), None)


def describe_error(error: BaseException, limit: int = LONGEST) -> str:
    """Return the message to show for `error`: a user error's own message, or one with the class of the first cause.

    The latter has at most `limit` characters.
    """
    if mistake := find_mistake(error):
        return str(mistake)
    asked = next((cause for cause in list_causes(error) if RETRIED in list_class_names(cause)), None)
    cause = asked or find_infrastructure_cause(error) or next(list_causes(error))
    text = one_line(", ".join(map(str, cause.args)) if FLYTES in list_class_names(cause) else cause, limit)
    is_sentence = text and (asked or isinstance(cause, InfrastructureError))
    return text if is_sentence else f"{type(cause).__name__}: {text}"[:limit]


def _is_of_infrastructure(error: BaseException) -> bool:
    kinds = list_class_names(error)
    return (
        bool(kinds & OTHERS and not kinds & WRAPPERS)
        or isinstance(error, InfrastructureError | ConnectionError | TimeoutError | MemoryError)
        or (isinstance(error, OSError) and error.errno in PASSING)
    )


def list_causes(error: BaseException) -> Iterator[BaseException]:
    """Yield `error`, then the errors in its group and its causes, including causes in an attribute of Ray's errors.

    Wrappers are skipped, because they are also instances of their cause's class, and their text is a traceback.
    """
    given = (*getattr(error, "exceptions", ()), getattr(error, "cause", None), error.__cause__)
    inner = [cause for cause in given if isinstance(cause, BaseException)]
    if not inner or not list_class_names(error) & WRAPPERS:
        yield error
    for cause in inner:
        yield from list_causes(cause)
