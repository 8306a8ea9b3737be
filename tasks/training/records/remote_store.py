"""Uploads a run's checkpoints to blob storage, where they outlive the machine. Incomplete uploads are ignored.

    <address>/step_00000004.<upload>/checkpoints/step_00000004/...   the checkpoint
                                    /ledger.jsonl, metrics.jsonl     cut to their lengths at the checkpoint
                                    /tensorboard/...
                                    /policies/validated_00000002/... the best policy that was validated
                                    /parts/...                       checkpoint shards that ranks uploaded
                                    /manifest.json                   names, sizes and digests of the other files
              rollouts/00000000.parquet, ...                         each uploaded once; not needed for resuming
              policies/step_00000002/...                             the same, exported by `export_every`
              responses.json                                         the files of responses and their steps
              lease.json                                             the attempt that works on the run

Order of uploads:

    checkpoint complete ──► rollouts ──► checkpoint, ledger, metrics, policy ──► manifest ──► exported policies ──► old
                                                                                                         uploads deleted
    last step taken ──► last rollouts ──► exported policies ──► all uploads deleted but the newest

An upload without a manifest was interrupted, and is ignored. `<upload>` is random, so that two attempts that save the
same step never write to the same object.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import sys
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.storage.access import AccessError, check_access
from tasks.storage.durable import PARTIAL
from tasks.storage.lease import LEASE_SECONDS, Lease
from tasks.storage.locations import RESPONSE_LIST
from tasks.storage.retries import WAITS
from tasks.storage.stored_files import DamagedError, StoreError, put_file
from tasks.storage.threads import call_in_thread
from tasks.storage.uploads import Manifest, Uploads, parse_version
from tasks.training.learner.checkpoint_shards import LearnerShards, Upload
from tasks.training.records.checkpoint import Checkpoints, retained
from tasks.training.records.response_list import add_to_list
from tasks.training.records.run_state import RunState
from tasks.training.runtime.timeouts import Limit, StalledError, wait_within

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

logger = logging.getLogger(__name__)

HANG_SECONDS = 3600.0
"""Seconds that a finished run waits for the next file of its last upload."""


class RunStore:
    """Uploads the newest checkpoints of the run in `folder` to `address` while training continues.

    As a context manager, it checks on entry that files can be written at the address, keeps the `lease` of the run
    within the block, and on exit waits until the last upload has ended or hangs.

    Args:
        filesystem: an fsspec file system, with its credentials.
        address: address of this run on the file system, without a trailing slash.
        folder: the run folder, on this machine.
        retry_seconds: pauses before each retry of a failed call.
        lease_seconds: time without a heartbeat after which another attempt may take over the run.
        every: in addition to the newest two, the newest checkpoint whose version is a multiple of this is kept.

    Raises:
        AccessError: on entry, if the address or the credentials are wrong.
        StoreError: on entry, if the storage does not respond.
        RunInUseError: on entry, if another process works on the run.

    Attributes:
        uploads: the uploads at the address.
        lease: the right to work on the run.
    """

    def __init__(
        self,
        filesystem: AbstractFileSystem,
        address: str,
        folder: Path,
        retry_seconds: tuple[float, ...] = WAITS,
        lease_seconds: float = LEASE_SECONDS,
        every: int = 1,
    ) -> None:
        self.uploads = Uploads(filesystem, address, retry_seconds)
        self._fs = filesystem
        self._address = address
        self._folder = folder
        self._every = every
        self._upload: Future[None] | None = None
        self._files_put = 0
        self._put_once: set[Path] = set()
        self._listed: set[Path] = set()
        self.lease = Lease(filesystem, f"{address}/lease.json", lease_seconds)

    def __enter__(self) -> RunStore:
        try:
            self.uploads.try_repeatedly(partial(check_access, self._fs, self._address))
        except AccessError:
            raise
        except Exception as error:  # fsspec's file systems share no kind of error
            raise StoreError(f"{self._address} does not answer: {error}") from error
        self.lease.__enter__()
        return self

    def __exit__(self, *about: object) -> None:
        try:
            self._wait_for_upload()
        finally:
            # last: while this attempt still uploads, no other may take over the run
            self.lease.__exit__(*about)

    def save(self, checkpoint: Path) -> None:
        """Upload a complete checkpoint, with the ledger and the metrics up to it, in the background.

        Returns when the previous upload has ended. The folder that is being read is then one of the newest two, which
        are not deleted. If an upload fails after all retries, a warning is logged, and training continues.
        """
        if self._upload is not None:
            self._upload.result()
        self._upload = call_in_thread(self._save, checkpoint)

    def put(self, checkpoint: Path) -> None:
        """Upload a complete checkpoint as `save` does, and wait for the end of the upload."""
        self._save(checkpoint)

    def has_checkpoint(self) -> bool:
        """Return whether the storage contains a complete checkpoint of this run.

        Raises:
            StoreError: the storage does not respond.
        """
        try:
            return bool(self.uploads.try_repeatedly(self.uploads.list_complete))
        except Exception as error:  # fsspec's file systems share no kind of error
            raise StoreError(f"{self._address} cannot be read: {error}") from error

    def restore(self) -> int | None:
        """Download the newest complete checkpoint into the run folder, unless the folder has one that is as new.

        Returns its version, or None if nothing was downloaded. If a checkpoint is damaged, a warning is logged, and the
        previous one is used.

        Raises:
            StoreError: the storage does not respond.
        """
        try:
            complete = self.uploads.try_repeatedly(self.uploads.list_complete)
            newest_here = self._find_newest_here()
        except Exception as error:  # fsspec's file systems share no kind of error
            raise StoreError(f"{self._address} cannot be read: {error}") from error
        for upload in reversed(complete):
            version = parse_version(upload)
            if newest_here is not None and version <= newest_here:
                return None
            try:
                self._download(upload)
            except DamagedError as error:
                logger.warning("%s/%s is skipped for the checkpoint before it: %s", self._address, upload, error)
            except Exception as error:  # fsspec's file systems share no kind of error
                raise StoreError(f"{self._address}/{upload} cannot be read: {error}") from error
            else:
                logger.info("the run continues from %s/%s", self._address, upload)
                return version
        return None

    def finish(self) -> None:
        """Upload the last responses and policies of a finished run, and delete all checkpoints except the newest.

        The newest is kept for a retry, in case the attempt is killed later while its results are uploaded.
        """
        if self._wait_for_upload():
            self._upload = call_in_thread(self._finish)
            self._wait_for_upload()

    def _finish(self) -> None:
        # responses and policies first: a killed attempt can still continue from the checkpoints that are deleted last
        self._put_beside("the last responses", self._list_response_files)
        self._list_responses()
        self._put_beside("policies on the way", self._policies)
        self._tidy(lambda complete: complete[-1:], sys.maxsize)

    def _wait_for_upload(self) -> bool:
        """Wait for the running upload, and log every minute. Return False if it hangs and is abandoned."""

        async def wait(upload: Future[None]) -> None:
            await wait_within(
                asyncio.wrap_future(upload),
                f"{self._address}: the run has ended, and waits for its last upload",
                Limit(HANG_SECONDS, "HANG_SECONDS"),
                progress=lambda: self._files_put,
            )

        try:
            if self._upload is not None:
                asyncio.run(wait(self._upload))
        except StalledError as error:
            logger.warning("%s: the upload is abandoned", error)
            self._upload = None
            return False
        return True

    def _save(self, checkpoint: Path) -> None:
        try:
            self._put(checkpoint)
        except Exception as error:  # a failed upload must not end training
            logger.warning(
                "%s was not uploaded to %s: %s. Training continues; killed now, it would continue from an older "
                "checkpoint",
                checkpoint.name,
                self._address,
                error,
            )
            return
        self._list_responses()
        self._put_beside("policies on the way", self._policies)
        self._tidy(partial(retained, every=self._every), parse_version(checkpoint.name))

    def _tidy(self, choose: Callable[[list[str]], list[str]], up_to: int) -> None:
        try:
            # an attempt that has lost the run must not delete what its successor continues from
            self.lease.check()
            self._delete_old(choose, up_to)
        except Exception as error:  # they only cost space, and are deleted after the next upload
            logger.warning("older checkpoints in %s were not deleted: %s", self._address, error)

    def _put_beside(self, what: str, paths: Callable[[], list[Path]]) -> None:
        try:
            self.uploads.try_repeatedly(lambda: self._put_each_once(paths()))
        except Exception as error:  # the run is complete without them
            logger.warning("%s were not uploaded to %s: %s", what, self._address, error)

    def _list_responses(self) -> None:
        new = [path for path in self._list_response_files() if path in self._put_once and path not in self._listed]
        try:
            if new:
                self.uploads.try_repeatedly(lambda: add_to_list(self._fs, self._address, new))
            self._listed.update(new)
        except Exception as error:  # only `fetch EXECUTION responses` needs the list
            logger.warning("%s was not written to %s: %s", RESPONSE_LIST, self._address, error)

    def _put_each_once(self, paths: list[Path]) -> None:
        for path in paths:
            # recorded one by one, so that a retry continues with the file that failed
            if path not in self._put_once:
                put_file(self._fs, path, f"{self._address}/{path.relative_to(self._folder).as_posix()}")
                self._put_once.add(path)
                self._files_put += 1

    def _list_response_files(self) -> list[Path]:
        return sorted((self._folder / "rollouts").glob("*.parquet"))

    def _policies(self) -> list[Path]:
        complete = [folder for folder in (self._folder / "policies").glob("step_*") if folder.suffix != PARTIAL]
        return [path for folder in sorted(complete) for path in list_files(folder)]

    def _put(self, checkpoint: Path) -> None:
        self.uploads.try_repeatedly(lambda: self._put_each_once(self._list_response_files()))
        shards = LearnerShards.read(Checkpoints.find_learner_folder(checkpoint))  # names the upload that ranks wrote to
        upload = shards.upload if shards else f"{checkpoint.name}.{uuid.uuid4().hex[:8]}"
        files = {}
        for path, length in self._files(checkpoint):
            name = path.relative_to(self._folder).as_posix()
            files[name] = self.uploads.put(upload, name, path, length)
            self._files_put += 1
        manifest = Manifest(version=parse_version(checkpoint.name), files=files)
        self.uploads.try_repeatedly(partial(self.uploads.write_manifest, upload, manifest))

    def _files(self, checkpoint: Path) -> Iterator[tuple[Path, int | None]]:
        """Yield the path of each file that resuming from `checkpoint` needs, and the bytes that it needs of a record.

        Records may grow meanwhile, with lines after the checkpoint. Of other files the whole is needed.
        """
        state = RunState.read(checkpoint)
        yield self._folder / "ledger.jsonl", state.ledger_bytes
        yield self._folder / "metrics.jsonl", state.journal_bytes
        for path in list_files(self._folder / "tensorboard"):
            yield path, path.stat().st_size
        for folder in (checkpoint, *(self._folder / "policies" / name for name in state.policies)):
            for path in list_files(folder):
                yield path, None

    def _delete_old(self, choose: Callable[[list[str]], list[str]], up_to: int) -> None:
        """Delete all uploads except newer incomplete ones, and the complete ones in the result of `choose`.

        Versions above `up_to` are kept, because ranks may still be uploading their shards.
        """
        uploads = self.uploads.list_all()
        newest = choose([upload for upload, is_complete in uploads.items() if is_complete])
        for upload in uploads:
            if newest and upload not in newest and parse_version(upload) <= min(up_to, parse_version(newest[-1])):
                self.uploads.delete(upload)

    def _download(self, upload: str) -> None:
        manifest = self.uploads.try_repeatedly(partial(self.uploads.read_manifest, upload))
        # Not `durable.whole`, because these are several files and folders of the run folder.
        arriving = self._folder / f"restored{PARTIAL}"
        # a killed attempt may have left a part of another download
        shutil.rmtree(arriving, ignore_errors=True)
        for name, expected in manifest.files.items():
            self.uploads.fetch(upload, name, arriving / name, expected)
        checkpoint = f"step_{manifest.version:08d}"
        self.uploads.try_repeatedly(partial(self._check_shards, arriving / "checkpoints" / checkpoint))
        self._move_in(arriving, checkpoint)

    def _check_shards(self, checkpoint: Path) -> None:
        """Check that the storage contains the checkpoint shards, which ranks download themselves.

        Raises:
            DamagedError: a shard is missing or too short.
        """
        shards = LearnerShards.read(Checkpoints.find_learner_folder(checkpoint))
        if shards and (name := Upload(self.uploads, shards.upload).lack(shards.files)):
            raise DamagedError(f"{name}, a part of the learner's, is missing there or incomplete")

    def _find_newest_here(self) -> int | None:
        """Return the version of the newest checkpoint in the run folder, after removing those without stored shards."""
        while local := Checkpoints.find_newest_below(self._folder / "checkpoints"):
            try:
                self.uploads.try_repeatedly(partial(self._check_shards, local))
            except DamagedError as error:
                logger.warning("%s cannot be used: %s", local, error)
                shutil.rmtree(local)
            else:
                return parse_version(local.name)
        return None

    def _move_in(self, arriving: Path, checkpoint: str) -> None:
        """Move the downloaded files into the run folder, the checkpoint last, because it needs the others."""
        source = arriving / "checkpoints" / checkpoint
        if not source.is_dir():
            raise DamagedError(f"it contains no {checkpoint}")
        for name in ("tensorboard", "rollouts", "policies"):  # of an attempt that continued from an older checkpoint
            shutil.rmtree(self._folder / name, ignore_errors=True)
        for name in ("ledger.jsonl", "metrics.jsonl", "tensorboard"):
            if (arriving / name).exists():
                os.replace(arriving / name, self._folder / name)
        for policy in (arriving / "policies").glob("*"):
            here = self._folder / "policies" / policy.name
            here.parent.mkdir(exist_ok=True)
            os.replace(policy, here)
        (self._folder / "checkpoints").mkdir(exist_ok=True)
        os.replace(source, self._folder / "checkpoints" / checkpoint)
        shutil.rmtree(arriving)


def list_files(folder: Path) -> list[Path]:
    """Return the files in a folder and its subfolders."""
    return sorted(path for path in folder.rglob("*") if path.is_file())
