"""The Ray actor of one learner rank: it finds the other ranks, and then answers calls with its `Trainer`."""

from __future__ import annotations

import os
import socket
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from tasks.machine.large_imports import large_imports
from tasks.training.config import TrainingConfig

if TYPE_CHECKING:
    from torch.distributed import TCPStore

    from tasks.storage.stored_files import StoredFile
    from tasks.training.learner.packing import RowOptions
    from tasks.training.learner.trainer import Trainer


class LearnerRank:
    """A learner rank inside its Ray actor; the trainer exists from `setup` on."""

    def __init__(self, config: TrainingConfig, model_folder: str) -> None:
        """Return at once: `setup` is the collective part. `model_folder`: of the initial checkpoint."""
        self._config = config
        self._folder = model_folder
        self._number = -1
        self._answer: Future[Any] = Future()
        self._listening: socket.socket | None = None
        self._trainer: Trainer | None = None

    @property
    def trainer(self) -> Trainer:
        """The trainer of this rank, once `setup` has returned."""
        assert self._trainer is not None, "setup comes before every other call"
        return self._trainer

    def once(self, number: int, method: str, *arguments: Any) -> Any:
        """Call `setup`, or a method of the trainer, and return its result; a repeated call has no second effect.

        Ray repeats a call whose answer was lost with a connection, and a step that is taken twice is another policy.

        Args:
            number: of the call; only the newest may come again.
            method: its name.
            *arguments: its arguments.
        """
        if number != self._number:
            self._number, self._answer = number, Future()
            try:
                owner = self if method == "setup" else self.trainer
                self._answer.set_result(getattr(owner, method)(*arguments))
            except Exception as error:  # raised below, and again where the call comes again
                self._answer.set_exception(error)
        return self._answer.result()

    def is_written(self) -> bool:
        """Return `Trainer.is_written`; a repeated call has no effect, so that it needs no `once`."""
        return self.trainer.is_written()

    def uploaded_files(self) -> dict[str, StoredFile] | None:
        """Return `Trainer.uploaded_files`; a repeated call has no effect, so that it needs no `once`."""
        return self.trainer.uploaded_files()

    def location(self) -> tuple[str, str]:
        """Return this process's node, by Ray's id, and the number or name of its GPU there; empty: it has none."""
        import ray

        context = ray.get_runtime_context()
        return context.get_node_id(), "".join(context.get_accelerator_ids()["GPU"])

    def address(self) -> tuple[str, int]:
        """Return where other ranks find this one, which is rank 0: this node's address, and a port that is now its own.

        A port that is merely free may be taken before `setup` has imported what it needs, which takes seconds.
        """
        import ray

        dual = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if dual else socket.AF_INET
        self._listening = socket.create_server(("", 0), family=family, dualstack_ipv6=dual)
        return ray.util.get_node_ip_address(), self._listening.getsockname()[1]

    def setup(self, rank: int, ranks: int, address: tuple[str, int]) -> RowOptions:
        """Join the other ranks and make the trainer; return the rows that its model understands. Collective.

        Args:
            rank: this one's number, from 0.
            ranks: their number.
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
            "LOCAL_RANK": "0",  # Ray lets a rank see its own devices only
            "MASTER_ADDR": address[0],
            "MASTER_PORT": str(address[1]),
        }
        with large_imports():
            import deepspeed
            import torch

        if self._config.learner.cpu_threads and not gpus:
            torch.set_num_threads(self._config.learner.cpu_threads)
        # DeepSpeed would compile its own collectives for CPUs here and now, with a C++ compiler; gloo's need none.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        store = self._store(*address) if self._listening else None
        if torch.cuda.is_available():
            torch.cuda.set_per_process_memory_fraction(self._config.shares_of_gpu[1])  # an engine may have the rest
        deepspeed.init_distributed(dist_backend="nccl" if torch.cuda.is_available() else "gloo", verbose=False)
        del store  # torch holds it by now

    def _store(self, host: str, port: int) -> TCPStore:
        """The store through which ranks find each other, on the port that `address` reserved.

        torch would open one on that port itself, and takes this one in its stead.
        """
        from torch.distributed import TCPStore

        assert self._listening
        listening = self._listening.detach()
        return TCPStore(
            host, port, is_master=True, wait_for_workers=False, multi_tenant=True, master_listen_fd=listening
        )
