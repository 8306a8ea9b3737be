"""Implements LoRA for vLLM on a CPU, for engines whose requests all use the same adapter.

vLLM's operators gather the adapter's matrices once per token. They also apply the adapter to requests without one if
a batch contains both kinds. With a single adapter two matrix products are enough.
"""

from __future__ import annotations

from typing import Any, ClassVar, get_args

from torch import Tensor
from torch.nn.functional import linear
from vllm.config.lora import MaxLoRARanks
from vllm.lora.lora_model import LoRAModel
from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU
from vllm.platforms import current_platform

from tasks.failures import MistakeError
from tasks.generation.cache_memory import CacheMemory
from tasks.storage.tensor_digest import NOTHING, Contents, compute_contents

WORKER_EXTENSION = f"{__name__}.WorkerExtension"
"""Path of `WorkerExtension`, for vLLM's option `worker_extension_cls`."""


def choose_rank(rank: int) -> int:
    """Return the smallest rank of at least `rank` that vLLM can be started with (`max_lora_rank`).

    Raises:
        ValueError: `rank` is above all of them.
    """
    ranks = sorted(get_args(MaxLoRARanks))
    fits = [supported for supported in ranks if supported >= rank]
    if not fits:
        raise MistakeError(f"an adapter of rank {rank}: vLLM serves up to {ranks[-1]}")
    return fits[0]


class OneAdapter(PunicaWrapperCPU):
    """LoRA operators that add `(x A^T) B^T` of the adapter in slot 0, or nothing if no token of a batch uses it."""

    _active: bool = False

    def update_metadata(self, *arguments: Any, **options: Any) -> None:
        """Record whether the next batch uses the adapter: either all of its tokens do, or none in vLLM's warm-up."""
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
        **_: object,
    ) -> None:
        """Add the adapter's output for `x` `[T, in]` to `y` `[T, out]` in place.

        Layers that vLLM fuses (q, k and v) have an A and a B for each slice of `out`. B already includes the adapter's
        scale.
        """
        if not self._active:
            return
        y, x, start = y.view(-1, y.shape[-1]), x.view(-1, x.shape[-1]), 0
        for a, b, size in zip(lora_a_stacked, lora_b_stacked, output_slices, strict=True):
            y[:, start : start + size] += linear(linear(x, a[0, 0]), b[0, 0])
            start += size

    def add_lora_logits(self, *_: object, **__: object) -> None:
        """Do nothing, because the head has no adapter."""


class WorkerExtension(CacheMemory):
    """Adds `arrived` to vLLM's workers: the digest of the adapter that they loaded (option `worker_extension_cls`)."""

    def arrived(self) -> tuple[list[str], list[str], Contents]:
        """Return two empty lists, because vLLM itself refuses unknown tensors, and the contents of the last adapter."""
        return [], [], _Arrival.contents


class _Arrival:
    """Stores the contents of the last adapter that this process loaded."""

    contents: ClassVar[Contents] = NOTHING


_from_lora_tensors = LoRAModel.from_lora_tensors


def _from_digested_tensors(*, tensors: dict[str, Tensor], **options: Any) -> LoRAModel:
    _Arrival.contents = compute_contents(tensors)
    return _from_lora_tensors(tensors=tensors, **options)


setattr(LoRAModel, "from_lora_tensors", staticmethod(_from_digested_tensors))  # noqa: B010 vLLM calls it by the class

if current_platform.is_cpu():
    setattr(type(current_platform), "get_punica_wrapper", classmethod(lambda _: f"{__name__}.OneAdapter"))  # noqa: B010
