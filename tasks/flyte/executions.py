"""Downloads the outputs of executions on a backend, and launches registered launch plans, for the command line."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from tasks.config.loading import Config, check_choice, close_match
from tasks.failures import MistakeError, one_line
from tasks.flyte.backend import BackendError, address, convert_backend_error
from tasks.tables.content_digest import MANIFEST

if TYPE_CHECKING:
    from flytekit.models.literals import Blob, Literal, LiteralMap
    from flytekit.remote import FlyteLaunchPlan, FlyteRemote

File = TypeVar("File", bound=Config)

LINK_LIFETIME = timedelta(hours=1)
"""Validity period of a download link."""
BLOCK = 1 << 20
"""Number of bytes read from a link at a time."""
TIMEOUT = 60.0
"""Timeout of a download without any data, seconds."""
PAGE = 100
"""Number of items that are requested from a backend at a time."""

logger = logging.getLogger(__name__)


class ExecutionError(MistakeError):
    """Raised if an execution, an output or a launch plan does not exist, or if an execution has no outputs yet."""


class Output(NamedTuple):
    """A file or folder that is an output of an execution.

    Attributes:
        name: name of the output.
        address: address on blob storage.
        is_folder: whether it is a folder.
        file_name: the name that a local run gives to the file or folder.
    """

    name: str
    address: str
    is_folder: bool
    file_name: str


class Execution(NamedTuple):
    """A successful execution: its start, its inputs, and its file and folder outputs, by name."""

    began: datetime
    inputs: LiteralMap
    outputs: dict[str, Output]


def find(remote: FlyteRemote, name: str) -> Execution:
    """Return the execution called `name` in the project and domain of `remote`.

    Raises:
        ExecutionError: it does not exist, or has no outputs because it is running or has failed.
    """
    from flytekit.exceptions.user import FlyteEntityNotExistException
    from flytekit.models.core.execution import WorkflowExecutionPhase
    from flytekit.models.core.identifier import WorkflowExecutionIdentifier

    entity = WorkflowExecutionIdentifier(remote.default_project, remote.default_domain, name)
    where = f"{name} in project {remote.default_project}, domain {remote.default_domain}, of {address()}"
    try:
        execution = remote.client.get_execution(entity)
        data = remote.client.get_execution_data(entity)
    except FlyteEntityNotExistException:
        check_project(remote)
        raise ExecutionError(
            f"there is no execution {where}: --project, --domain and --config select another place"
        ) from None
    if not data.full_outputs.literals:
        phase = WorkflowExecutionPhase.enum_to_string(execution.closure.phase)
        raise ExecutionError(
            f"execution {where}, has no outputs: it is {phase}. The outputs of a node that has succeeded: pyflyte "
            f"fetch --recursive flyte://v1/{remote.default_project}/{remote.default_domain}/{name}/NODE/o FOLDER"
        )
    outputs = (_make_output(name, literal) for name, literal in sorted(data.full_outputs.literals.items()))
    began = execution.closure.started_at or execution.closure.created_at
    return Execution(began, data.full_inputs, {output.name: output for output in outputs if output})


def check_project(remote: FlyteRemote) -> None:
    """Check that the project and the domain of `remote` exist, if the backend lists its projects.

    Raises:
        ExecutionError: one of them does not exist.
        BackendError: the backend does not answer, or refuses the login.
    """
    try:
        projects = [project.id for project in _read_pages(remote.client.list_projects_paginated)]
        domains = [domain.id for domain in remote.client.get_domains()]
    except Exception as error:  # flytekit has no common class for errors of gRPC
        if (away := convert_backend_error(error)) is not None:
            raise away from error
        return  # this login may not list them
    wanted = ("project", remote.default_project, projects), ("domain", remote.default_domain, domains)
    for option, name, known in wanted:
        if name not in known:
            raise ExecutionError(
                f"--{option} {name}: {address()} has no such {option}{close_match(name, known)}; it has: "
                f"{', '.join(sorted(known)) or 'none'}"
            )


def _launch_plans(remote: FlyteRemote) -> list[str]:
    """Return the names of the launch plans in the project and domain of `remote`."""
    pages = partial(remote.client.list_launch_plan_ids_paginated, remote.default_project, remote.default_domain)
    return sorted({one.name for one in _read_pages(pages)})


def _read_pages(listed: Callable[..., tuple[list[Any], str]]) -> Iterator[Any]:
    """Yield the items of all pages of a list that a backend returns in pages."""
    token = None
    while token != "":
        items, token = listed(limit=PAGE, token=token)
        yield from items


def _make_output(name: str, literal: Literal) -> Output | None:
    blob: Blob | None = literal.scalar.blob if literal.scalar else None
    if blob is None:
        return None
    is_folder = blob.metadata.type.dimensionality == 1
    ending = PurePosixPath(blob.uri).suffix or (f".{blob.metadata.type.format}" if blob.metadata.type.format else "")
    return Output(name, blob.uri, is_folder, name if is_folder else f"{name}{ending}")


def choose_outputs(execution: Execution, names: tuple[str, ...]) -> list[Output]:
    """Return the outputs called `names`, or all outputs if no names are given.

    Raises:
        SpecError: the execution has no such file or folder.
    """
    for name in names:
        check_choice(name, execution.outputs, "outputs of the execution", "file or folder")
    return [execution.outputs[name] for name in names or execution.outputs]


def download(remote: FlyteRemote, output: Output, target: Path) -> None:
    """Download the file or folder of an output to `target`, with links signed by the backend.

    This machine therefore needs no credentials for the storage, except for a folder without a manifest
    (`tasks.tables.content_digest.seal`), whose files have to be listed.

    Raises:
        BackendError: the storage does not answer or refuses access.
        ExecutionError: the file no longer exists.
    """
    if not output.is_folder:
        _fetch(remote, output.address, target)
        return
    target.mkdir(parents=True)
    try:
        _fetch(remote, f"{output.address.rstrip('/')}/{MANIFEST}", target / MANIFEST)
    except ExecutionError:
        shutil.rmtree(target)
        _download_listed(remote, output, target)
        return
    for name in json.loads((target / MANIFEST).read_text()):
        _fetch(remote, f"{output.address.rstrip('/')}/{name}", target / name)


def _download_listed(remote: FlyteRemote, output: Output, target: Path) -> None:
    """Download a folder as flytekit does, with this machine's credentials for the storage."""
    try:
        remote.file_access.get_data(output.address, str(target), is_multipart=True)
    except Exception as error:  # fsspec's file systems have no common error class
        raise BackendError(
            f"{output.address}: this machine cannot list the folder ({type(error).__name__}): it needs credentials of "
            "the storage (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY of an S3), or the folder is gone"
        ) from error


