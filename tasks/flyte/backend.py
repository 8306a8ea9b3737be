"""Connects to a Flyte backend, and turns connection errors into one-line messages.

For these errors, flytekit itself prints a traceback of a hundred lines, the last of which names an archive.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import rich_click as click
from flytekit.configuration import Config, PlatformConfig
from flytekit.configuration.file import get_config_file

from tasks.failures import InfrastructureError, list_class_names, one_line

if TYPE_CHECKING:
    from flytekit.remote import FlyteRemote

URL = "FLYTE_PLATFORM_URL"
"""Flytekit's environment variable with the backend's address. It overrides the address in a configuration file."""

AWAY = frozenset(
    {"flytekit.exceptions.system.FlyteSystemUnavailableException", "flytekit.exceptions.user.FlyteTimeout"}
)
"""Full names of the errors raised if a backend does not answer."""

REFUSED = frozenset(
    {
        "flytekit.clients.auth.exceptions.AccessTokenNotFoundError",
        "flytekit.clients.auth.exceptions.AuthenticationError",
        "flytekit.clients.auth.exceptions.AuthenticationPending",
        "flytekit.exceptions.user.FlyteAuthenticationException",
    }
)
"""Full names of the errors raised if the login is missing, expired or rejected."""


class BackendError(InfrastructureError):
    """Raised if a Flyte backend or its storage does not answer or refuses access."""


def connect(project: str, domain: str, config: str | None = None) -> FlyteRemote:
    """Return a client of the backend in the configuration file. If None, flytekit searches for the file."""
    from flytekit.remote import FlyteRemote

    return FlyteRemote(Config.auto(config), default_project=project, default_domain=domain)


def address() -> str:
    """Return the backend's address for the running command, and the source of the address, for a message."""
    file = get_config_file(_find_given_file())
    endpoint = PlatformConfig.auto(file).endpoint
    if os.environ.get(URL):
        return f"{endpoint} ({URL})"
    named_by = f"admin.endpoint in {file._location}" if file else "flytekit's default: no configuration file was given"
    return f"{endpoint} ({named_by})"


def _find_given_file() -> str | None:
    """Return the option `--config` of the running command or of a group that contains it, or None."""
    context: click.Context | None = click.get_current_context(silent=True)
    while context is not None:
        if given := context.params.get("config"):
            return str(given)
        context = context.parent
    return None


@contextlib.contextmanager
def convert_errors() -> Iterator[None]:
    """Convert errors of an unavailable or refusing backend to a `BackendError`, while the command is running."""
    try:
        yield
    except Exception as error:
        converted = convert_backend_error(error)
        if converted is None:
            raise
        raise converted from error


def convert_backend_error(error: BaseException) -> BackendError | None:
    """Return an error for a backend that is unavailable or refuses the login, or None if `error` has another cause."""
    chain = list(_list_chain(error))
    known = next((one for one in chain if isinstance(one, BackendError)), None)
    if known is not None:
        return known
    kinds = frozenset().union(*map(list_class_names, chain))
    details = next((one_line(text) for one in chain if (text := _read_details(one))), "")
    if kinds & REFUSED:
        reason = details or one_line(next(one for one in chain if list_class_names(one) & REFUSED))
        return BackendError(
            f"the Flyte backend at {address()} refuses this login: {reason}; log in again, or correct admin.authType "
            "in that file"
        )
    if kinds & AWAY:
        return BackendError(
            f"the Flyte backend at {address()} does not answer: {details or 'no reason is known'}; start it, or name "
            "another one by --config FILE"
        )
    return None


def upload_error(error: Exception) -> BackendError | None:
    """Return an error for a failed upload, or None if the cause is neither the backend nor its storage."""
    if "requests.exceptions.RequestException" in list_class_names(error):
        request: Any = getattr(error, "request", None)
        return make_storage_error(getattr(request, "url", None) or "", f"does not answer ({type(error).__name__})")
    return convert_backend_error(error)


def make_storage_error(url: str, problem: str) -> BackendError:
    """Return an error for storage that does not accept a file. `url` is the signed address."""
    parts = urlsplit(url)  # the query contains a signature
    storage = f"{parts.scheme}://{parts.netloc}" if parts.netloc else "that the backend names"
    return BackendError(
        f"a file cannot be uploaded: the storage {storage} {problem}; its address and credentials are those of the "
        f"Flyte backend at {address()}"
    )


def _list_chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and its chain of causes and contexts."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _read_details(error: BaseException) -> str | None:
    """Return the text that a server sent with a gRPC error, or None for other errors."""
    details = getattr(error, "details", None)
    return details() if callable(details) and callable(getattr(error, "code", None)) else None
