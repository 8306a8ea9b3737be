"""A weight-transfer engine for vLLM: new weights come from a safetensors file, in the shared memory of the node.

vLLM has `nccl` and `ipc` transfers for GPUs. This one serves machines with and without: the learner writes one file,
which every node gets a copy of, and every actor loads it when it is ready to. Importing this module registers it, in
vLLM's workers too: they import `WorkerExtension` by its path.
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

from tasks.storage.tensor_digest import NOTHING, Contents, TensorDigest

BACKEND = "safetensors"
"""Name under which vLLM knows this transfer (`WeightTransferConfig.backend`)."""
WORKER_EXTENSION = f"{__name__}.WorkerExtension"
"""Path of `WorkerExtension`, for vLLM's option `worker_extension_cls`."""


@dataclass
class SafetensorsInitInfo(WeightTransferInitInfo):
    """Empty: there is nothing to agree on before the first update."""


@dataclass
class SafetensorsUpdateInfo(WeightTransferUpdateInfo):
    """One update of the weights."""

    path: str
    """A safetensors file with the tensor names of the Hugging Face checkpoint."""


class SafetensorsWeightTransferEngine(WeightTransferEngine[SafetensorsInitInfo, SafetensorsUpdateInfo]):
    """A transfer that loads a checkpoint file into the running model, layer by layer, and leaves the KV cache.

    Attributes:
        unused: names of the last file's tensors that no weight of the model was loaded from.
        unfilled: names of the model's weights, as vLLM has them, that the last file had nothing for.
        contents: contents of the tensors that were loaded.
    """

    init_info_cls = SafetensorsInitInfo
    update_info_cls = SafetensorsUpdateInfo
    unused: Sequence[str] = ()
    unfilled: Sequence[str] = ()
    contents: Contents = NOTHING

    def init_transfer_engine(self, init_info: SafetensorsInitInfo) -> None:
        """Do nothing: the file is the only channel, and needs no rendezvous."""

    def start_weight_update(self) -> None:
        """Bring the layers back into the checkpoint's form, so that loaders can fill them."""
        self.contents = NOTHING
        initialize_layerwise_reload(self.model)
        if current_platform.is_cpu():
            # A kernel of experts packs their weights when it is made; vLLM keeps it over an update, and would give it
            # weights that are not packed. Without one it makes another.
            for layer in self.model.modules():
                method: Any = getattr(layer, "quant_method", None)
                if getattr(method, "moe_kernel", None) is not None:
                    method.moe_kernel = None

    def update_weights(self, update_info: dict[str, str]) -> None:
        """Load the file; the base class would synchronise an accelerator that may not exist."""
        self.receive_weights(self.parse_update_info(update_info))
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: SafetensorsUpdateInfo) -> None:
        """Stream the tensors from the memory-mapped file into the model's loaders."""
        load_weights: Callable[[Iterable[tuple[str, torch.Tensor]]], set[str] | None] = self.model.load_weights  # type: ignore[assignment]
        arrivals, digest = Arrivals(self.model), TensorDigest()
        with safe_open(update_info.path, framework="pt", device="cpu") as file, arrivals.counted():
            loaded = load_weights(arrivals.following(_digested(file, digest))) or set()
            self.contents = digest.contents()
        tied = "lm_head." if self.model_config.hf_config.tie_word_embeddings else None
        self.unused = [name for name in arrivals.unused if name not in loaded and "rotary_emb." not in name]
        self.unfilled = [name for name in arrivals.unfilled if name not in loaded and not (tied and tied in name)]

    def finish_weight_update(self) -> None:
        """Bring the layers back into the form that the kernels run."""
        finalize_layerwise_reload(self.model, self.model_config)
        head = getattr(self.model, "lm_head", None)
        if current_platform.is_cpu() and head is not None and self.model_config.hf_config.tie_word_embeddings:
            # No tensor is loaded for a tied head, so the reload passes it over; but on a CPU its kernel holds a packed
            # copy of the embedding, and would go on with the old one.
            head.quant_method.process_weights_after_loading(head)

    def shutdown(self) -> None:
        """Do nothing: no resource is held between updates."""


def _digested(file: Any, digest: TensorDigest) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the name and value of each tensor in a safetensors file, and add it to `digest`."""
    for name in file.keys():  # noqa: SIM118 not a mapping
        tensor = file.get_tensor(name)
        digest.add(name, tensor)
        yield name, tensor


class Arrivals:
    """A record of which tensors of a stream were loaded, and which weights of the model they were loaded into.

    Loaders take tensors from the stream one by one, and vLLM's layerwise reload calls `get_numel_loaded` for each that
    goes into a weight. A loader that first collects the whole stream leaves nothing to tell from.

    Args:
        model: vLLM's, whose layers wait for their weights.

    Attributes:
        unused: names of the tensors after which the next was taken without such a call.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._weights = dict(model.named_parameters())  # of the reload, which is over when the last is loaded
        self._filled: set[int] = set()
        self._calls = 0
        self.unused: list[str] = []

    @property
    def unfilled(self) -> list[str]:
        """Names of the weights, as vLLM has them, that no tensor was loaded into."""
        return [name for name, weight in self._weights.items() if id(weight) not in self._filled]

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        """Count the calls for the length of a block."""
        original = layerwise.get_numel_loaded

        def counting(weight_loader: Callable[..., Any], args: inspect.BoundArguments) -> tuple[int, object]:
            self._calls += 1
            self._filled.update(map(id, args.arguments.values()))
            return original(weight_loader, args)

        layerwise.get_numel_loaded = counting
        try:
            yield
        finally:
            layerwise.get_numel_loaded = original

    def following(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield `tensors`, by name, and note those that were not loaded before the next one was asked for."""
        for name, tensor in tensors:
            before = self._calls
            yield name, tensor
            if self._calls == before:
                self.unused.append(name)
        if not self._calls:  # the loader has collected them
            self.unused.clear()


class WorkerExtension:
    """A class for vLLM's option `worker_extension_cls`: each worker imports this module, and has its method."""

    weight_transfer_engine: SafetensorsWeightTransferEngine

    def arrived(self) -> tuple[list[str], list[str], Contents]:
        """Return `unused`, `unfilled` and `contents` of the last update (`SafetensorsWeightTransferEngine`)."""
        transfer = self.weight_transfer_engine
        return list(transfer.unused), list(transfer.unfilled), transfer.contents


if BACKEND not in WeightTransferEngineFactory._registry:  # a spawned process may import this module twice
    WeightTransferEngineFactory.register_engine(BACKEND, SafetensorsWeightTransferEngine)
