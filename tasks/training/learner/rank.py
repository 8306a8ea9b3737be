"""Implements the Ray actor of one learner rank, which connects to the other ranks and runs its `Trainer`."""

from __future__ import annotations

import os
import socket
from concurrent.futures import Future
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.machine.large_imports import large_imports
from tasks.training.options.run import TrainingConfig
from tasks.training.sizing.roofline import WEIGHT, find_architecture

if TYPE_CHECKING:
    from torch.distributed import TCPStore

    from tasks.storage.stored_files import StoredFile
    from tasks.training.learner.packing import RowOptions
    from tasks.training.learner.trainer import Trainer


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
    """A learner rank inside its Ray actor; the trainer exists from `setup` on."""

    def __init__(self, config: TrainingConfig, model_folder: str) -> None:
        """Return immediately: `setup` is the collective part. `model_folder` is the initial checkpoint's."""
        self._config = config
        self._folder = model_folder
        self._number = -1
        self._answer: Future[Any] = Future()
        self._listening: socket.socket | None = None
        self._trainer: Trainer | None = None

    @property
    def trainer(self) -> Trainer:
        """The trainer of this rank, after `setup` has returned."""
        assert self._trainer is not None, "setup comes before every other call"
        return self._trainer

    def once(self, number: int, method: str, *arguments: Any) -> Any:
        """Call `setup`, or a method of the trainer, and return its result; a repeated call has no second effect.

        Ray repeats a call if its answer was lost with a connection, and repeating a step would change the policy.

        Args:
            number: number of the call; only the newest may be repeated.
            method: name of the method.
            *arguments: its arguments.
        """
        if number != self._number:
            self._number, self._answer = number, Future()
            try:
                owner = self if method == "setup" else self.trainer
                self._answer.set_result(getattr(owner, method)(*arguments))
            except Exception as error:  # raised below, and again if the call is repeated
                self._answer.set_exception(error)
        return self._answer.result()

    def is_written(self) -> bool:
        """Return `Trainer.is_written`; a repeated call has no effect, so that it needs no `once`."""
        return self.trainer.is_written()

    def uploaded_files(self) -> dict[str, StoredFile] | None:
        """Return `Trainer.uploaded_files`; a repeated call has no effect, so that it needs no `once`."""
        return self.trainer.uploaded_files()

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

    def setup(self, rank: int, ranks: int, address: tuple[str, int]) -> RowOptions:
        """Join the other ranks and create the trainer; return the kind of rows that its model supports. Collective.

        Args:
            rank: number of this rank, from 0.
            ranks: number of ranks.
            address: the result of `address` on rank 0.
        """
        self._join(rank, ranks, address)
        with large_imports():
            from tasks.training.learner.trainer import Trainer

        self._trainer = Trainer(self._config, self._folder)
        return self._trainer.policy.rows

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
