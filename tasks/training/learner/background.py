"""What a learner rank saves is copied into main memory at once, and written while the next step runs."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import torch
from deepspeed.runtime.checkpoint_engine.torch_checkpoint_engine import TorchCheckpointEngine

from tasks.training.durable import sync, writing


class BackgroundCheckpointEngine(TorchCheckpointEngine):
    """DeepSpeed's way to write and read files, of which writing is done in a thread, in the order of the calls.

    A file is whole and on the disk once `is_written` says so.
    """

    def __init__(self, config: Any) -> None:
        """`config`: DeepSpeed's, as it has parsed it."""
        super().__init__(config)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._writing: deque[Future[None]] = deque()

    def save(self, state_dict: Any, path: str) -> None:
        """Write `state_dict` as it is now."""
        self.write(partial(super().save, copied(state_dict)), Path(path))

    def write(self, write: Callable[[str], None], path: Path) -> None:
        """Let `write(path)` write a file, of what nobody changes meanwhile."""
        self._writing.append(self._thread.submit(_write, write, path))

    def is_written(self) -> bool:
        """Whether every file is on the disk; raises what the first that failed raised."""
        while self._writing and self._writing[0].done():
            self._writing.popleft().result()
        return not self._writing


def copied(state: Any) -> Any:
    """`state` with copies of its tensors in main memory; tensors that are one stay one."""
    return _copied(state, {})


def _copied(state: Any, known: dict[Any, torch.Tensor]) -> Any:
    if isinstance(state, torch.Tensor):
        place = (state.device, state.data_ptr(), state.shape, state.stride(), state.dtype)
        if place not in known:
            known[place] = state.detach().to("cpu", copy=True)
        return known[place]
    if isinstance(state, dict):
        found = copy.copy(state)  # a module's state has attributes of its own
        found.update((key, _copied(value, known)) for key, value in state.items())
        return found
    if type(state) in (list, tuple):
        return type(state)(_copied(value, known) for value in state)
    return state


def _write(write: Callable[[str], None], path: Path) -> None:
    with writing(path):
        write(str(path))
    sync(path)
