"""Begins a run of fewer steps than the run of its recipe has taken, from a copy of that run's checkpoint.

    <run>      step 4 ────────► step 8 ──► continues for more steps; it is only read, even while it trains
                 │ copied
    <run>-4    step 4           a separate folder and address, with a separate lease

A run's name does not contain its number of steps, so that a run can continue for more steps. It cannot go back to fewer
steps, because its records and policies are already beyond them. A longer run that is training or was interrupted may
have a checkpoint of exactly that many steps. A finished run only has its last checkpoint (`ending`), and the shorter
run then starts from scratch. The copy has everything that training up to that checkpoint produces, except TensorBoard's
files, which the journal rewrites. The checkpoint, and on blob storage its manifest, is written last, so that an
interrupted copy is ignored.
"""

from __future__ import annotations

import json
import logging
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, TypeVar

from tasks.failures import MistakeError
from tasks.recipe.run import TrainingConfig
from tasks.storage.access import is_refusal
from tasks.storage.durable import PARTIAL, write_whole
from tasks.storage.locations import resolve_address, resolve_folder
from tasks.storage.retries import WAITS, call_with_retries
from tasks.storage.stored_files import DamagedError, StoreError
from tasks.storage.uploads import MANIFEST, Uploads, parse_version
from tasks.training.learner.checkpoint_shards import SHARDS
from tasks.training.records.checkpoint import Checkpoints
from tasks.training.records.remote_store import RunStore, list_files
from tasks.training.records.run_state import RunState

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

logger = logging.getLogger(__name__)

BOARD = "tensorboard/"
"""Prefix of the names of TensorBoard's files, which the journal rewrites."""

Result = TypeVar("Result")
FileSystemOf = Callable[[str], "AbstractFileSystem"]
"""A function that returns the fsspec file system of an address."""


@dataclass(frozen=True)
class RunLocation:
    """The folder and the address of a run, and a function that copies a checkpoint to them before it begins."""

    folder: Path
    """The run folder."""
    address: str | None
    """Address of the run on blob storage, or None if it only has a folder."""
    begin: Callable[[RunStore | None], None] = lambda _: None
    """Called with the run's storage, if any, after its lease is acquired and before anything is read (`attached`)."""


def find_run_location(
    name: str, config: TrainingConfig, raw_output_prefix: str, filesystem_of: FileSystemOf
) -> RunLocation:
    """Return the location of the run `name` or, if that has taken more steps, of a run with the steps in `config`.

    Args:
        name: name of the run, which does not depend on its steps (`run_name`).
        config: the options of training.
        raw_output_prefix: as in `locations.resolve_address`.
        filesystem_of: returns the fsspec file system of an address.

    Raises:
        StoreError: the storage does not respond.
    """
    folder, address = resolve_folder(name), resolve_address(name, raw_output_prefix)
    newest = Checkpoints.find_newest_below(folder / "checkpoints")
    stored = _list_stored_versions(filesystem_of(address), address) if address else []
    taken = max([*stored, parse_version(newest.name) if newest else 0])
    if taken <= config.steps:
        return RunLocation(folder, address)
    name = f"{name}-{config.steps}"
    own = resolve_folder(name)
    shorter = ShorterRun(own, folder, address, taken, config.steps, rerolls=config.prompts.reroll is not None)
    return RunLocation(own, resolve_address(name, raw_output_prefix), shorter.begin)


def _list_stored_versions(filesystem: AbstractFileSystem, address: str) -> list[int]:
    """Return the versions of the complete uploads at an address.

    Returns none if access is refused, because `RunStore` reports that error.
    """
    try:
        complete = _retry(Uploads(filesystem, address).list_complete, address)
    except Exception as error:  # fsspec's file systems share no kind of error
        if is_refusal(error):
            return []
        raise StoreError(f"{address} cannot be read: {error}") from error
    return [parse_version(upload) for upload in complete]


