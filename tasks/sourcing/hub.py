"""Streams datasets of the Hugging Face hub."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from fnmatch import fnmatchcase
from itertools import chain
from typing import Any, TypeVar

import fsspec

from tasks.config.loading import SpecError
from tasks.sourcing.compression import ERRORS
from tasks.sourcing.csv_files import read_csv
from tasks.sourcing.files import File, Item
from tasks.sourcing.loader_specs import HuggingFaceLoader
from tasks.sourcing.numbers import convert_batch
from tasks.sourcing.rows import BATCH, choose_reader, read_json, read_jsonl, select_columns
from tasks.storage.retries import WAITS, call_with_retries

CARD_OPTIONS = {"json": {"field", "features"}, "csv": {"sep", "delimiter", "names", "column_names", "features"}}
"""Options that a dataset card may set for files of a format. The files determine the column types."""

COMMIT = re.compile(r"[0-9a-f]{40}")

Result = TypeVar("Result")


def resolve_revision(name: str, revision: str, *, kind: str, where: str) -> str:
    """Return the commit of a branch or tag of a hub repository. A commit is returned as it is, without network access.

    Args:
        name: id of the repository.
        revision: a commit, a branch or a tag.
        kind: `dataset` or `model`.
        where: the option that names the repository, for the error message.

    Raises:
        SpecError: there is no such repository or revision, it is gated, or the hub cannot be queried.
    """
    if COMMIT.fullmatch(revision):
        return revision
    from huggingface_hub import HfApi

    with convert_errors(name, f"{where}.revision = {revision!r}", "give the commit, of 40 hex digits"):
        info = retry(lambda: HfApi().repo_info(name, revision=revision, repo_type=kind))
    if info.sha is None:
        raise SpecError(f"{where}.revision = {revision!r}: the hub has no commit of {name}")
    return info.sha


def match_configs(loader: HuggingFaceLoader, where: str) -> list[str]:
    """Return the configurations that `loader.config` names, with patterns (`*`, `?`) replaced by the names that match.

    The hub is only queried for the names if there is a pattern.

    Args:
        loader: a dataset of the hub at a commit, with `config`.
        where: the name of the loader in errors.

    Raises:
        SpecError: a pattern matches no configuration, or the hub cannot be queried.
    """
    import datasets

    wanted = [name for name in loader.configs if name is not None]
    if not any(set("*?") & set(name) for name in wanted):
        return wanted
    assert loader.dataset is not None
    name, revision = loader.dataset, loader.revision
    with convert_errors(name, f"{where}.config = {loader.config!r}", "give the names"):
        known = retry(lambda: datasets.get_dataset_config_names(name, revision=revision))
    matching = [[config for config in known if fnmatchcase(config, pattern)] for pattern in wanted]
    for pattern, matches in zip(wanted, matching, strict=True):
        if not matches:
            raise SpecError(
                f"{where}.config = {pattern!r}: {name} has no such configuration; it has {', '.join(sorted(known))}"
            )
    return list(dict.fromkeys(config for matches in matching for config in matches))


def read_rows(
    loader: HuggingFaceLoader, config: str | None, columns: Iterable[str] | None, where: str
) -> Iterator[Item]:
    """Yield the rows of one configuration of a hub dataset, with only `columns` if its format supports that.

    Its JSON and CSV files are read by `tasks.sourcing.rows`, because `datasets` would infer types from the first rows,
    round integers beyond 64 bits, and treat words such as `None` as missing values.

    Args:
        loader: the dataset.
        config: the configuration. If None, the default one.
        columns: the columns to read. If None, all.
        where: the name of the loader in errors.

    Raises:
        SpecError: the dataset, split, configuration or format does not exist, it is gated, or the hub cannot be
            queried.
    """
    import datasets
    from datasets.exceptions import DatasetGenerationError

    name = loader.dataset
    assert name is not None

    def open_builder(**more: Any) -> Any:
        return retry(lambda: datasets.load_dataset_builder(name, name=config, revision=loader.revision, **more))

    asked = f"{where}: {name}" + (f", configuration {config}" if config is not None else "")
    with convert_errors(name, asked, "name its files by a local path (files)"):
        try:
            with _hide_torch():
                builder = open_builder()
                files = (builder.config.data_files or {}).get(loader.split)
                if builder.name in CARD_OPTIONS and files:
                    yield from chain.from_iterable(map(_make_reader(builder), files))
                    return
                rows = builder.as_streaming_dataset(split=loader.split)
                wanted = select_columns(columns, rows.column_names or ())
                if wanted is not None and builder.name == "parquet":
                    rows = open_builder(columns=wanted).as_streaming_dataset(split=loader.split)
                if builder.name in ("parquet", "arrow"):  # Python values would not say which floats are narrow
                    yield from chain.from_iterable(map(convert_batch, rows.with_format("arrow").iter(BATCH)))
                    return
                yield from rows
        except DatasetGenerationError as error:
            raise ValueError(f"{error}: {error.__cause__}") from error


def _make_reader(builder: Any) -> Callable[[str], Iterator[Item]]:
    """Return the reader of the files of a JSON or CSV dataset, configured by the dataset card.

    Raises:
        ValueError: the card sets an option of the format that is not supported.
    """
    from datasets import BuilderConfig
    from huggingface_hub.errors import HfHubHTTPError

    config, default = builder.config, type(builder.config)()
    given = {option.name for option in fields(config) if getattr(config, option.name) != getattr(default, option.name)}
    if unread := given - CARD_OPTIONS[builder.name] - {option.name for option in fields(BuilderConfig)}:
        raise ValueError(f"its card sets {sorted(unread)} for its {builder.name} files, which are not supported")

    def rows(path: str) -> Iterator[Item]:
        file = File(*fsspec.url_to_fs(path))
        try:
            if builder.name == "csv":
                yield from read_csv(file, config.sep, config.names)
            elif choose_reader(path, None) is read_jsonl:
                yield from read_jsonl(file)
            else:
                yield from read_json(file, config.field)
        except ERRORS as error:
            if isinstance(error, HfHubHTTPError) or _is_transient(error):
                raise
            raise ValueError(f"{path} cannot be read: {error}") from error

    return rows


def retry(call: Callable[[], Result]) -> Result:
    """Return the result of `call`, which is retried after each of `WAITS` while the hub cannot be reached."""
    return call_with_retries(
        call, WAITS, lambda error: not _is_offline() and _is_transient(error), "the Hugging Face hub"
    )


@contextmanager
def convert_errors(name: str, where: str, way_out: str) -> Iterator[None]:
    """Turn errors of the hub's libraries about `name` into one message that starts with `where`.

    Raises:
        SpecError: a user error, which includes running in offline mode.
        ConnectionError: the hub cannot be reached. The task is then retried.
    """
    from datasets.exceptions import DatasetNotFoundError
    from huggingface_hub.constants import ENDPOINT
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    try:
        yield
    except SpecError:
        raise
    except (GatedRepoError, RepositoryNotFoundError, DatasetNotFoundError) as error:
        gated = isinstance(error, GatedRepoError) or "is a gated dataset" in str(error)
        problem = f"{name} is gated: ask for access on its page of the hub" if gated else f"the hub has no {name}"
        sentence = f"{where}: {problem}; a private or gated one needs HF_TOKEN, a token that may read it"
        raise SpecError(sentence) from error
    except RevisionNotFoundError as error:
        raise SpecError(f"{where}: {name} has no such revision; a commit, a branch or a tag of it") from error
    except (ValueError, FileNotFoundError) as error:
        raise SpecError(f"{where}: {error}") from error
    except RuntimeError as error:
        if "Dataset scripts" not in str(error):
            raise
        raise SpecError(
            f"{where}: {name} has a loading script, which is not run; the hub has the rows of many such data "
            "sets as Parquet: revision: refs/convert/parquet"
        ) from error
    except Exception as error:
        if not _is_transient(error):
            raise
        about = where if name in where else f"{where}: {name}"
        sentence = f"{about}: the hub at {ENDPOINT} cannot be reached; {way_out}, or try again with a network"
        raise (SpecError if _is_offline() else ConnectionError)(sentence) from error


def _is_transient(error: Exception) -> bool:
    """Return True for a transient error of the hub or the network."""
    from huggingface_hub.errors import HfHubHTTPError

    if isinstance(error, HfHubHTTPError):
        return error.response.status_code in (408, 429) or error.response.status_code >= 500
    # The client's own errors are matched by name, because the version of the hub's library decides which client it is.
    names = {kind.__name__ for kind in type(error).__mro__}
    return isinstance(error, ConnectionError | TimeoutError) or bool(names & {"TransportError", "OfflineModeIsEnabled"})


def _is_offline() -> bool:
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


@contextmanager
def _hide_torch() -> Iterator[None]:
    """Keep `datasets` from importing torch, which streaming does for data loaders that are not used here."""
    from datasets import config

    before, config.TORCH_AVAILABLE = config.TORCH_AVAILABLE, "torch" in sys.modules
    try:
        yield
    finally:
        config.TORCH_AVAILABLE = before
