"""Implements the reference policy of a KL penalty: the frozen initial checkpoint, optionally synced with the policy."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Unpack

import deepspeed
import torch
from torch import Tensor, nn

from tasks.training.learner.policy import Policy, Row
from tasks.training.learner.sharding import compute_own_range, drop_copies, take_own_part

FILES = "reference-{rank:05}-of-{ranks:05}.safetensors"
"""Names of the files of a saved reference policy below a checkpoint's folder: one per rank that has a shard."""


class WithoutAdapter:
    """The reference policy of LoRA training: the policy with its adapter disabled, without extra memory.

    Attributes:
        passes: number of forward passes so far.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.passes = 0

    @torch.no_grad()
    def logprobs(self, **row: Unpack[Row]) -> Tensor:
        """Return log-probabilities `[1, N]`, nats, of one packed row under the initial checkpoint."""
        self.passes += 1
        with self._policy.without_adapter():
            logprobs: Tensor = self._policy(**row)[0]
        return logprobs


class Reference:
    """A reference policy with separate weights: whole on every rank, or sharded over all ranks with ZeRO 3.

    Attributes:
        passes: number of forward passes so far.
    """

    def __init__(self, policy: Policy, device: torch.device, sharding: Mapping[str, Any] | None = None) -> None:
        """Freeze `policy`, the initial checkpoint, which becomes the reference.

        Args:
            policy: as `Policy.load` returns it.
            device: device on which it is computed.
            sharding: DeepSpeed's configuration with which the policy was loaded in shards. Optional. If None, it is
                whole.
        """
        self._policy = policy.eval().requires_grad_(False)
        self._forward: nn.Module = self._policy
        self._rank, self._ranks = 0, 1
        if sharding is None:
            self._policy.to(device)
        else:
            # without an optimizer, DeepSpeed gathers parameters for forward passes and does nothing else
            frozen = {name: value for name, value in sharding.items() if name != "optimizer"}
            self._forward = deepspeed.initialize(model=self._policy, config=frozen)[0]
            self._forward.eval()
            self._rank, self._ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
        self._exact: dict[str, Tensor] = {}
        self.passes = 0

    @torch.no_grad()
    def logprobs(self, **row: Unpack[Row]) -> Tensor:
        """Return log-probabilities `[1, N]`, nats, of one packed row. Collective if the reference is sharded."""
        self.passes += 1
        logprobs: Tensor = self._forward(**row)[0]
        return logprobs

    @torch.no_grad()
    def follow(self, policy: Policy, alpha: float) -> None:
        """Set the weights to `alpha policy + (1 - alpha) self`; each rank sets its shard. Collective.

        Mixed weights are stored in float32: in 16 bits a fraction of a small difference would be rounded away each
        time.

        Args:
            policy: the current policy, sharded like the reference.
            alpha: weight of the policy; with 1, the policy replaces the reference.
        """
        ours = self._collect_parts()
        for name, parameter in policy.checkpoint_parameters():
            own = ours[name]
            mixed = self._exact.get(name, own.float()).lerp(take_own_part(parameter).to(own.device).float(), alpha)
            if alpha < 1 and own.dtype != torch.float32:
                self._exact[name] = mixed
            own.copy_(mixed)
        drop_copies(self._policy)

    def weights(self) -> list[Tensor]:
        """Return the tensors of the weights: the parameters, and the float32 values of mixed weights (`follow`).

        The caller may move their `data` to another device.
        """
        return [*self._policy.parameters(), *self._exact.values()]

    def file(self, rank: int) -> str | None:
        """Return the name of the file to which learner rank `rank` saves `tensors`, or None if only rank 0 saves."""
        return FILES.format(rank=self._rank, ranks=self._ranks) if rank == self._rank else None

    def tensors(self) -> dict[str, Tensor]:
        """Return a copy of this rank's weights in main memory: `[n]`, in memory order, by the model's names."""
        return {name: self._exact.get(name, own).to("cpu", copy=True) for name, own in self._collect_parts().items()}

    @torch.no_grad()
    def load(self, folder: str) -> None:
        """Load the weights that any number of ranks have saved below `folder`. Collective if it is sharded.

        Raises:
            RuntimeError: a rank's file is missing.
        """
        from safetensors import safe_open

        paths = _list_files(Path(folder))
        parameters = dict(self._policy.checkpoint_parameters())
        with contextlib.ExitStack() as stack:
            files = [stack.enter_context(safe_open(path, framework="pt")) for path in paths]
            for name, own in self._collect_parts().items():
                saved = _select_numbers([file.get_slice(name) for file in files], *compute_own_range(parameters[name]))
                if saved.dtype != own.dtype:
                    self._exact[name] = saved.to(own.device)
                own.copy_(saved)
        drop_copies(self._policy)

    def _collect_parts(self) -> dict[str, Tensor]:
        return {name: take_own_part(parameter) for name, parameter in self._policy.checkpoint_parameters()}


def _list_files(folder: Path) -> list[Path]:
    """Return the files of a saved reference policy, by rank.

    Raises:
        RuntimeError: a file is missing.
    """
    paths = sorted(folder.glob(FILES.format(rank=0, ranks=0).replace("00000", "*")))
    ranks = int(paths[0].stem.rpartition("-")[2]) if paths else 0
    if not paths or len(paths) != ranks:
        raise RuntimeError(f"{folder} contains no reference policy: it has {len(paths)} of {ranks} files")
    return paths


def _select_numbers(parts: list[Any], start: int, stop: int) -> Tensor:
    """Return the elements [start, stop) of a parameter whose consecutive shards are `parts`."""
    taken, offset = [parts[0][0:0]], 0
    for part in parts:
        [length] = part.get_shape()
        first, end = max(start - offset, 0), min(stop - offset, length)
        if first < end:
            taken.append(part[first:end])
        offset += length
    return torch.cat(taken)