@dataclass(frozen=True)
class ShorterRun:
    """A run of `steps` steps, whose recipe already has a run that has taken more steps."""

    folder: Path
    """The run folder."""
    longer: Path
    """Folder of the longer run."""
    longer_address: str | None
    """Address of the longer run on blob storage, if it has one."""
    taken: int
    """Number of steps that the longer run has taken."""
    steps: int
    """Number of steps of this run."""
    rerolls: bool
    """True if the prompts of the first steps depend on the number of steps (`prompts.reroll`)."""

    def begin(self, store: RunStore | None) -> None:
        """Copy the longer run's checkpoint, unless this run has one, and print what this run begins from.

        Args:
            store: storage of this run, whose lease is acquired, or None if it only has a folder.

        Raises:
            StoreError: the storage does not respond.
        """
        if Checkpoints.find_newest_below(self.folder / "checkpoints") or (store and store.has_checkpoint()):
            beginning = ""  # `run_attempt.reported` names the step
        elif self.rerolls:
            beginning = ", from the beginning, as prompts.reroll waits for a share of the steps"
        elif self._copy_from_folder(store) or (store and self._copy_on_storage(store)):
            beginning = f", from a copy of its checkpoint of step {self.steps}"
        else:
            beginning = f", from the beginning, as it has no checkpoint of step {self.steps}"
        print(
            f"training: the run of this recipe has taken {self.taken} steps: {self.steps} steps are a separate run"
            f"{beginning}",
            file=sys.stderr,
            flush=True,
        )

    def _copy_from_folder(self, store: RunStore | None) -> bool:
        """Copy the checkpoint in the longer run's folder. Return False if there is none, or it is deleted meanwhile.

        A checkpoint with learner shards at the longer run's address is left to `_copy_on_storage`.
        """
        name = f"step_{self.steps:08d}"
        source, target = self.longer / "checkpoints" / name, self.folder / "checkpoints" / name
        if not source.is_dir() or (store and (Checkpoints.find_learner_folder(source) / f"{SHARDS}.json").exists()):
            return False
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            with write_whole(target, durable=True) as unfinished:
                state = RunState.read(source)
                _copy(source, unfinished)
                self._copy_records(state)
                if not source.is_dir():  # the files that it needs are deleted after it
                    raise FileNotFoundError(source)
                if store:  # this machine may lack the files of earlier attempts
                    self._copy_responses_and_policies(state.rollout_files, store.uploads)
        except (OSError, MistakeError):
            if source.is_dir():
                raise
            return False
        if store:
            store.put(target)
        return True

    def _copy_records(self, state: RunState) -> None:
        """Copy the records that a checkpoint with this state needs."""
        for name in ("ledger.jsonl", "metrics.jsonl"):  # resuming truncates them
            with write_whole(self.folder / name, durable=True) as unfinished:
                shutil.copyfile(self.longer / name, unfinished)
        shutil.rmtree(self.folder / "tensorboard", ignore_errors=True)
        for name in ("rollouts", "policies"):
            (self.folder / name).mkdir(exist_ok=True)
        for path in (self.longer / "rollouts").glob("*.parquet"):
            if self._is_earlier(f"rollouts/{path.name}", state.rollout_files):
                with write_whole(self.folder / "rollouts" / path.name, durable=True) as unfinished:
                    shutil.copyfile(path, unfinished)
        exported = [path.name for path in (self.longer / "policies").glob("step_*") if path.suffix != PARTIAL]
        earlier = [name for name in exported if self._is_earlier(f"policies/{name}", state.rollout_files)]
        for name in (*earlier, *state.policies):
            with write_whole(self.folder / "policies" / name, durable=True) as unfinished:
                _copy(self.longer / "policies" / name, unfinished)

    def _copy_on_storage(self, store: RunStore) -> bool:
        """Copy the upload at the longer run's address. Return False if there is none, or it is deleted meanwhile."""
        source, own = self._source_at(store.uploads), store.uploads
        try:
            for upload in _retry(source.list_complete, source.address):
                if parse_version(upload) == self.steps:
                    _retry(partial(self._copy_upload, upload, own), source.address)
                    return True
        except (FileNotFoundError, DamagedError):
            return False
        except Exception as error:  # fsspec's file systems share no kind of error
            if is_refusal(error):  # such as copies within the storage
                logger.warning("%s cannot be copied to %s: %s", source.address, own.address, error)
                return False
            raise StoreError(f"{source.address} cannot be copied to {own.address}: {error}") from error
        return False

    def _copy_upload(self, upload: str, own: Uploads) -> None:
        """Copy an upload to the address of this run. It keeps its name, which its checkpoint has for the shards."""
        filesystem, source = own.filesystem, self._source_at(own)
        manifest = source.read_manifest(upload)
        state = filesystem.cat_file(f"{source.address}/{upload}/checkpoints/step_{self.steps:08d}/state.json")
        wanted = {
            name: size
            for name, size in source.list_sizes(upload).items()
            if name != MANIFEST and not name.startswith(BOARD)
        }
        for name, _ in sorted(wanted.items() - own.list_sizes(upload).items()):
            filesystem.cp_file(f"{source.address}/{upload}/{name}", f"{own.address}/{upload}/{name}")
        filesystem.invalidate_cache()
        if not filesystem.exists(f"{source.address}/{upload}/{MANIFEST}"):  # the file that is deleted first
            raise FileNotFoundError(f"{source.address}/{upload}")
        for name, _ in wanted.items() - own.list_sizes(upload).items():  # Azure copies asynchronously
            raise OSError(f"{own.address}/{upload}/{name} is not copied yet")
        self._copy_responses_and_policies(json.loads(state).get("rollout_files", 0), own)
        files = {name: file for name, file in manifest.files.items() if not name.startswith(BOARD)}
        own.write_manifest(upload, manifest.model_copy(update={"files": files}))

    def _copy_responses_and_policies(self, rollout_files: int, own: Uploads) -> None:
        """Copy the responses and the exported policies of the first steps to the address of this run."""
        source = self._source_at(own)

        def copy() -> None:
            for folder in ("rollouts", "policies"):
                for name in source.list_sizes(folder):
                    path = f"{folder}/{name}"
                    if self._is_earlier(path, rollout_files):
                        own.filesystem.cp_file(f"{source.address}/{path}", f"{own.address}/{path}")

        try:
            _retry(copy, source.address)
        except Exception as error:  # the run is complete without them
            logger.warning("responses and policies of the first steps were not copied to %s: %s", own.address, error)

    def _is_earlier(self, name: str, rollout_files: int) -> bool:
        """Return whether a file of responses, or an exported policy, was written before the checkpoint."""
        folder, item = PurePosixPath(name).parts[:2]
        number = PurePosixPath(item).stem.removeprefix("step_")
        first_after = rollout_files if folder == "rollouts" else self.steps + 1
        return number.isdecimal() and int(number) < first_after

    def _source_at(self, own: Uploads) -> Uploads:
        """Return the uploads of the longer run, which are on the same storage as this run's."""
        assert self.longer_address is not None  # as this run has one
        return replace(own, address=self.longer_address)


def _retry(do: Callable[[], Result], address: str) -> Result:
    """Return the result of `do`. Retry it after pauses, unless the storage refuses it or a file is missing."""
    return call_with_retries(do, WAITS, lambda error: not is_refusal(error), address)


def _copy(source: Path, target: Path) -> None:
    for path in list_files(source):
        (target / path.relative_to(source)).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target / path.relative_to(source))
