"""What a learner rank saves is copied into main memory at once, and written while the next step runs."""

from __future__ import annotations

import copy
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from deepspeed.runtime.checkpoint_engine.torch_checkpoint_engine import TorchCheckpointEngine

from tasks.storage.durable import sync, writing


class BackgroundCheckpointEngine(TorchCheckpointEngine):
    """DeepSpeed's way to write and read files, of which writing is done in a thread, in the order of the calls.

    A file is whole and on the disk once `is_written` says so.
    """

    def __init__(self, config: Any) -> None:
        """`config`: DeepSpeed's, as it has parsed it."""
        super().__init__(config)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._writing: deque[Future[None]] = deque()
        self._memory = CopyMemory()

    def save(self, state_dict: Any, path: str) -> None:
        """Write `state_dict` as it is now."""
        copies: dict[Any, torch.Tensor] = {}
        state, write = self._copied(state_dict, copies), super().save

        def written(path: str) -> None:
            try:
                write(state, path)
            finally:
                self._memory.give_back(copies.values())

        self.write(written, Path(path))

    def write(self, write: Callable[[str], None], path: Path) -> None:
        """Let `write(path)` write a file, of what nobody changes meanwhile."""
        self._writing.append(self._thread.submit(_write, write, path))

    def is_written(self) -> bool:
        """Whether every file is on the disk; raises what the first that failed raised."""
        while self._writing and self._writing[0].done():
            self._writing.popleft().result()
        return not self._writing

    def _copied(self, state: Any, copies: dict[Any, torch.Tensor]) -> Any:
        """`state` with copies of its tensors, by where they are: those that are one stay one."""
        if isinstance(state, torch.Tensor):
            place = (state.device, state.data_ptr(), state.shape, state.stride(), state.dtype)
            if place not in copies:
                copies[place] = self._memory.copy_of(state.detach())
            return copies[place]
        if isinstance(state, dict):
            found = copy.copy(state)  # a module's state has attributes of its own
            found.update((key, self._copied(value, copies)) for key, value in state.items())
            return found
        if type(state) in (list, tuple):
            return type(state)(self._copied(value, copies) for value in state)
        return state


class CopyMemory:
    """Main memory for the copies of a checkpoint, kept for those of the next.

    To fill memory that the system has just given takes several times as long, as it hands it out page by page.
    """

    def __init__(self) -> None:
        self._free: defaultdict[tuple[torch.Size, torch.dtype], list[torch.Tensor]] = defaultdict(list)

    def copy_of(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy that stays as it is until it is given back."""
        free = self._free[tensor.shape, tensor.dtype]
        made = free.pop() if free else torch.empty_like(tensor, device="cpu")
        return made.copy_(tensor)

    def give_back(self, copies: Iterable[torch.Tensor]) -> None:
        """Nobody reads these copies any more."""
        for made in copies:
            self._free[made.shape, made.dtype].append(made)


def _write(write: Callable[[str], None], path: Path) -> None:
    with writing(path):
        write(str(path))
    sync(path)
