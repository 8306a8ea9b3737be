"""The reference policy of a KL penalty: the initial checkpoint, frozen, or moved towards the policy now and then."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Unpack

import torch
from torch import Tensor

from tasks.training.learner.policy import Policy, Row

FILE = "reference.safetensors"
"""Name of the saved reference policy below a checkpoint's folder."""


class WithoutAdapter:
    """The reference policy of a LoRA training: the policy itself with its adapter switched off, at no extra memory.

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
    """A reference policy with weights of its own, whole on every rank, whatever the ZeRO stage.

    Attributes:
        passes: number of forward passes so far.
    """

    def __init__(
        self, folder: str, device: torch.device, chunk: int, dtype: torch.dtype, longest: int | None = None
    ) -> None:
        """Load the checkpoint in `folder`; `chunk`, `dtype` and `longest` are the policy's (`Policy.load`)."""
        policy = Policy.load(folder, dtype=dtype, chunk=chunk, longest=longest)
        self._policy = policy.to(device).eval().requires_grad_(False)
        self._exact: dict[str, Tensor] = {}
        self.passes = 0

    @torch.no_grad()
    def logprobs(self, **row: Unpack[Row]) -> Tensor:
        """Return log-probabilities `[1, N]`, nats, of one packed row."""
        self.passes += 1
        logprobs: Tensor = self._policy(**row)[0]
        return logprobs

    @torch.no_grad()
    def follow(self, policy: Policy, alpha: float, gathered: Callable[[torch.nn.Parameter], Tensor]) -> None:
        """Set the weights to `alpha policy + (1 - alpha) self`.

        Mixed weights are stored in float32: in 16 bits a share of a small difference would be rounded away each time.

        Args:
            policy: the current policy.
            alpha: share of the policy; 1 replaces the reference by it.
            gathered: returns the whole of a parameter that may be sharded over ranks.
        """
        ours = dict(self._policy.checkpoint_parameters())
        for name, parameter in policy.checkpoint_parameters():
            mixed = self._exact.get(name, ours[name].float()).lerp(gathered(parameter).float(), alpha)
            if alpha < 1 and ours[name].dtype != torch.float32:
                self._exact[name] = mixed
            ours[name].copy_(mixed)

    def tensors(self) -> dict[str, Tensor]:
        """Return a copy of the weights in main memory, under the checkpoint's names."""
        parameters = self._policy.checkpoint_parameters()
        return {name: self._exact.get(name, own).to("cpu", copy=True).contiguous() for name, own in parameters}

    def load(self, folder: str) -> None:
        """Take the weights in `FILE` below `folder`; raises `RuntimeError` where there is no such file."""
        from safetensors.torch import load_file

        path = Path(folder) / FILE
        if not path.is_file():
            raise RuntimeError(f"{folder} holds no reference policy")
        ours = dict(self._policy.checkpoint_parameters())
        for name, tensor in load_file(path).items():
            if tensor.dtype != ours[name].dtype:
                self._exact[name] = tensor.to(ours[name].device)
            ours[name].copy_(tensor)
