"""Implements the Ray actor of one learner rank, which connects to the other ranks and runs its `Trainer`."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from tasks.machine.large_imports import large_imports
from tasks.recipe.run import TrainingConfig
from tasks.sizing.roofline import WEIGHT, find_architecture

if TYPE_CHECKING:
    from torch.distributed import TCPStore

    from tasks.storage.stored_files import StoredFile
    from tasks.storage.tensor_digest import Contents
    from tasks.training.learner.checkpoint_shards import Upload
    from tasks.training.learner.client import RankReport
    from tasks.training.learner.packing import Floats, MicroBatch, RowOptions
    from tasks.training.learner.trainer import Trainer

P = ParamSpec("P")
T = TypeVar("T")

MARGIN = 600.0
"""Seconds that are added to the limits of the controller, for the limit of a collective call of the ranks."""


def group_timeout(config: TrainingConfig) -> timedelta:
    """Return the time limit of the ranks' collective calls.

    It is longer than the controller's limits, so that these end a wait, with a message that names who waits for what.
    DeepSpeed's default, 10 minutes, is shorter: ranks that wait while rank 0 writes a policy would be aborted by NCCL.
    """
    return timedelta(seconds=max(config.stall_seconds, config.learner.init_timeout_seconds) + MARGIN)


def compute_memory_share(config: TrainingConfig, memory: int, model: Path) -> float:
    """Return the share of a GPU of `memory` bytes that a rank may use.

    For a model whose shape is not known, nothing is reserved for a layer.
    """
    shape = find_architecture(model)
    return config.compute_rank_share(memory, WEIGHT * shape.largest_module if shape else 0)


class LearnerRank:
    """A learner rank inside its Ray actor.

    Ray repeats a call if its answer was lost with a connection, and repeating a step would change the policy. So each
    method with an effect gets the number of the call, and a repeated call only returns the answer again.

    Attributes:
        trainer: computes everything; it exists from `setup` on.
    """

    trainer: Trainer

    def __init__(self, config: TrainingConfig, model_folder: str) -> None:
        """Return immediately: `setup` is the collective part. `model_folder` is the initial checkpoint's."""
        self._config = config
        self._folder = model_folder
        self._number = -1
        self._answer: Future[Any] = Future()
        self._listening: socket.socket | None = None

    def _once(self, number: int, method: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
        """Call a method and return its result; if the call `number` is repeated, do nothing and return it again.

        Only the newest call may be repeated.
        """
        if number != self._number:
            self._number, self._answer = number, Future()
            try:
                self._answer.set_result(method(*arguments, **options))
            except Exception as error:  # raised below, and again if the call is repeated
                self._answer.set_exception(error)
        return self._answer.result()

    def step(
        self, number: int, micro_batches: Sequence[MicroBatch], denominator: float, learning_rate: float
    ) -> RankReport:
        """Return `Trainer.step` of these arguments. Collective."""
        return self._once(number, self.trainer.step, micro_batches, denominator, learning_rate)

    def logprobs(self, number: int, micro_batches: Sequence[MicroBatch]) -> list[Floats]:
        """Return `Trainer.logprobs`. Collective."""
        return self._once(number, self.trainer.logprobs, micro_batches)

    def reference_logprobs(self, number: int, micro_batches: Sequence[MicroBatch]) -> list[Floats]:
        """Return `Trainer.reference_logprobs`. Collective."""
        return self._once(number, self.trainer.reference_logprobs, micro_batches)

    def offload_states(self, number: int) -> None:
        """Call `Trainer.offload_states`."""
        self._once(number, self.trainer.offload_states)

    def reload_states(self, number: int) -> None:
        """Call `Trainer.reload_states`."""
        self._once(number, self.trainer.reload_states)

    def write_weights(self, number: int, path: str) -> Contents:
        """Return `Trainer.write_weights`. Collective."""
        return self._once(number, self.trainer.write_weights, path)

    def export(self, number: int, folder: str) -> None:
        """Call `Trainer.export`. Collective."""
        self._once(number, self.trainer.export, folder)

    def save(self, number: int, folder: str, upload: Upload | None) -> None:
        """Call `Trainer.save`. Collective."""
        self._once(number, self.trainer.save, folder, upload)

    def is_written(self) -> bool:
        """Return `Trainer.is_written`; it has no effect."""
        return self.trainer.is_written()

    def uploaded_files(self) -> dict[str, StoredFile] | None:
        """Return `Trainer.uploaded_files`; it has no effect."""
        return self.trainer.uploaded_files()

    def fetch(self, number: int, upload: Upload, folder: str, files: dict[str, StoredFile]) -> None:
        """Download files of an upload into a folder of this node, for `load`.

        Raises:
            DamagedError: a file is missing on the storage, or differs from what was uploaded.
            StoreError: the storage does not answer.
        """
        self._once(number, upload.fetch, Path(folder), files)

    def load(self, number: int, folder: str) -> None:
        """Call `Trainer.load`. Collective."""
        self._once(number, self.trainer.load, folder)

    def location(self) -> tuple[str, str]:
        """Return Ray's id of this process's node, and the number or name of its GPU there, or "" without a GPU."""
        import ray

        context = ray.get_runtime_context()
        return context.get_node_id(), "".join(context.get_accelerator_ids()["GPU"])

    def address(self) -> tuple[str, int]:
        """Return the address of this node and a port reserved on it, at which other ranks connect to this one (rank 0).

        A port that is only free, not reserved, may be taken before `setup` has finished its imports, which take
        seconds.
        """
        import ray

        dual = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if dual else socket.AF_INET
        self._listening = socket.create_server(("", 0), family=family, dualstack_ipv6=dual)
        return ray.util.get_node_ip_address(), self._listening.getsockname()[1]

    def setup(self, number: int, rank: int, ranks: int, address: tuple[str, int]) -> RowOptions:
        """Join the other ranks and create the trainer; return the kind of rows that its model supports. Collective.

        Args:
            number: number of the call.
            rank: number of this rank, from 0.
            ranks: number of ranks.
            address: the result of `address` on rank 0.
        """
        return self._once(number, self._set_up, rank, ranks, address)

    def _set_up(self, rank: int, ranks: int, address: tuple[str, int]) -> RowOptions:
        self._join(rank, ranks, address)
        with large_imports():
            from tasks.training.learner.trainer import Trainer

        self.trainer = Trainer(self._config, self._folder)
        return self.trainer.policy.rows

    def _join(self, rank: int, ranks: int, address: tuple[str, int]) -> None:
        """Initialise `torch.distributed`, with NCCL on GPUs and gloo elsewhere."""
        gpus = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        os.environ |= {
            "RANK": str(rank),
            "WORLD_SIZE": str(ranks),
            "LOCAL_RANK": "0",  # Ray shows a rank only its devices
            "MASTER_ADDR": address[0],
            "MASTER_PORT": str(address[1]),
        }
        with large_imports():
            import deepspeed
            import torch

        if self._config.learner.cpu_threads and not gpus:
            torch.set_num_threads(self._config.learner.cpu_threads)
        # DeepSpeed would compile its collectives for CPUs now, with a C++ compiler; gloo's need none.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        store = self._create_store(*address) if self._listening else None
        if torch.cuda.is_available():
            # An engine may use the rest.
            torch.cuda.set_per_process_memory_fraction(
                compute_memory_share(self._config, torch.cuda.get_device_properties(0).total_memory, Path(self._folder))
            )
        backend = "nccl" if torch.cuda.is_available() else "gloo"
        deepspeed.init_distributed(dist_backend=backend, verbose=False, timeout=group_timeout(self._config))
        del store  # torch keeps a reference

    def _create_store(self, host: str, port: int) -> TCPStore:
        """Return the store that ranks use to find each other, on the port that `address` reserved.

        torch would open a store on that port itself, and uses this one instead.
        """
        from torch.distributed import TCPStore

        assert self._listening
        listening = self._listening.detach()
        return TCPStore(
            host, port, is_master=True, wait_for_workers=False, multi_tenant=True, master_listen_fd=listening
        )