def _fetch(remote: FlyteRemote, location: str, target: Path) -> None:
    import requests

    target.parent.mkdir(parents=True, exist_ok=True)
    if "://" not in location:  # the backend's storage is a folder on this machine
        shutil.copy(location, target)
        return
    link = remote.client.get_download_signed_url(location, LINK_LIFETIME).signed_url
    try:
        with requests.get(link, stream=True, timeout=TIMEOUT) as answer:
            if answer.status_code == 404:
                raise ExecutionError(f"{location} is no longer there: a lifecycle rule may have deleted it")
            answer.raise_for_status()
            with target.open("wb") as file:
                for block in answer.iter_content(BLOCK):
                    file.write(block)
    except requests.exceptions.RequestException as error:
        raise BackendError(f"{location} cannot be downloaded: {one_line(error).partition('?')[0]}") from None


def load_input_files(execution: Execution, kinds: Mapping[str, type[File]]) -> Iterator[tuple[str, File]]:
    """Yield the names and values of the inputs that are specifications of `kinds`.

    An input that this code cannot read, because different code was registered, is skipped with a warning.
    """
    from flytekit import FlyteContextManager
    from flytekit.core.type_engine import TypeEngine, TypeTransformerFailedError
    from pydantic import ValidationError

    context = FlyteContextManager.current_context()
    for name, kind in kinds.items():
        if name in execution.inputs.literals:
            try:
                value = TypeEngine.to_python_value(context, execution.inputs.literals[name], kind)
            except (TypeTransformerFailedError, ValidationError, ValueError) as error:
                logger.warning("%s.yaml is left out: it was written for other code (%s)", name, one_line(error, 120))
                continue
            yield name, value


def fetch_plan(remote: FlyteRemote, name: str, version: str | None) -> FlyteLaunchPlan:
    """Return the launch plan that is registered under a name, of a version, or if that is None the one of the last.

    Raises:
        ExecutionError: nothing is registered under this name.
    """
    from flytekit.exceptions.user import FlyteEntityNotExistException

    where = f"project {remote.default_project}, domain {remote.default_domain}, of {address()}"
    try:
        return remote.fetch_launch_plan(name=name, version=version)
    except (FlyteEntityNotExistException, ValueError):
        check_project(remote)
        known = _launch_plans(remote)
        of = f" of version {version}" if version else ""
        registered = f"there are: {', '.join(known)}" if known else "`make register` registers one for every recipe"
        raise ExecutionError(
            f"no launch plan {name!r}{of} is registered in {where}{close_match(name, known)}; {registered}"
        ) from None


def launch(
    remote: FlyteRemote,
    plan: FlyteLaunchPlan,
    inputs: Mapping[str, Config],
    *,
    labels: Mapping[str, str] = {},
    execution: str | None = None,
    overwrite_cache: bool = False,
    environment: Mapping[str, str] = {},
) -> str:
    """Launch a registered launch plan with these inputs instead of its defaults, and return the console's URL.

    The inputs use this project's Python types, because flytekit cannot derive types from the registered JSON schemas.

    Raises:
        ExecutionError: the launch plan has no such input.
    """
    from flytekit.exceptions.user import FlyteValueException
    from flytekit.models.common import Labels
    from flytekit.tools.translator import Options

    try:
        made = remote.execute(
            plan,
            inputs=dict(inputs),
            type_hints={key: type(value) for key, value in inputs.items()},
            execution_name=execution,
            overwrite_cache=overwrite_cache or None,
            envs=dict(environment) or None,
            options=Options(labels=Labels(dict(labels))) if labels else None,
        )
    except FlyteValueException as error:
        raise ExecutionError(f"launch plan {plan.name!r}: {error}") from None
    return remote.generate_console_url(made)
