"""Writes checkpoints while the next step runs.

A GPU's state is copied to main memory immediately, and the copy is written. State that is already in main memory is
written without a copy, which would need as much memory again: it must not change before `wait` has returned.
"""

from __future__ import annotations

import copy
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import torch
from deepspeed.runtime.checkpoint_engine.torch_checkpoint_engine import TorchCheckpointEngine

from tasks.storage.durable import convert_write_errors, sync

if TYPE_CHECKING:
    from deepspeed.runtime.config import DeepSpeedConfig


Result = TypeVar("Result")


class BackgroundCheckpointEngine(TorchCheckpointEngine):
    """A checkpoint engine for DeepSpeed that writes files in a thread, in the order of the calls.

    Files are complete and on the disk once `is_written` returns True.
    """

    def __init__(self, config: DeepSpeedConfig, *, copies: bool) -> None:
        """Start the writing thread.

        Args:
            config: DeepSpeed's parsed configuration.
            copies: whether tensors are copied. If so, they may change immediately, otherwise only after `wait`.
        """
        super().__init__(config)
        self._copies = copies
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._writing: deque[Future[None]] = deque()
        self._paths: list[Path] = []  # files written since `begin`
        self._memory = CopyMemory()

    def begin(self) -> None:
        """Begin another checkpoint, and forget errors of the previous one."""
        self._writing.clear()
        self._paths = []

    def save(self, state_dict: object, path: str) -> None:
        """Write `state_dict` as it is now to `path` in the background."""
        copies: dict[_Address, torch.Tensor] = {}
        state, write = self._copy(state_dict, copies), super().save

        def write_copies(path: str) -> None:
            try:
                write(state, path)
            finally:
                self._memory.give_back(copies.values())

        self.write(write_copies, Path(path))

    def write(self, write: Callable[[str], None], path: Path) -> None:
        """Call `write(path)` in the background; the data that it writes must not change meanwhile."""
        self._paths.append(path)
        self._writing.append(self._thread.submit(_write, write, path))

    def after_writing(self, call: Callable[[list[Path]], Result]) -> Future[Result]:
        """Call `call` in the background with the files written since `begin`, once all are on the disk.

        If a file could not be written, the future raises its error.
        """
        writing, paths = list(self._writing), list(self._paths)

        def after() -> Result:
            for file in writing:
                file.result()
            return call(paths)

        return self._thread.submit(after)

    def wait(self) -> None:
        """Wait until tensors that were not copied may change; `is_written` raises errors of the writing."""
        if not self._copies:
            wait(self._writing)

    def is_written(self) -> bool:
        """Return whether every file is on the disk; raise the error of the first file that could not be written."""
        while self._writing and self._writing[0].done():
            self._writing.popleft().result()
        return not self._writing

    def _copy(self, state: object, copies: dict[_Address, torch.Tensor]) -> object:
        """Return `state` with its tensors copied, if the engine copies; two references to one tensor share one copy."""
        if isinstance(state, torch.Tensor):
            if not self._copies:
                return state.detach()
            address = (state.device, state.data_ptr(), state.shape, state.stride(), state.dtype)
            if address not in copies:
                copies[address] = self._memory.make_copy(state.detach())
            return copies[address]
        if isinstance(state, dict):
            copied = copy.copy(state)  # a module's state is a dict with attributes
            copied.update((key, self._copy(value, copies)) for key, value in state.items())
            return copied
        if type(state) is list:
            return [self._copy(value, copies) for value in state]
        if type(state) is tuple:
            return tuple(self._copy(value, copies) for value in state)
        return state


class CopyMemory:
    """Main memory for the copies of a checkpoint, reused for the next checkpoint.

    The first write to newly allocated memory takes several times as long, because the system maps it page by page.
    """

    def __init__(self) -> None:
        self._free: defaultdict[tuple[torch.Size, torch.dtype], list[torch.Tensor]] = defaultdict(list)

    def make_copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a copy of a tensor, whose memory is not reused before `give_back`."""
        free = self._free[tensor.shape, tensor.dtype]
        target = free.pop() if free else torch.empty_like(tensor, device="cpu")
        return target.copy_(tensor)

    def give_back(self, copies: Iterable[torch.Tensor]) -> None:
        """Take back copies that are no longer read, for reuse."""
        for tensor in copies:
            self._free[tensor.shape, tensor.dtype].append(tensor)


_Address = tuple[torch.device, int, torch.Size, tuple[int, ...], torch.dtype]
"""Device, pointer, shape, strides and type: equal for two tensors that are the same view of the same memory."""


def _write(write: Callable[[str], None], path: Path) -> None:
    with convert_write_errors(path):
        write(str(path))
    sync(path)
