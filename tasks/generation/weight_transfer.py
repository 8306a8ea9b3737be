"""Loads new weights into a running vLLM engine from a safetensors file in the node's shared memory.

vLLM has `nccl` and `ipc` weight transfers for GPUs. This one works with and without GPUs: the learner writes one file,
every node gets a copy, and every actor loads it when it is ready. Importing this module registers the transfer, in
vLLM's workers too, because they import `WorkerExtension` by its path.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from safetensors import safe_open
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.model_loader.reload import layerwise
from vllm.model_executor.model_loader.reload.layerwise import finalize_layerwise_reload, initialize_layerwise_reload
from vllm.platforms import current_platform

from tasks.generation.cache_memory import CacheMemory
from tasks.storage.tensor_digest import NOTHING, Contents, TensorDigest

BACKEND = "safetensors"
"""Name of this transfer in vLLM (`WeightTransferConfig.backend`)."""
WORKER_EXTENSION = f"{__name__}.WorkerExtension"
"""Path of `WorkerExtension`, for vLLM's option `worker_extension_cls`."""


@dataclass
class SafetensorsInitInfo(WeightTransferInitInfo):
    """An empty init info, because nothing has to be agreed on before the first update."""


@dataclass
class SafetensorsUpdateInfo(WeightTransferUpdateInfo):
    """One update of the weights."""

    path: str
    """A safetensors file with the tensor names of the Hugging Face checkpoint."""


class SafetensorsWeightTransferEngine(WeightTransferEngine[SafetensorsInitInfo, SafetensorsUpdateInfo]):
    """Loads a checkpoint file into the running model, layer by layer, without touching the KV cache.

    Attributes:
        unused: names of tensors in the last file that were not loaded into any weight of the model.
        unfilled: names of the model's weights, as vLLM names them, that no tensor in the last file was loaded into.
        contents: contents of the loaded tensors.
    """

    init_info_cls = SafetensorsInitInfo
    update_info_cls = SafetensorsUpdateInfo
    unused: Sequence[str] = ()
    unfilled: Sequence[str] = ()
    contents: Contents = NOTHING

    def init_transfer_engine(self, init_info: SafetensorsInitInfo) -> None:
        """Do nothing: the file is the only channel and needs no rendezvous."""

    def start_weight_update(self) -> None:
        """Convert the layers back to the checkpoint's layout, so that the weight loaders can fill them."""
        self.contents = NOTHING
        initialize_layerwise_reload(self.model)
        if current_platform.is_cpu():
            # The MoE kernel packs the expert weights when it is created. vLLM keeps the kernel across an update and
            # would pass it unpacked weights. If there is no kernel, vLLM creates a new one.
            for layer in self.model.modules():
                method: Any = getattr(layer, "quant_method", None)
                if getattr(method, "moe_kernel", None) is not None:
                    method.moe_kernel = None

    def update_weights(self, update_info: dict[str, str]) -> None:
        """Load the file without the base class, which would synchronise an accelerator that may not exist."""
        self.receive_weights(self.parse_update_info(update_info))
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: SafetensorsUpdateInfo) -> None:
        """Stream the tensors from the memory-mapped file into the model's weight loaders."""
        load_weights: Callable[[Iterable[tuple[str, torch.Tensor]]], set[str] | None] = self.model.load_weights  # type: ignore[assignment]
        arrivals, digest = Arrivals(self.model), TensorDigest()
        with safe_open(update_info.path, framework="pt", device="cpu") as file, arrivals.count():
            loaded = load_weights(arrivals.following(_read_tensors(file, digest))) or set()
            self.contents = digest.contents()
        tied = "lm_head." if self.model_config.hf_config.tie_word_embeddings else None
        self.unused = [name for name in arrivals.unused if name not in loaded and "rotary_emb." not in name]
        self.unfilled = [name for name in arrivals.unfilled if name not in loaded and not (tied and tied in name)]

    def finish_weight_update(self) -> None:
        """Convert the layers back to the layout that the kernels use."""
        finalize_layerwise_reload(self.model, self.model_config)
        head = getattr(self.model, "lm_head", None)
        if current_platform.is_cpu() and head is not None and self.model_config.hf_config.tie_word_embeddings:
            # No tensor is loaded for a tied head, so the reload skips it. But on a CPU its kernel has a packed copy
            # of the embedding and would continue to use the old one.
            head.quant_method.process_weights_after_loading(head)

    def shutdown(self) -> None:
        """Do nothing: no resources are kept between updates."""


def _read_tensors(file: Any, digest: TensorDigest) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the name and value of each tensor in a safetensors file, and add it to `digest`."""
    for name in file.keys():  # noqa: SIM118 not a mapping
        tensor = file.get_tensor(name)
        digest.add(name, tensor)
        yield name, tensor


class Arrivals:
    """Records which tensors of a stream were loaded, and into which weights of the model.

    Weight loaders take tensors from the stream one by one, and vLLM's layerwise reload calls `get_numel_loaded` for
    each tensor that is loaded into a weight. If a loader collects the whole stream first, this cannot be recorded.

    Args:
        model: vLLM's model, whose layers wait for their weights.

    Attributes:
        unused: names of the tensors for which the call was not made before the next tensor was taken.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._weights = dict(model.named_parameters())  # during the reload, which ends when the last weight is loaded
        self._filled: set[int] = set()
        self._calls = 0
        self.unused: list[str] = []

    @property
    def unfilled(self) -> list[str]:
        """Names of the weights, as vLLM names them, that no tensor was loaded into."""
        return [name for name, weight in self._weights.items() if id(weight) not in self._filled]

    @contextlib.contextmanager
    def count(self) -> Iterator[None]:
        """Count the calls of `get_numel_loaded` while the block runs."""
        original = layerwise.get_numel_loaded

        def count_loads(weight_loader: Callable[..., Any], args: inspect.BoundArguments) -> tuple[int, object]:
            self._calls += 1
            self._filled.update(map(id, args.arguments.values()))
            return original(weight_loader, args)

        layerwise.get_numel_loaded = count_loads
        try:
            yield
        finally:
            layerwise.get_numel_loaded = original

    def following(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield `tensors` with their names, and record each that was not loaded before the next was requested."""
        for name, tensor in tensors:
            before = self._calls
            yield name, tensor
            if self._calls == before:
                self.unused.append(name)
        if not self._calls:  # the loader has collected them
            self.unused.clear()


class WorkerExtension(CacheMemory):
    """Extends vLLM's workers (option `worker_extension_cls`): each worker imports this module and gets the methods."""

    weight_transfer_engine: SafetensorsWeightTransferEngine

    def arrived(self) -> tuple[list[str], list[str], Contents]:
        """Return `unused`, `unfilled` and `contents` of the last update (see `SafetensorsWeightTransferEngine`)."""
        transfer = self.weight_transfer_engine
        return list(transfer.unused), list(transfer.unfilled), transfer.contents


if BACKEND not in WeightTransferEngineFactory._registry:  # a spawned process may import this module twice
    WeightTransferEngineFactory.register_engine(BACKEND, SafetensorsWeightTransferEngine)
