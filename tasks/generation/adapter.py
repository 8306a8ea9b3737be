"""vLLM's LoRA on a CPU, for engines in which every request runs the same adapter.

vLLM's own operators gather the adapter's matrices once for every token, and give the adapter to requests without one
where both kinds are in a batch. With one adapter two matrix products do.
"""

from __future__ import annotations

from typing import Any, get_args

from torch import Tensor
from torch.nn.functional import linear
from vllm.config.lora import MaxLoRARanks
from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU
from vllm.platforms import current_platform

WORKER_EXTENSION = f"{__name__}.WorkerExtension"


def supported_rank(rank: int) -> int:
    """The smallest rank that vLLM reserves memory for and that holds `rank`.

    Raises:
        ValueError: there is none.
    """
    ranks = sorted(get_args(MaxLoRARanks))
    fits = [each for each in ranks if each >= rank]
    if not fits:
        raise ValueError(f"an adapter of rank {rank}: vLLM serves up to {ranks[-1]}")
    return fits[0]


class OneAdapter(PunicaWrapperCPU):
    """Adds `(x A^T) B^T` of the adapter in slot 0; nothing where no token of a batch asks for it."""

    _active: bool = False

    def update_metadata(self, *arguments: Any, **options: Any) -> None:
        """Who runs the adapter in the next batch: all tokens, or in vLLM's own warm-up none."""
        super().update_metadata(*arguments, **options)
        self._active = bool((self.token_lora_indices >= 0).any())

    def add_lora_linear(
        self,
        y: Tensor,
        x: Tensor,
        lora_a_stacked: tuple[Tensor, ...],
        lora_b_stacked: tuple[Tensor, ...],
        scale: float,
        output_slices: tuple[int, ...],
        **_: Any,
    ) -> None:
        """`y` `[T, out]` in place; layers that vLLM fuses (q, k and v) have an A and a B for each slice of `out`.

        The adapter's scale is in B already.
        """
        if not self._active:
            return
        y, x, start = y.view(-1, y.shape[-1]), x.view(-1, x.shape[-1]), 0
        for a, b, size in zip(lora_a_stacked, lora_b_stacked, output_slices, strict=True):
            y[:, start : start + size] += linear(linear(x, a[0, 0]), b[0, 0])
            start += size

    def add_lora_logits(self, *_: Any, **__: Any) -> None:
        """The head has no adapter."""


class WorkerExtension:
    """Named to vLLM as `worker_extension_cls`, so that each worker process imports this module before it loads."""


if current_platform.is_cpu():
    setattr(type(current_platform), "get_punica_wrapper", classmethod(lambda _: f"{__name__}.OneAdapter"))  # noqa: B010
