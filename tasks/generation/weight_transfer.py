"""A weight-transfer engine for vLLM: new weights come from a safetensors file on shared storage or in shared memory.

vLLM has `nccl` and `ipc` transfers for GPUs. This one serves machines without a GPU, and clusters whose learner and
actors share storage: the learner writes one safetensors file, which every actor loads when it is ready to. Importing
this module registers it, in vLLM's workers too: they import `WorkerExtension` by its path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
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
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
from vllm.platforms import current_platform

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
    """A transfer that loads a checkpoint file into the running model, layer by layer, and leaves the KV cache."""

    init_info_cls = SafetensorsInitInfo
    update_info_cls = SafetensorsUpdateInfo

    def init_transfer_engine(self, init_info: SafetensorsInitInfo) -> None:
        """Do nothing: the file is the only channel, and needs no rendezvous."""

    def start_weight_update(self) -> None:
        """Bring the layers back into the checkpoint's form, so that loaders can fill them."""
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
        load_weights: Callable[[Iterable[tuple[str, torch.Tensor]]], object] = self.model.load_weights  # type: ignore[assignment]
        with safe_open(update_info.path, framework="pt", device="cpu") as file:
            load_weights((name, file.get_tensor(name)) for name in file.keys())  # noqa: SIM118 not a mapping

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


class WorkerExtension:
    """An empty class for vLLM's option `worker_extension_cls`, by which each worker process imports this module."""


if BACKEND not in WeightTransferEngineFactory._registry:  # a spawned process may import this module twice
    WeightTransferEngineFactory.register_engine(BACKEND, SafetensorsWeightTransferEngine)
